//! What one call computes.

use crate::{Element, Error, Isa, KeptWeights, View, ViewMut};

/// One attention: the inputs, the options and how to run it.
///
/// For each query row, in this order: `query * scale`, dot products with the keys in [`Element::Acc`], `softcap`,
/// plus `bias` and `alibi`, `key_ranges` and `blocked`, softmax with `sink` in the denominator, `dropout`, times the
/// values. Query head `h` reads key and value head `h / (heads / kv_heads)`; nothing is repeated in memory.
///
/// A row that sees no key has output 0, logsumexp -inf (the sink's logit if there is one) and gradient 0.
/// A blocked key has weight exactly 0, whatever finite value it and its value row hold.
///
/// # Shapes
///
/// - query: `[batch, heads, query_len, d_k]`
/// - key: `[batch, kv_heads, key_len, d_k]`
/// - value: `[batch, kv_heads, key_len, d_v]`
/// - blocked, bias: `[batch | 1, heads | 1, query_len | 1, key_len | 1]`
///
/// # Example
///
/// ```
/// use kernels::{Problem, View, ViewMut};
///
/// let q = [1.0, 0.0, 0.5, -1.0_f64];
/// let k = [1.0, 1.0, 0.0, 2.0, -1.0, 0.5];
/// let v = [1.0, 0.0, 0.0, 1.0, 2.0, -1.0];
/// let problem = Problem::new(
///     View::contiguous(&q, [1, 1, 2, 2])?,
///     View::contiguous(&k, [1, 1, 3, 2])?,
///     View::contiguous(&v, [1, 1, 3, 2])?,
/// );
/// let (mut out, mut lse) = ([0.0; 4], [0.0; 2]);
/// kernels::forward(&problem, ViewMut::contiguous(&mut out, [1, 1, 2, 2])?, &mut lse)?;
/// assert!((out[0] - 0.85603384).abs() < 1e-8);
/// # Ok::<(), kernels::Error>(())
/// ```
///
/// Vaswani et al., *Attention Is All You Need*, <https://arxiv.org/abs/1706.03762>, section 3.2.1.
#[derive(Debug, Clone, Copy)]
pub struct Problem<'a, T: Element> {
    /// Queries.
    pub query: View<'a, T>,
    /// Keys.
    pub key: View<'a, T>,
    /// Values.
    pub value: View<'a, T>,
    /// Multiplied into the queries; `1 / sqrt(d_k)` by default.
    pub scale: f64,
    /// `c`: a score `s` becomes `c * tanh(s / c)`, after the scale and before the bias.
    pub softcap: Option<f64>,
    /// Which keys each query row may see; all of them by default.
    pub key_ranges: Option<KeyRanges<'a>>,
    /// Nonzero where a key is blocked for a query.
    pub blocked: Option<View<'a, u8>>,
    /// Added to the scores; `-inf` blocks.
    pub bias: Option<View<'a, T>>,
    /// A slope a query head: adds `-slope * |position - key|`, with [`KeyRanges::position`](field@KeyRanges::position) or, without key ranges,
    /// `key_len - query_len + row` for the position. Press et al., <https://arxiv.org/abs/2108.12409>.
    pub alibi: Option<&'a [f32]>,
    /// A logit a query head that joins the softmax's denominator and has no value.
    pub sink: Option<&'a [T::Acc]>,
    /// Weights dropped at random.
    pub dropout: Option<Dropout>,
    /// The vector instructions to use; the best of the machine by default.
    pub isa: Isa,
}

/// Which contiguous keys each query row may see.
///
/// Causal masks, windows, lengths of keys and queries, and packed documents all take this form. Keys and values before
/// the first and after the last that some row of their sample sees are never used, whatever they hold; in a gap between
/// ranges they must be finite.
///
/// # Shapes
///
/// Each slice has `query_len` entries, shared by all samples, or `batch * query_len`.
///
/// # Example
///
/// Causal, 3 queries and 3 keys:
///
/// ```
/// let ranges = kernels::KeyRanges {
///     first: &[0, 0, 0],
///     end: &[1, 2, 3],
///     position: &[0, 1, 2],
/// };
/// # let _ = ranges;
/// ```
#[derive(Debug, Clone, Copy)]
pub struct KeyRanges<'a> {
    /// The first key that a row sees.
    pub first: &'a [u32],
    /// One past the last key that a row sees; not above `first` if it sees none.
    pub end: &'a [u32],
    /// A query's place among the keys, for ALiBi; not read without it.
    pub position: &'a [i32],
}

/// Dropout of attention weights, as a pure function of seed, row and column.
///
/// See [`dropout`](crate::dropout) for the function.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dropout {
    /// The chance that a weight is dropped, in `[0, 1)`. Kept weights are divided by one minus it.
    pub probability: f64,
    /// Two numbers below 2^31.
    pub seed: [u32; 2],
}

