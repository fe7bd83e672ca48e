//! The forward pass: one visit to the keys for each block of queries, with a running softmax.
//!
//! Lanes are queries and keys are broadcast, so that keys and values are read where they lie and neither the maximum
//! nor the sum of a row crosses lanes. Milakov and Gimelshein, <https://arxiv.org/abs/1805.02867> (the running
//! softmax); Dao et al., <https://arxiv.org/abs/2205.14135> (tiles).

use crate::block::{Block, Blocks, MAX_TILES};
use crate::context::{BLOCK, Context, KEYS};
use crate::erased::{Shared, Target};
use crate::kept::KeptTiles;
use crate::micro::{NV, Take, accumulate, dots, width};
use crate::pack::{lanes_to_rows, rows_to_lanes};
use crate::parallel::{self, Tasks};
use crate::problem::{check_len, check_shape};
use crate::real::{Real, V, at_least, call, lanes, load, mul_add, splat, store};
use crate::scores::{Adjust, Place, Seen, hashes, keep, scratch_len};
use crate::scratch::Scratch;
use crate::{Element, Error, KeptWeights, Problem, ViewMut, decode, kept};
use macerator::{Simd, WithSimd};

/// Attention's output and the logsumexp of each row of scores.
///
/// # Shapes
///
/// - out: `[batch, heads, query_len, d_v]`
/// - lse: `batch * heads * query_len` entries; natural logarithm, with the sink, before dropout
///
/// # Errors
///
/// If shapes do not fit together, a number is outside of what it is defined for, or the instructions asked for are
/// missing. Nothing is written then.
///
/// # Example
///
/// The second query sees both keys, the first only key 0:
///
/// ```
/// use kernels::{KeyRanges, Problem, View, ViewMut};
///
/// let (q, k, v) = ([0.0_f32; 2], [1.0, -1.0], [1.0, 3.0]);
/// let mut problem = Problem::new(
///     View::contiguous(&q, [1, 1, 2, 1])?,
///     View::contiguous(&k, [1, 1, 2, 1])?,
///     View::contiguous(&v, [1, 1, 2, 1])?,
/// );
/// problem.key_ranges = Some(KeyRanges { first: &[0, 0], end: &[1, 2], position: &[] });
/// let (mut out, mut lse) = ([0.0; 2], [0.0; 2]);
/// kernels::forward(&problem, ViewMut::contiguous(&mut out, [1, 1, 2, 1])?, &mut lse)?;
/// assert_eq!(out, [1.0, 2.0]);
/// assert_eq!(lse[0], 0.0);
/// # Ok::<(), kernels::Error>(())
/// ```
pub fn forward<T: Element>(
    problem: &Problem<T>,
    out: ViewMut<T>,
    lse: &mut [T::Acc],
) -> Result<(), Error> {
    let ctx = checked(problem, &out, lse)?;
    T::Acc::forward(&ctx, Target::new(out), Shared::new(lse), None);
    Ok(())
}

/// [`forward`], with weights kept for the backward pass where they are few, which [`KeptWeights`] says.
///
/// Output and logsumexp are those of `forward` bit by bit.
///
/// # Errors
///
/// As [`forward`].
///
/// # Example
///
/// That of [`KeptWeights`].
pub fn forward_keeping<T: Element>(
    problem: &Problem<T>,
    out: ViewMut<T>,
    lse: &mut [T::Acc],
    kept: &mut KeptWeights<T::Acc>,
) -> Result<(), Error> {
    let ctx = checked(problem, &out, lse)?;
    let tiles = kept.start(&ctx);
    T::Acc::forward(&ctx, Target::new(out), Shared::new(lse), tiles);
    // SAFETY: the pass has taken each block's tiles.
    unsafe { kept.finish(&ctx) };
    Ok(())
}

