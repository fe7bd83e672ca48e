//! The faults by name, and what a finding of one says.

use core::fmt;

use serde::{Deserialize, Serialize};

/// What may be wrong with a layer.
///
/// The names in files are stable: `non_finite`, `finite_mask` and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// A score, a weight or a gradient is NaN or infinite.
    NonFinite,
    /// A finite number hides keys, and in half precision or in a row of hidden keys alone it does
    /// not.
    FiniteMask,
    /// Products of query and key are not multiplied by `1 / sqrt(d_k)`.
    ScaleMissing,
    /// Products of query and key are multiplied by it twice.
    ScaleTwice,
    /// Products of query and key are multiplied by `1 / sqrt(d_model)` in its place.
    ScaleWrongDimension,
    /// Products of query and key come near the largest f16.
    HalfOverflow,
    /// From the start, most queries give one key all the weight.
    Saturated,
    /// From the start, most queries pass no gradient on to their scores.
    Dead,
    /// Queries give every key the same weight, and keep doing so.
    Uniform,
    /// In training, all weight has moved to single keys while the loss still asks for change.
    EntropyCollapse,
}

impl Fault {
    /// The name in files and logs.
    ///
    /// ```
    /// assert_eq!(layers::Fault::ScaleTwice.name(), "scale_twice");
    /// ```
    pub fn name(self) -> &'static str {
        match self {
            Self::NonFinite => "non_finite",
            Self::FiniteMask => "finite_mask",
            Self::ScaleMissing => "scale_missing",
            Self::ScaleTwice => "scale_twice",
            Self::ScaleWrongDimension => "scale_wrong_dimension",
            Self::HalfOverflow => "half_overflow",
            Self::Saturated => "saturated",
            Self::Dead => "dead",
            Self::Uniform => "uniform",
            Self::EntropyCollapse => "entropy_collapse",
        }
    }

    /// Why this is a fault, in one sentence.
    pub fn reason(self) -> &'static str {
        match self {
            Self::NonFinite => "one number that is not finite makes the whole step's update so",
            Self::FiniteMask => {
                "f16 holds numbers near -1e4 in steps of 8 only, and a query all of whose keys are \
                 filled spreads its weight over them instead of giving 0"
            }
            Self::ScaleMissing => {
                "products of d_k numbers deviate by sqrt(d_k), and the softmax of such scores \
                 saturates (https://arxiv.org/abs/1706.03762, section 3.2.1)"
            }
            Self::ScaleTwice => {
                "scores that deviate by 1/sqrt(d_k) give almost even weights; 1/d_k is meant for \
                 muP's initialisation only (https://arxiv.org/abs/2203.03466, definition 4.1)"
            }
            Self::ScaleWrongDimension => {
                "a head's products are sums of d_k numbers, not of d_model \
                 (https://arxiv.org/abs/1706.03762, section 3.2.2)"
            }
            Self::HalfOverflow => {
                "f16 ends at 65504: scores kept in it, here or where the model is run next, become \
                 infinite"
            }
            Self::Saturated => {
                "the softmax passes almost no gradient on where one weight is near 1, so the head \
                 cannot learn to look elsewhere"
            }
            Self::Dead => "queries and keys learn only from the gradient at their scores",
            Self::Uniform => "even weights give the mean of the values, whatever the query",
            Self::EntropyCollapse => {
                "entropy that falls to 0 goes with training that becomes unstable \
                 (https://arxiv.org/abs/2303.06296)"
            }
        }
    }

    /// What would show whether it is so, and where to look.
    pub fn check(self) -> &'static str {
        match self {
            Self::NonFinite => {
                "look at the layer's inputs and at the gradient norms of the step before"
            }
            Self::FiniteMask => "give the mask as `Mask`, or minus infinity in the bias",
            Self::ScaleMissing => {
                "print the layer: `scale` should be `inv_sqrt_dim`, or queries be scaled before it"
            }
            Self::ScaleTwice => {
                "print the layer: `scale` should be `unscaled` where queries are scaled before it"
            }
            Self::ScaleWrongDimension => {
                "print the layer: `scale` should be `inv_sqrt_dim`, and `d_head` the d_k that was \
                 meant"
            }
            Self::HalfOverflow => {
                "compare the norms of queries and keys with those of other layers"
            }
            Self::Saturated => "look at the deviation of the scores, and at the layer's input norm",
            Self::Dead => {
                "look for a detached output, or values that are all equal, behind this layer"
            }
            Self::Uniform => "look at the norms of the query and key weights, and of the keys",
            Self::EntropyCollapse => {
                "look at the query and key norms over the steps, and at the learning rate"
            }
        }
    }

    /// Whether the other is no finding of its own beside this one, but what follows from it.
    pub(super) fn explains(self, other: Self) -> bool {
        use Fault::*;
        match self {
            NonFinite => other != NonFinite,
            FiniteMask => matches!(other, HalfOverflow | Saturated | Dead | Uniform),
            ScaleMissing | HalfOverflow => {
                matches!(other, HalfOverflow | Saturated | Dead | EntropyCollapse) && other != self
            }
            ScaleTwice | ScaleWrongDimension => matches!(other, Uniform | Dead),
            Saturated => matches!(other, Dead | EntropyCollapse),
            EntropyCollapse => other == Dead,
            Dead | Uniform => false,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name().replace('_', " "))
    }
}

/// A fault of one layer, with the number that shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// What looks wrong.
    pub fault: Fault,
    /// The layer's path; empty if the model is the layer.
    pub path: String,
    /// The heads that show it; empty where it is the layer as a whole.
    pub heads: Vec<usize>,
    /// The number that shows it, in the latest call that does.
    pub value: f64,
    /// The number that it is past.
    pub threshold: f64,
    /// What the number is of, in words that contain it.
    pub measured: String,
}

/// One line: where, what, the number and the threshold, why, and what would show it.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => f.write_str("attention")?,
            path => f.write_str(path)?,
        }
        match self.heads.as_slice() {
            [] => {}
            [head] => write!(f, " head {head}")?,
            heads => {
                let heads: Vec<String> = heads.iter().map(usize::to_string).collect();
                write!(f, " heads {}", heads.join(", "))?;
            }
        }
        write!(
            f,
            ": {}: {} (threshold {}): {}; {}",
            self.fault,
            self.measured,
            short(self.threshold),
            self.fault.reason(),
            self.fault.check()
        )
    }
}

/// Three digits, or the exponent where there is no room for them.
pub(super) fn short(number: f64) -> String {
    let size = number.abs();
    if number == 0.0 || !number.is_finite() {
        return number.to_string();
    }
    match size {
        size if !(1e-3..1e6).contains(&size) => format!("{number:.2e}"),
        size if size >= 100.0 => format!("{number:.0}"),
        size if size >= 10.0 => format!("{number:.1}"),
        size if size >= 1.0 => format!("{number:.2}"),
        _ => format!("{number:.3}"),
    }
}