/// What a forward pass left, and the gradients that come in.
///
/// # Shapes
///
/// - out, grad_out: `[batch, heads, query_len, d_v]`
/// - lse, grad_lse: `batch * heads * query_len` entries
#[derive(Debug, Clone, Copy)]
pub struct Saved<'a, T: Element> {
    /// The output of [`forward`](crate::forward).
    pub out: View<'a, T>,
    /// The logsumexp of [`forward`](crate::forward).
    pub lse: &'a [T::Acc],
    /// What [`forward_keeping`](crate::forward_keeping) kept, if it was that.
    pub kept: Option<&'a KeptWeights<T::Acc>>,
    /// The gradient at the output.
    pub grad_out: View<'a, T>,
    /// The gradient at the logsumexp, if it is used.
    pub grad_lse: Option<&'a [T::Acc]>,
}

/// Where the gradients go; what is `None` is not computed.
///
/// All are overwritten, not added to.
///
/// # Shapes
///
/// Those of the inputs. The bias's gradient has the bias's own shape, summed over the axes where that is 1; the
/// sink's has one entry a query head.
#[derive(Debug)]
pub struct Gradients<'a, T: Element> {
    /// Gradient at the queries.
    pub query: Option<ViewMut<'a, T>>,
    /// Gradient at the keys.
    pub key: Option<ViewMut<'a, T>>,
    /// Gradient at the values.
    pub value: Option<ViewMut<'a, T>>,
    /// Gradient at the bias.
    pub bias: Option<ViewMut<'a, T>>,
    /// Gradient at the sink.
    pub sink: Option<&'a mut [T::Acc]>,
}

impl<T: Element> Default for Gradients<'_, T> {
    /// No gradient wanted.
    fn default() -> Self {
        Self {
            query: None,
            key: None,
            value: None,
            bias: None,
            sink: None,
        }
    }
}

/// The sizes of a problem whose shapes agree.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    pub(crate) batch: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) queries: usize,
    pub(crate) keys: usize,
    pub(crate) d_k: usize,
    pub(crate) d_v: usize,
}

impl Sizes {
    /// Query heads that share a key head.
    pub(crate) fn group(&self) -> usize {
        self.heads.checked_div(self.kv_heads).unwrap_or(0)
    }

    pub(crate) fn query(&self) -> [usize; 4] {
        [self.batch, self.heads, self.queries, self.d_k]
    }

    pub(crate) fn key(&self) -> [usize; 4] {
        [self.batch, self.kv_heads, self.keys, self.d_k]
    }

    pub(crate) fn value(&self) -> [usize; 4] {
        [self.batch, self.kv_heads, self.keys, self.d_v]
    }

    pub(crate) fn out(&self) -> [usize; 4] {
        [self.batch, self.heads, self.queries, self.d_v]
    }

    pub(crate) fn rows(&self) -> usize {
        self.batch * self.heads * self.queries
    }
}

impl<'a, T: Element> Problem<'a, T> {
    /// Attention with scale `1 / sqrt(d_k)` and every other option off.
    pub fn new(query: View<'a, T>, key: View<'a, T>, value: View<'a, T>) -> Self {
        Self {
            query,
            key,
            value,
            scale: 1.0 / (query.shape()[3] as f64).sqrt(),
            softcap: None,
            key_ranges: None,
            blocked: None,
            bias: None,
            alibi: None,
            sink: None,
            dropout: None,
            isa: Isa::best(),
        }
    }

    /// Checks that everything fits together.
    pub(crate) fn check(&self) -> Result<Sizes, Error> {
        let [batch, heads, queries, d_k] = self.query.shape();
        let [_, kv_heads, keys, _] = self.key.shape();
        let sizes = Sizes {
            batch,
            heads,
            kv_heads,
            queries,
            keys,
            d_k,
            d_v: self.value.shape()[3],
        };
        check_shape("key", self.key.shape(), sizes.key())?;
        check_shape("value", self.value.shape(), sizes.value())?;
        if !heads.is_multiple_of(kv_heads) {
            return Err(Error::Groups { heads, kv_heads });
        }
        if d_k == 0 {
            return Err(Error::Axis {
                argument: "query",
                axis: "d_k",
                expected: 1,
                found: 0,
            });
        }
        check_value("scale", self.scale, f64::is_finite, "finite")?;
        if let Some(softcap) = self.softcap {
            check_value(
                "softcap",
                softcap,
                |c| c.is_finite() && c > 0.0,
                "finite and positive",
            )?;
        }
        let full = [batch, heads, queries, keys];
        if let Some(blocked) = self.blocked {
            check_broadcast("blocked", blocked.shape(), full)?;
        }
        if let Some(bias) = self.bias {
            check_broadcast("bias", bias.shape(), full)?;
        }
        if let Some(alibi) = self.alibi {
            check_len("alibi", alibi.len(), heads)?;
        }
        if let Some(sink) = self.sink {
            check_len("sink", sink.len(), heads)?;
        }
        if let Some(dropout) = self.dropout {
            check_value(
                "dropout.probability",
                dropout.probability,
                |p| (0.0..1.0).contains(&p),
                "at least 0 and below 1",
            )?;
            for seed in dropout.seed {
                check_value(
                    "dropout.seed",
                    f64::from(seed),
                    |s| s < 2_147_483_648.0,
                    "below 2^31",
                )?;
            }
        }
        if let Some(ranges) = self.key_ranges {
            ranges.check(&sizes, self.alibi.is_some())?;
        }
        if !self.isa.is_available() {
            return Err(Error::Isa(self.isa));
        }
        Ok(sizes)
    }
}