/// A problem and its outputs, checked.
fn checked<'p, T: Element>(
    problem: &Problem<'p, T>,
    out: &ViewMut<T>,
    lse: &[T::Acc],
) -> Result<Context<'p, T::Acc>, Error> {
    let ctx = Context::new(problem)?;
    check_shape("out", out.shape(), ctx.sizes.out())?;
    check_len("lse", lse.len(), ctx.sizes.rows())?;
    Ok(ctx)
}

/// The forward pass of a checked problem.
pub(crate) fn run<A: Real>(
    ctx: &Context<'_, A>,
    out: Target<'_, A>,
    lse: Shared<'_, A>,
    kept: Option<KeptTiles<'_, A>>,
) {
    if decode::suits(ctx) {
        return decode::run(ctx, out, lse);
    }
    let sizes = &ctx.sizes;
    let flops = 2.0 * ctx.product_flops();
    parallel::run(sizes.batch * sizes.heads * ctx.blocks(), flops, |tasks| {
        ctx.isa.dispatch(Worker {
            ctx,
            out,
            lse,
            kept,
            tasks,
        });
    });
}

/// One thread's share.
struct Worker<'a, 'p, A: Real> {
    ctx: &'a Context<'p, A>,
    out: Target<'a, A>,
    lse: Shared<'a, A>,
    kept: Option<KeptTiles<'a, A>>,
    tasks: &'a Tasks,
}

/// A worker's memory.
struct Memory<'s, A> {
    /// Queries and outputs as lanes, tile after tile.
    query: &'s mut [A],
    out: &'s mut [A],
    /// Scores, then weights, of one tile: a row of lanes a key.
    weights: &'s mut [A],
    /// Weights after dropout.
    dropped: &'s mut [A],
    extras: &'s mut [A],
    keys: &'s mut [A],
    values: &'s mut [A],
    line: &'s mut [A],
}

/// The running softmax of each row of a block.
struct Running<A> {
    /// What is subtracted from scores: at most 8 below the largest so far, so that it seldom changes.
    shift: [A; BLOCK],
    sum: [A; BLOCK],
}

impl<A: Real> WithSimd for Worker<'_, '_, A> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self) {
        let Self {
            ctx,
            out,
            lse,
            kept,
            tasks,
        } = self;
        let sizes = &ctx.sizes;
        let width = width::<S, A>();
        let (rows, keys) = (ctx.block_rows(width), ctx.visit_keys());
        let lens = [
            rows * sizes.d_k,
            rows * sizes.d_v,
            keys * width,
            if ctx.dropout.is_some() {
                keys * width
            } else {
                0
            },
            scratch_len::<S, A>(ctx),
            keys * sizes.d_k,
            keys * sizes.d_v,
            sizes.d_k.max(sizes.d_v),
        ];
        let mut scratch = Scratch::new(&lens);
        let [
            query,
            packed_out,
            weights,
            dropped,
            extras,
            keys,
            values,
            line,
        ] = scratch.pieces(lens);
        let mut memory = Memory {
            query,
            out: packed_out,
            weights,
            dropped,
            extras,
            keys,
            values,
            line,
        };
        let mut seen = Blocks::default();
        let blocks = ctx.blocks();
        while let Some(run) = tasks.next() {
            for task in run {
                // The last rows first: under a causal mask they are the longest.
                let index = blocks - 1 - task % blocks;
                let (batch, head) = (task / blocks / sizes.heads, task / blocks % sizes.heads);
                let block = &seen.get(ctx, batch, index, 1, width)[0];
                // SAFETY: each block is one task's.
                let kept =
                    kept.map(|kept| unsafe { kept.block(ctx, (batch, head), index, block.tiles) });
                let mut running = attend::<S, A>(ctx, block, (batch, head), kept, &mut memory);

                let first = (batch * sizes.heads + head) * sizes.queries + block.start;
                // SAFETY: each task has rows of its own.
                let lse = unsafe { lse.part(first, block.rows) };
                finish::<S, A>(ctx, block, head, &mut running, lse);
                // SAFETY: as above.
                unsafe {
                    lanes_to_rows::<S, A>(
                        &out,
                        (batch, head),
                        block,
                        sizes.d_v,
                        &running.sum,
                        memory.out,
                        memory.line,
                    );
                }
            }
        }
    }
}

