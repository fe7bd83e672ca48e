//! How scores are scaled before the softmax, and by what name a run records it.

use core::fmt;
use core::str::FromStr;

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::error::{AttentionError, value_error};

/// The factor on `query . key` before the softmax.
///
/// The name is part of a module's configuration file and of its display, so that the record of a
/// run answers "was it scaled?". Leaving the factor out is not an error that shows: for
/// unit-variance queries and keys the scores then have variance `d_k`, the softmax saturates, and
/// training is slow without a word.
///
/// # Example
///
/// ```
/// use layers::Scale;
///
/// assert_eq!(Scale::InvSqrtDim.factor(64), 0.125);
/// assert_eq!(Scale::Unscaled.factor(64), 1.0);
/// assert_eq!(Scale::InvDim.factor(64), 0.015625);
/// assert_eq!(Scale::Fixed(0.37).to_string(), "fixed:0.37");
/// assert_eq!("inv-sqrt-dim".parse(), Ok(Scale::InvSqrtDim));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// `1 / sqrt(d_k)`, the choice of
    /// [Attention Is All You Need](https://arxiv.org/abs/1706.03762), section 3.2.1.
    #[default]
    InvSqrtDim,
    /// `1`: the raw dot product.
    Unscaled,
    /// `1 / d_k`, the choice of maximal update parametrisation
    /// ([Tensor Programs V](https://arxiv.org/abs/2203.03466), definition 4.1).
    InvDim,
    /// A number.
    Fixed(f64),
    /// `ln(n) / (ln(reference) sqrt(d_k))` for a query that sees `n` keys: the entropy of the
    /// weights then stays put when a model meets lengths other than `reference`
    /// ([Chiang and Cholak 2022](https://arxiv.org/abs/2202.12172) scale by `ln n`). A query that
    /// sees one key has the factor 0, and weight 1 whatever the factor.
    LogLength {
        /// The number of keys at which the factor is `1 / sqrt(d_k)`; at least 2.
        reference: usize,
    },
    /// A learned number for the whole module: with normalised queries and keys, the temperature
    /// of [query-key normalisation](https://arxiv.org/abs/2010.04245).
    Learned {
        /// Where it starts.
        initial: f64,
    },
}

impl Scale {
    /// The factor for queries and keys of width `d_k`: where it depends on the number of visible
    /// keys, that at the reference length; where it is learned, that at the start.
    ///
    /// ```
    /// assert_eq!(layers::Scale::InvSqrtDim.factor(256), 0.0625);
    /// ```
    pub fn factor(&self, d_k: usize) -> f64 {
        let d_k = d_k as f64;
        match *self {
            Scale::InvSqrtDim | Scale::LogLength { .. } => d_k.sqrt().recip(),
            Scale::Unscaled => 1.0,
            Scale::InvDim => d_k.recip(),
            Scale::Fixed(factor) | Scale::Learned { initial: factor } => factor,
        }
    }

    pub(crate) fn check(&self) -> Result<(), AttentionError> {
        match *self {
            Scale::Fixed(factor) | Scale::Learned { initial: factor } if !factor.is_finite() => {
                Err(value_error("scale", factor, "but must be finite"))
            }
            Scale::LogLength { reference } if reference < 2 => Err(value_error(
                "scale: log_length",
                reference,
                "but the reference length must be at least 2",
            )),
            _ => Ok(()),
        }
    }

    /// The part of the factor that differs from query to query, `[samples, 1, query_len, 1]`
    /// (one where it does not), to be multiplied into the query.
    pub(crate) fn per_query(
        &self,
        visible: impl FnOnce() -> (usize, Vec<usize>),
        query: &Tensor<4>,
    ) -> Option<Tensor<4>> {
        let Scale::LogLength { reference } = *self else {
            return None;
        };
        let (samples, visible) = visible();
        let query_len = visible.len() / samples.max(1);
        let unit = (reference as f64).ln();
        let factors: Vec<f64> = visible
            .iter()
            .map(|&keys| (keys.max(1) as f64).ln() / unit)
            .collect();
        let data = burn::tensor::TensorData::new(factors, [samples, 1, query_len, 1]);
        // Without a type of its own it would get the device's.
        Some(Tensor::from_data(data, (&query.device(), query.dtype())))
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scale::InvSqrtDim => f.write_str("inv_sqrt_dim"),
            Scale::Unscaled => f.write_str("unscaled"),
            Scale::InvDim => f.write_str("inv_dim"),
            Scale::Fixed(factor) => write!(f, "fixed:{factor}"),
            Scale::LogLength { reference } => write!(f, "log_length:{reference}"),
            Scale::Learned { initial } => write!(f, "learned:{initial}"),
        }
    }
}

impl FromStr for Scale {
    type Err = AttentionError;

    /// Reads what [`Display`](fmt::Display) writes; hyphens count as underscores.
    ///
    /// # Errors
    ///
    /// [`AttentionError::Value`] for another name, or a number that is none.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let name = text.replace('-', "_");
        let scale = match name.as_str() {
            "inv_sqrt_dim" => Some(Scale::InvSqrtDim),
            "unscaled" => Some(Scale::Unscaled),
            "inv_dim" => Some(Scale::InvDim),
            // The number is read from the text itself: its minus sign is no hyphen.
            _ => match text.split_once(':') {
                Some(("fixed", number)) => number.parse().ok().map(Scale::Fixed),
                Some(("learned", number)) => number
                    .parse()
                    .ok()
                    .map(|initial| Scale::Learned { initial }),
                Some(("log_length" | "log-length", number)) => number
                    .parse()
                    .ok()
                    .map(|reference| Scale::LogLength { reference }),
                _ => None,
            },
        };
        let scale = scale.ok_or_else(|| {
            value_error(
                "scale",
                text,
                "but must be inv_sqrt_dim, unscaled, inv_dim, fixed:NUMBER, log_length:NUMBER or learned:NUMBER",
            )
        })?;
        scale.check()?;
        Ok(scale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scale_is_read_back_from_its_name() {
        for scale in [
            Scale::InvSqrtDim,
            Scale::Unscaled,
            Scale::InvDim,
            Scale::Fixed(-0.125),
            Scale::LogLength { reference: 512 },
            Scale::Learned { initial: 10.0 },
        ] {
            assert_eq!(scale.to_string().parse(), Ok(scale));
        }
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_known_ones() {
        let error = "sqrt".parse::<Scale>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "scale is sqrt, but must be inv_sqrt_dim, unscaled, inv_dim, fixed:NUMBER, \
             log_length:NUMBER or learned:NUMBER"
        );
        assert_eq!(
            "fixed:inf".parse::<Scale>().unwrap_err().to_string(),
            "scale is inf, but must be finite"
        );
    }
}
