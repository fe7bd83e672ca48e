//! Which query may see which key: types with the polarity and the alignment in their names.

use core::fmt;

use burn::tensor::{Bool, Tensor};
use serde::{Deserialize, Serialize};

use crate::error::{AttentionError, check_broadcast};

/// Where the queries stand among the keys, for causal masks, windows and ALiBi.
///
/// With 2 queries and 5 keys, causal:
///
/// ```text
/// BottomRight   TopLeft      Offset(1)
/// 1 1 1 1 0     1 0 0 0 0    1 1 0 0 0
/// 1 1 1 1 1     1 1 0 0 0    1 1 1 0 0
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Alignment {
    /// The last query stands at the last key, whatever the lengths of the samples: right for
    /// decoding with a cache and for self-attention, where it equals top-left.
    #[default]
    BottomRight,
    /// The first query stands at the first key.
    TopLeft,
    /// Query `i` stands at key `i + offset`; the offset may be negative.
    Offset(i64),
    /// The last valid query of each sample stands at its last valid key, as its `key_lengths` and
    /// `query_lengths` say: right for a shared buffer of keys that each sample fills so far.
    ValidBottomRight,
}

impl fmt::Display for Alignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Alignment::BottomRight => f.write_str("bottom_right"),
            Alignment::TopLeft => f.write_str("top_left"),
            Alignment::Offset(offset) => write!(f, "offset:{offset}"),
            Alignment::ValidBottomRight => f.write_str("valid_bottom_right"),
        }
    }
}

/// How many keys before and after its own place a query may see, its own included in neither.
///
/// The numbers are inclusive: a query at place `p` sees keys `p - before` to `p + after`. `None`
/// is without limit. A sliding window of `w` keys, the query's own among them, is
/// `Window::before(w - 1)` under a causal mask
/// ([Longformer](https://arxiv.org/abs/2004.05150), section 3.1).
///
/// # Example
///
/// ```
/// use layers::Window;
///
/// assert_eq!(Window::before(2), Window { before: Some(2), after: None });
/// assert_eq!(Window::around(1, 3), Window { before: Some(1), after: Some(3) });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Keys before the query's place that it sees.
    pub before: Option<usize>,
    /// Keys after the query's place that it sees.
    pub after: Option<usize>,
}

impl Window {
    /// At most `keys` before, no limit after.
    ///
    /// ```
    /// assert_eq!(layers::Window::before(2).to_string(), "2..");
    /// ```
    pub fn before(keys: usize) -> Self {
        Self {
            before: Some(keys),
            after: None,
        }
    }

    /// At most `before` keys before and `after` keys after.
    ///
    /// ```
    /// assert_eq!(layers::Window::around(2, 1).to_string(), "2..1");
    /// ```
    pub fn around(before: usize, after: usize) -> Self {
        Self {
            before: Some(before),
            after: Some(after),
        }
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = |n: Option<usize>| n.map(|n| n.to_string()).unwrap_or_default();
        write!(f, "{}..{}", side(self.before), side(self.after))
    }
}

/// A boolean mask over (batch, head, query, key) that broadcasts over axes of size 1.
///
/// The constructor says what `true` means. Several masks merge by "blocked if any says so".
///
/// # Example
///
/// ```
/// use burn::tensor::{Bool, Device, Tensor};
/// use layers::Mask;
///
/// let device = Device::default();
/// // 2 queries, 3 keys: the first query sees the first key alone.
/// let visible = Tensor::<2, Bool>::from_data([[true, false, false], [true, true, true]], &device);
/// assert_eq!(Mask::visible(visible.clone()).dims(), [1, 1, 2, 3]);
/// // The same, said the other way.
/// assert_eq!(Mask::blocked(visible.bool_not()).dims(), [1, 1, 2, 3]);
/// ```
#[derive(Clone, Debug)]
pub struct Mask {
    blocked: Tensor<4, Bool>,
}

impl Mask {
    /// From a tensor that is true where a query must not see a key.
    ///
    /// # Shapes
    ///
    /// `[query_len, key_len]`, `[batch, query_len, key_len]` or
    /// `[batch, heads, query_len, key_len]`; any axis may be 1.
    ///
    /// # Panics
    ///
    /// If the tensor has another rank than 2, 3 or 4.
    pub fn blocked<const D: usize>(blocked: Tensor<D, Bool>) -> Self {
        let dims = blocked.dims();
        let dims = match dims[..] {
            [query, key] => [1, 1, query, key],
            [batch, query, key] => [batch, 1, query, key],
            [batch, heads, query, key] => [batch, heads, query, key],
            _ => panic!("mask: rank is {D}, but must be 2, 3 or 4"),
        };
        Self {
            blocked: blocked.reshape(dims),
        }
    }

    /// From a tensor that is true where a query may see a key.
    ///
    /// Shapes and panics are those of [`Mask::blocked`].
    pub fn visible<const D: usize>(visible: Tensor<D, Bool>) -> Self {
        Self::blocked(visible.bool_not())
    }

    /// From a tensor `[batch, key_len]` that is true at keys that no query may see (padding).
    ///
    /// ```
    /// use burn::tensor::{Bool, Device, Tensor};
    ///
    /// let padding = Tensor::<2, Bool>::from_data([[false, false, true]], &Device::default());
    /// assert_eq!(layers::Mask::blocked_keys(padding).dims(), [1, 1, 1, 3]);
    /// ```
    pub fn blocked_keys(blocked: Tensor<2, Bool>) -> Self {
        let [batch, key_len] = blocked.dims();
        Self {
            blocked: blocked.reshape([batch, 1, 1, key_len]),
        }
    }

    /// From a tensor `[batch, key_len]` that is true at keys that queries may see.
    ///
    /// ```
    /// use burn::tensor::{Bool, Device, Tensor};
    ///
    /// let valid = Tensor::<2, Bool>::from_data([[true, true, false]], &Device::default());
    /// assert_eq!(layers::Mask::visible_keys(valid).dims(), [1, 1, 1, 3]);
    /// ```
    pub fn visible_keys(visible: Tensor<2, Bool>) -> Self {
        Self::blocked_keys(visible.bool_not())
    }

    /// Blocked where this or the other mask blocks.
    ///
    /// # Panics
    ///
    /// If an axis has two different sizes and neither is 1.
    pub fn and(self, other: Mask) -> Self {
        Self {
            blocked: self.blocked.bool_or(other.blocked),
        }
    }

    /// The sizes (batch, heads, queries, keys), 1 where the mask broadcasts.
    pub fn dims(&self) -> [usize; 4] {
        self.blocked.dims()
    }

    /// The tensor, true where blocked.
    pub fn into_blocked(self) -> Tensor<4, Bool> {
        self.blocked
    }

    pub(crate) fn check(&self, scores: [usize; 4]) -> Result<(), AttentionError> {
        check_score_shape("mask", self.dims(), scores)
    }
}

/// The names of the axes of a score, for errors.
pub(crate) const SCORE_AXES: [&str; 4] = ["batch", "heads", "query_len", "key_len"];

/// An error unless every axis is 1 or that of the scores.
pub(crate) fn check_score_shape(
    argument: &'static str,
    dims: [usize; 4],
    scores: [usize; 4],
) -> Result<(), AttentionError> {
    for axis in 0..4 {
        check_broadcast(argument, axis, SCORE_AXES[axis], dims[axis], scores[axis])?;
    }
    Ok(())
}