impl KeyRanges<'_> {
    fn check(&self, sizes: &Sizes, positions: bool) -> Result<(), Error> {
        let rows = sizes.batch * sizes.queries;
        let check = |argument, len: usize| {
            if len == rows {
                Ok(())
            } else {
                check_len(argument, len, sizes.queries)
            }
        };
        check("key_ranges.first", self.first.len())?;
        check("key_ranges.end", self.end.len())?;
        if positions {
            check("key_ranges.position", self.position.len())?;
        }
        let highest = self.end.iter().copied().max().unwrap_or(0) as usize;
        if highest <= sizes.keys {
            return Ok(());
        }
        // Only now, as a range that is empty may end anywhere.
        for row in 0..rows {
            let (first, end) = self.get(row / sizes.queries, row % sizes.queries, sizes.queries);
            if first < end && end as usize > sizes.keys {
                return Err(Error::KeyRange {
                    entry: row,
                    end: end as usize,
                    key_len: sizes.keys,
                });
            }
        }
        Ok(())
    }

    /// First and end of a row of a sample.
    #[inline(always)]
    pub(crate) fn get(&self, batch: usize, row: usize, queries: usize) -> (u32, u32) {
        let at = |len: usize| {
            if len == queries {
                row
            } else {
                batch * queries + row
            }
        };
        (
            self.first[at(self.first.len())],
            self.end[at(self.end.len())],
        )
    }

    /// The position of a row of a sample.
    pub(crate) fn position(&self, batch: usize, row: usize, queries: usize) -> i32 {
        if self.position.len() == queries {
            self.position[row]
        } else {
            self.position[batch * queries + row]
        }
    }
}

const QUERY_AXES: [&str; 4] = ["batch", "heads", "query_len", "dim"];

/// Checks a shape against the one that the other arguments ask for.
pub(crate) fn check_shape(
    argument: &'static str,
    found: [usize; 4],
    expected: [usize; 4],
) -> Result<(), Error> {
    let axes = match argument {
        "key" | "value" => ["batch", "kv_heads", "key_len", "dim"],
        _ => QUERY_AXES,
    };
    check_axes(argument, axes, found, expected)
}

/// Checks a shape whose axes have names.
pub(crate) fn check_axes(
    argument: &'static str,
    axes: [&'static str; 4],
    found: [usize; 4],
    expected: [usize; 4],
) -> Result<(), Error> {
    for axis in 0..4 {
        if found[axis] != expected[axis] {
            return Err(Error::Axis {
                argument,
                axis: axes[axis],
                expected: expected[axis],
                found: found[axis],
            });
        }
    }
    Ok(())
}

fn check_broadcast(
    argument: &'static str,
    found: [usize; 4],
    full: [usize; 4],
) -> Result<(), Error> {
    for axis in 0..4 {
        if found[axis] != full[axis] && found[axis] != 1 {
            return Err(Error::Axis {
                argument,
                axis: ["batch", "heads", "query_len", "key_len"][axis],
                expected: full[axis],
                found: found[axis],
            });
        }
    }
    Ok(())
}

/// Checks the length of a slice.
pub(crate) fn check_len(
    argument: &'static str,
    found: usize,
    expected: usize,
) -> Result<(), Error> {
    if found == expected {
        Ok(())
    } else {
        Err(Error::Length {
            argument,
            expected,
            found,
        })
    }
}

fn check_value(
    argument: &'static str,
    value: f64,
    holds: impl Fn(f64) -> bool,
    allowed: &'static str,
) -> Result<(), Error> {
    if holds(value) {
        Ok(())
    } else {
        Err(Error::Value {
            argument,
            value,
            allowed,
        })
    }
}