/// Visits the keys of a block of queries: leaves sums of weighted values in `memory.out`, and weights in `kept`, whose
/// tiles are zero.
#[inline(always)]
fn attend<S: Simd, A: Real>(
    ctx: &Context<'_, A>,
    block: &Block,
    (batch, head): (usize, usize),
    mut kept: Option<&mut [A]>,
    memory: &mut Memory<'_, A>,
) -> Running<A> {
    let sizes = &ctx.sizes;
    let (width, d_k, d_v) = (width::<S, A>(), sizes.d_k, sizes.d_v);
    let kv_head = ctx.kv_head(head);
    let extras = ctx.has_extras();
    rows_to_lanes::<S, A>(
        &ctx.query,
        (batch, head),
        block,
        d_k,
        ctx.query_factor(),
        memory.query,
        memory.line,
    );
    let mut fresh = [true; MAX_TILES];
    let hashes = hashes(ctx, block, batch, head);
    let (shift, sum) = match ctx.sink {
        Some(sink) => {
            let logit = sink[head] * A::LOG2_E;
            (
                logit,
                if logit == -A::INFINITY {
                    A::ZERO
                } else {
                    A::ONE
                },
            )
        }
        None => (-A::INFINITY, A::ZERO),
    };
    let mut running = Running {
        shift: [shift; BLOCK],
        sum: [sum; BLOCK],
    };

    let (mut from, end) = block.range;
    while from < end {
        let to = end.min(from + KEYS);
        let count = to - from;
        let keys = ctx.key.rows(batch, kv_head, from, count, d_k, memory.keys);
        let values = ctx
            .value
            .rows(batch, kv_head, from, count, d_v, memory.values);
        for tile in 0..block.tiles {
            let (first, end) = block.visit(tile, from, to);
            if first == end {
                continue;
            }
            let rows = end - first;
            let place = Place {
                batch,
                head,
                tile,
                from: first,
                to: end,
            };
            // Where weights are kept there is one visit, and they are made where they stay.
            let size = kept::tile_len(sizes.keys, width);
            let (weights, factors) = match &mut kept {
                Some(kept) => {
                    let tile = &mut kept[tile * size..(tile + 1) * size];
                    let (weights, factors) = tile.split_at_mut(size - width);
                    (&mut weights[first * width..end * width], Some(factors))
                }
                None => (&mut memory.weights[..rows * width], None),
            };
            let mut scores = Scores::<S, A> {
                tile: weights,
                highest: [splat::<S, A>(-A::INFINITY); NV],
            };
            dots(
                &keys.data[(first - from) * keys.pitch..],
                keys.pitch,
                rows,
                &memory.query[tile * d_k * width..(tile + 1) * d_k * width],
                d_k,
                &mut scores,
            );
            let mut highest = scores.highest;
            if extras || block.is_cut(tile, first, end) {
                let [left, _, right] = block.parts(tile, first, end, extras);
                let mut seen = false;
                for (from, to) in [left, right] {
                    seen |= from < to
                        && call::<S, _>(Adjust {
                            ctx,
                            block,
                            place: Place { from, to, ..place },
                            scores: &mut weights[(from - first) * width..],
                            pitch: width,
                            slopes: None,
                            scratch: memory.extras,
                        }) == Seen::Something;
                }
                if !seen {
                    if factors.is_some() {
                        weights.fill(A::ZERO);
                    }
                    continue;
                }
                highest = highest_of::<S, A>(weights, rows);
            }
            let out = &mut memory.out[tile * d_v * width..(tile + 1) * d_v * width];
            let old = if fresh[tile] { &mut [] } else { &mut *out };
            let shift = raise::<S, A>(&mut running, tile, highest, old);
            // A function of its own: here there are not enough registers for the constants of the power.
            call::<S, _>(Soften::<S, A> {
                weights: &mut *weights,
                shift,
                sums: &mut running.sum[tile * width..(tile + 1) * width],
            });
            if let Some(factors) = factors {
                keep_factors::<S, A>(block, tile, &running, factors);
            }
            if let Some(dropping) = &ctx.dropout {
                let dropped = &mut memory.dropped[..rows * width];
                for row in 0..rows {
                    let factors = keep::<S, A>(dropping, &hashes, tile, first + row);
                    for n in 0..NV {
                        let at = row * width + n * lanes::<S, A>();
                        store(dropped, at, load::<S, A>(weights, at) * factors[n]);
                    }
                }
            }
            let weights = if ctx.dropout.is_some() {
                &*memory.dropped
            } else {
                &*weights
            };
            if d_v > 0 {
                accumulate::<S, A>(
                    &values.data[(first - from) * values.pitch..],
                    values.pitch,
                    d_v,
                    weights,
                    width,
                    rows,
                    out,
                    fresh[tile],
                );
                fresh[tile] = false;
            }
        }
        from = to;
    }
    for tile in 0..block.tiles {
        if fresh[tile] {
            memory.out[tile * d_v * width..(tile + 1) * d_v * width].fill(A::ZERO);
        }
    }
    running
}

