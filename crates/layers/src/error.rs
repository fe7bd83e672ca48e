//! What can be wrong with a configuration or an input.

use core::fmt;

/// Why a module could not be built or an input was refused.
///
/// Each message names the argument, the axis where there is one, and both sizes.
///
/// # Example
///
/// ```
/// use layers::MultiHeadAttentionConfig;
///
/// let error = MultiHeadAttentionConfig::new(10, 4)
///     .try_init(&Default::default())
///     .unwrap_err();
/// assert_eq!(error.to_string(), "d_model 10 is not divisible by n_heads 4");
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum AttentionError {
    /// One size of the configuration must divide another and does not.
    NotDivisible {
        /// The name of the size to be divided, such as `d_model`.
        dividend: &'static str,
        /// Its value.
        size: usize,
        /// The name of the size that should divide it, such as `n_heads`.
        divisor: &'static str,
        /// Its value.
        parts: usize,
    },
    /// A value of the configuration or of a call is outside of what it may be.
    Value {
        /// The name of the option, such as `dropout`.
        argument: &'static str,
        /// The value as the caller gave it.
        value: String,
        /// What it must be, such as `must be in [0, 1)`.
        reason: String,
    },
    /// Two options say different things.
    Contradiction {
        /// The option and its value.
        first: String,
        /// The other option and its value.
        second: String,
        /// Why they exclude each other.
        reason: &'static str,
    },
    /// An axis of a tensor has the wrong size.
    Axis {
        /// The name of the tensor, such as `key`.
        argument: &'static str,
        /// The index of the axis.
        axis: usize,
        /// What the axis is, such as `kv_heads`.
        name: &'static str,
        /// Its size.
        size: usize,
        /// What it clashes with, with the other size, such as `but query has 4`.
        clash: String,
    },
    /// A tensor has an element type that its partners do not have.
    DType {
        /// The name of the tensor.
        argument: &'static str,
        /// Its element type.
        dtype: String,
        /// The element type of the query.
        query: String,
    },
}

impl fmt::Display for AttentionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotDivisible {
                dividend,
                size,
                divisor,
                parts,
            } => write!(f, "{dividend} {size} is not divisible by {divisor} {parts}"),
            Self::Value {
                argument,
                value,
                reason,
            } => write!(f, "{argument} is {value}, {reason}"),
            Self::Contradiction {
                first,
                second,
                reason,
            } => write!(f, "{first} contradicts {second}: {reason}"),
            Self::Axis {
                argument,
                axis,
                name,
                size,
                clash,
            } => write!(f, "{argument}: axis {axis} ({name}) is {size}, {clash}"),
            Self::DType {
                argument,
                dtype,
                query,
            } => write!(f, "{argument}: dtype is {dtype}, but query has {query}"),
        }
    }
}

impl std::error::Error for AttentionError {}

/// The panic at the top of `init` and `forward`: the message alone, for the person who reads it.
#[track_caller]
pub(crate) fn expect<T>(result: Result<T, AttentionError>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}

/// An error unless the axis has the size that another argument gives it.
pub(crate) fn check_axis(
    argument: &'static str,
    axis: usize,
    name: &'static str,
    size: usize,
    expected: usize,
    owner: &str,
) -> Result<(), AttentionError> {
    if size == expected {
        return Ok(());
    }
    Err(AttentionError::Axis {
        argument,
        axis,
        name,
        size,
        clash: format!("but {owner} has {expected}"),
    })
}

/// An error unless the axis is 1 or the full size that it is broadcast to.
pub(crate) fn check_broadcast(
    argument: &'static str,
    axis: usize,
    name: &'static str,
    size: usize,
    full: usize,
) -> Result<(), AttentionError> {
    if size == full || size == 1 {
        return Ok(());
    }
    Err(AttentionError::Axis {
        argument,
        axis,
        name,
        size,
        clash: format!("but the scores have {full} (or 1 to broadcast)"),
    })
}

/// An error that says what one value must be.
pub(crate) fn value_error(
    argument: &'static str,
    value: impl fmt::Display,
    reason: impl Into<String>,
) -> AttentionError {
    AttentionError::Value {
        argument,
        value: value.to_string(),
        reason: reason.into(),
    }
}
