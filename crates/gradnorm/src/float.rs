//! NaN and infinity in JSON, which has neither.

use serde::de::Error;
use serde::{Deserialize, Deserializer};

const NAN: &str = "NaN";
const INFINITY: &str = "inf";
const NEG_INFINITY: &str = "-inf";

/// The text that stands for a float that JSON cannot hold; `None` for a finite one.
pub(crate) fn non_finite_name(value: f64) -> Option<&'static str> {
    if value.is_nan() {
        Some(NAN)
    } else if value == f64::INFINITY {
        Some(INFINITY)
    } else if value == f64::NEG_INFINITY {
        Some(NEG_INFINITY)
    } else {
        None
    }
}

pub(crate) fn parse_non_finite(name: &str) -> Option<f64> {
    match name {
        NAN => Some(f64::NAN),
        INFINITY => Some(f64::INFINITY),
        NEG_INFINITY => Some(f64::NEG_INFINITY),
        _ => None,
    }
}

/// Reads a float of a run log into a field of one's own type: a number, or `"NaN"`, `"inf"`,
/// `"-inf"`, which is how logs hold what JSON cannot.
///
/// # Errors
///
/// If the value is neither.
///
/// # Example
///
/// ```
/// #[derive(serde::Deserialize)]
/// struct Record {
///     #[serde(deserialize_with = "gradnorm::deserialize_float")]
///     loss: f64,
/// }
///
/// let record: Record = serde_json::from_str(r#"{"loss": "-inf"}"#)?;
/// assert_eq!(record.loss, f64::NEG_INFINITY);
/// let record: Record = serde_json::from_str(r#"{"loss": 0.5}"#)?;
/// assert_eq!(record.loss, 0.5);
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn deserialize_float<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    #[derive(Deserialize)]
    #[serde(
        untagged,
        expecting = "expected a number, \"NaN\", \"inf\" or \"-inf\""
    )]
    enum Float {
        Number(f64),
        Name(String),
    }

    match Float::deserialize(deserializer)? {
        Float::Number(value) => Ok(value),
        Float::Name(name) => parse_non_finite(&name)
            .ok_or_else(|| D::Error::custom(format!("{name:?} is not a number"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize, Debug)]
    struct Record {
        #[serde(deserialize_with = "deserialize_float")]
        loss: f64,
    }

    #[test]
    fn every_float_that_json_cannot_hold_has_a_name_and_is_read_from_it() {
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let name = non_finite_name(value).unwrap();
            assert_eq!(parse_non_finite(name).unwrap().to_bits(), value.to_bits());
            let json = format!(r#"{{"loss": "{name}"}}"#);
            let record: Record = serde_json::from_str(&json).unwrap();
            assert_eq!(record.loss.to_bits(), value.to_bits());
        }
        assert_eq!(non_finite_name(1.5), None);
        assert_eq!(parse_non_finite("1.5"), None);
    }

    #[test]
    fn another_value_is_not_a_float() {
        let error = |json| {
            serde_json::from_str::<Record>(json)
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            error(r#"{"loss": "high"}"#),
            r#""high" is not a number at line 1 column 16"#
        );
        assert_eq!(
            error(r#"{"loss": null}"#),
            r#"expected a number, "NaN", "inf" or "-inf" at line 1 column 14"#
        );
    }
}
