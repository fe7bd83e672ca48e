use std::fmt;

/// What is wrong with the arguments of a call.
///
/// Every check is made before the first element is computed, so that a call either fails and writes
/// nothing or succeeds.
///
/// # Example
///
/// ```
/// let error = kernels::View::contiguous(&[0.0_f32; 5], [1, 1, 2, 3]).unwrap_err();
/// assert_eq!(error.to_string(), "view of shape [1, 1, 2, 3] reaches element 5, but the data has 5");
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// A view reaches outside of its data.
    OutOfBounds {
        /// The view's shape.
        shape: [usize; 4],
        /// The first element that it reaches outside of the data.
        index: isize,
        /// How many elements the data has.
        len: usize,
    },
    /// A mutable view reaches one element by two indices.
    Overlap {
        /// The view's shape.
        shape: [usize; 4],
        /// The view's strides.
        strides: [isize; 4],
    },
    /// An axis of an argument does not fit the other arguments.
    Axis {
        /// The argument's name.
        argument: &'static str,
        /// The axis's name.
        axis: &'static str,
        /// The size that the other arguments ask for.
        expected: usize,
        /// The size found.
        found: usize,
    },
    /// The query heads do not divide into groups, one a key and value head.
    Groups {
        /// Query heads.
        heads: usize,
        /// Key and value heads.
        kv_heads: usize,
    },
    /// A slice has the wrong length.
    Length {
        /// The argument's name.
        argument: &'static str,
        /// The length that the other arguments ask for.
        expected: usize,
        /// The length found.
        found: usize,
    },
    /// A query row may see keys that are not there.
    KeyRange {
        /// The entry of `KeyRanges`.
        entry: usize,
        /// Its end.
        end: usize,
        /// How many keys there are.
        key_len: usize,
    },
    /// A number lies outside of what the operation is defined for.
    Value {
        /// The argument's name.
        argument: &'static str,
        /// The value found.
        value: f64,
        /// The values allowed, in words.
        allowed: &'static str,
    },
    /// An instruction set was asked for that this machine lacks.
    Isa(crate::Isa),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfBounds { shape, index, len } => write!(
                f,
                "view of shape {shape:?} reaches element {index}, but the data has {len}"
            ),
            Self::Overlap { shape, strides } => write!(
                f,
                "mutable view of shape {shape:?} and strides {strides:?} may reach an element twice"
            ),
            Self::Axis {
                argument,
                axis,
                expected,
                found,
            } => write!(
                f,
                "{argument} must have size {expected} along {axis}, but has {found}"
            ),
            Self::Groups { heads, kv_heads } => write!(
                f,
                "query has {heads} heads, which {kv_heads} key heads do not divide"
            ),
            Self::Length {
                argument,
                expected,
                found,
            } => write!(f, "{argument} must have length {expected}, but has {found}"),
            Self::KeyRange {
                entry,
                end,
                key_len,
            } => write!(
                f,
                "key_ranges entry {entry} ends at key {end}, but there are {key_len}"
            ),
            Self::Value {
                argument,
                value,
                allowed,
            } => write!(f, "{argument} must be {allowed}, but is {value}"),
            Self::Isa(isa) => write!(f, "this machine has no {isa:?} instructions"),
        }
    }
}

impl std::error::Error for Error {}