/// Writes what the weights of a tile are to be multiplied by: 1 over the sum of their row, 0 for rows that see nothing.
#[inline(always)]
fn keep_factors<S: Simd, A: Real>(
    block: &Block,
    tile: usize,
    running: &Running<A>,
    factors: &mut [A],
) {
    let (width, lanes) = (width::<S, A>(), lanes::<S, A>());
    let (zero, one) = (splat::<S, A>(A::ZERO), splat::<S, A>(A::ONE));
    for n in 0..NV {
        let sum = load::<S, A>(&running.sum, tile * width + n * lanes);
        store(factors, n * lanes, sum.eq(zero).select(zero, one / sum));
    }
    for (factor, row) in factors.iter_mut().zip(tile * width..) {
        if !block.live.get(row).is_some_and(|&live| live) {
            *factor = A::ZERO;
        }
    }
}

/// Stores scores and finds the highest of each lane.
struct Scores<'s, S: Simd, A: Real> {
    tile: &'s mut [A],
    highest: [V<S, A>; NV],
}

impl<S: Simd, A: Real> Take<S, A> for Scores<'_, S, A> {
    #[inline(always)]
    fn take<const R: usize>(&mut self, row: usize, sums: &[[V<S, A>; NV]; R]) {
        let (width, lanes) = (width::<S, A>(), lanes::<S, A>());
        let tile = &mut self.tile[row * width..(row + R) * width];
        for r in 0..R {
            for n in 0..NV {
                store(tile, r * width + n * lanes, sums[r][n]);
                self.highest[n] = self.highest[n].max(sums[r][n]);
            }
        }
    }
}

#[inline(always)]
fn highest_of<S: Simd, A: Real>(tile: &[A], rows: usize) -> [V<S, A>; NV] {
    let (width, lanes) = (width::<S, A>(), lanes::<S, A>());
    let mut highest = [splat::<S, A>(-A::INFINITY); NV];
    for row in tile[..rows * width].chunks_exact(width) {
        for n in 0..NV {
            highest[n] = highest[n].max(load(row, n * lanes));
        }
    }
    highest
}

/// Raises the shift of a tile's rows if a score is more than 8 above it, and scales down what was summed under the
/// old one. Returns the shift.
///
/// Powers up to 2^8 cost no accuracy, and most tiles then change nothing.
#[inline(always)]
fn raise<S: Simd, A: Real>(
    running: &mut Running<A>,
    tile: usize,
    highest: [V<S, A>; NV],
    out: &mut [A],
) -> [V<S, A>; NV] {
    let (width, lanes) = (width::<S, A>(), lanes::<S, A>());
    let shifts = &mut running.shift[tile * width..(tile + 1) * width];
    let sums = &mut running.sum[tile * width..(tile + 1) * width];
    let lowest = A::from_f64(-1e30);
    let slack = splat::<S, A>(A::from_f64(8.0));
    let mut shift = [splat(lowest); NV];
    let mut raised = false;
    for n in 0..NV {
        shift[n] = load::<S, A>(shifts, n * lanes);
        raised |= highest[n].gt(shift[n] + slack).any();
    }
    if raised {
        let mut factor = [splat(lowest); NV];
        for n in 0..NV {
            // Only the rows that need it: what a row gives must not depend on its neighbours by a bit.
            let new = highest[n].gt(shift[n] + slack).select(highest[n], shift[n]);
            // A row that has seen nothing yet: -inf less -inf is no number.
            factor[n] = A::exp2::<S, 1>([shift[n] - at_least(new, lowest)])[0];
            store(shifts, n * lanes, new);
            store(sums, n * lanes, load::<S, A>(sums, n * lanes) * factor[n]);
            shift[n] = new;
        }
        for row in out.chunks_exact_mut(width) {
            for n in 0..NV {
                store(row, n * lanes, load::<S, A>(row, n * lanes) * factor[n]);
            }
        }
    }
    for n in 0..NV {
        shift[n] = at_least(shift[n], lowest);
    }
    shift
}

/// Turns a tile's scores into weights, not yet divided by their sum, and adds them to the sums of its rows.
struct Soften<'a, S: Simd, A: Real> {
    weights: &'a mut [A],
    shift: [V<S, A>; NV],
    sums: &'a mut [A],
}

impl<S: Simd, A: Real> WithSimd for Soften<'_, S, A> {
    type Output = ();

    #[inline(always)]
    fn with_simd<T: Simd>(self) {
        let (width, lanes) = (width::<S, A>(), lanes::<S, A>());
        let mut sums = [splat::<S, A>(A::ZERO); NV];
        for row in self.weights.chunks_exact_mut(width) {
            let mut powers = [splat::<S, A>(A::ZERO); NV];
            for n in 0..NV {
                powers[n] = load::<S, A>(row, n * lanes) - self.shift[n];
            }
            let powers = A::exp2::<S, NV>(powers);
            for n in 0..NV {
                store(row, n * lanes, powers[n]);
                sums[n] += powers[n];
            }
        }
        for n in 0..NV {
            let sum = load::<S, A>(self.sums, n * lanes) + sums[n];
            store(self.sums, n * lanes, sum);
        }
    }
}

/// Writes the logsumexp of each row and leaves in `running.sum` what its output is to be multiplied by.
#[inline(always)]
fn finish<S: Simd, A: Real>(
    ctx: &Context<'_, A>,
    block: &Block,
    head: usize,
    running: &mut Running<A>,
    lse: &mut [A],
) {
    let lanes = lanes::<S, A>();
    let nothing = ctx.sink.map_or(-A::INFINITY, |sink| sink[head]);
    let (zero, one) = (splat::<S, A>(A::ZERO), splat::<S, A>(A::ONE));
    let mut logs = [nothing; BLOCK];
    for at in (0..block.rows).step_by(lanes) {
        let (shift, sum) = (
            load::<S, A>(&running.shift, at),
            load::<S, A>(&running.sum, at),
        );
        // In two parts: otherwise a large shift would be rounded twice.
        let log = mul_add(
            shift,
            splat(A::LN_2[0]),
            mul_add(shift, splat(A::LN_2[1]), A::ln::<S>(sum)),
        );
        // The logarithm is of bits and takes what is no number for one.
        let log = sum.eq(sum).select(log, sum);
        // Not `sum > 0`, which would hide a sum that is no number.
        store(&mut logs, at, sum.eq(zero).select(splat(nothing), log));
        store(&mut running.sum, at, sum.eq(zero).select(zero, one / sum));
    }
    lse.copy_from_slice(&logs[..block.rows]);
    if !block.all_live {
        for row in 0..block.rows {
            if !block.live[row] {
                lse[row] = nothing;
            }
        }
    }
}
