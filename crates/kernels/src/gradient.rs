//! Gradients at a tile of scores, which every gradient is a product of.
//!
//! The weights are those that were kept, or computed again from the logsumexp, as in Dao,
//! <https://arxiv.org/abs/2307.08691>, section 3.1.2.

use crate::backward::Incoming;
use crate::block::Block;
use crate::context::{BLOCK, Context};
use crate::erased::{Rows, Source};
use crate::kept::tile_len;
use crate::micro::{NV, Take, dots, width};
use crate::pack::rows_to_lanes;
use crate::real::{Real, V, call, lanes, load, mul_add, splat, store};
use crate::scores::{Adjust, Place, Seen, hashes, keep};
use macerator::{Simd, WithSimd};

/// A row of a tile of scores: all queries of a block, so that one key's weights are adjacent.
pub(crate) const ROW: usize = BLOCK;

/// What is known of a block of queries before it meets keys.
pub(crate) struct Prepared<'s, A> {
    /// Queries as lanes, times the factor that makes products scores in powers of 2; nothing if weights are kept.
    query: &'s [A],
    /// The block's tiles of weights, if they are kept.
    pub(crate) kept: Option<&'s [A]>,
    /// Gradients of the output as lanes, times the gradients' factor.
    grad: &'s [A],
    /// Logsumexp in powers of 2, +inf for rows without weights.
    lse: [A; BLOCK],
    /// What a weight's gradient is compared with, times the gradients' factor.
    delta: [A; BLOCK],
    hashes: [u32; BLOCK],
    /// Whether gradients are taken through the softcap, to the products, or only to the capped scores.
    through_cap: bool,
}

/// Memory for one tile of scores.
pub(crate) struct TileMemory<'s, A> {
    /// Weights after dropout, [`ROW`] apart.
    pub(crate) weights: &'s mut [A],
    /// Gradients at the scores, times the gradients' factor, [`ROW`] apart.
    pub(crate) grads: &'s mut [A],
    pub(crate) slopes: &'s mut [A],
    pub(crate) extras: &'s mut [A],
}

/// Memory for [`Prepare`]; the lines are free afterwards.
pub(crate) struct PrepareMemory<'s, 'l, A> {
    pub(crate) query: &'s mut [A],
    pub(crate) grad: &'s mut [A],
    pub(crate) lines: &'l mut [A],
}

/// Gathers what a block of queries needs; `factor` is multiplied into all gradients at scores.
pub(crate) struct Prepare<'a, 's, 'l, 'p, A: Real> {
    pub(crate) ctx: &'a Context<'p, A>,
    pub(crate) saved: &'a Incoming<'s, A>,
    pub(crate) block: &'a Block,
    pub(crate) at: (usize, usize),
    pub(crate) factor: A,
    pub(crate) through_cap: bool,
    pub(crate) memory: PrepareMemory<'s, 'l, A>,
}

impl<'s, A: Real> WithSimd for Prepare<'_, 's, '_, '_, A> {
    type Output = Prepared<'s, A>;

    #[inline(always)]
    fn with_simd<S: Simd>(self) -> Prepared<'s, A> {
        prepare::<S, A>(self)
    }
}

#[inline(always)]
fn prepare<'s, S: Simd, A: Real>(work: Prepare<'_, 's, '_, '_, A>) -> Prepared<'s, A> {
    let Prepare {
        ctx,
        saved,
        block,
        at: (batch, head),
        factor,
        through_cap,
        memory,
    } = work;
    let sizes = &ctx.sizes;
    let at = (batch, head);
    let kept = saved
        .kept
        .and_then(|kept| kept.block(ctx, width::<S, A>(), at, block.start / BLOCK, block.tiles));
    if kept.is_none() {
        rows_to_lanes::<S, A>(
            &ctx.query,
            at,
            block,
            sizes.d_k,
            ctx.query_factor(),
            memory.query,
            memory.lines,
        );
    }
    rows_to_lanes::<S, A>(
        &saved.grad_out,
        at,
        block,
        sizes.d_v,
        factor,
        memory.grad,
        memory.lines,
    );
    let (mut lse, mut delta) = ([A::INFINITY; BLOCK], [A::ZERO; BLOCK]);
    let (out_line, grad_line) = memory.lines.split_at_mut(sizes.d_k.max(sizes.d_v));
    let first = (batch * sizes.heads + head) * sizes.queries + block.start;
    let (outs, grads) = (
        saved.out.direct(batch, head, block.start, block.rows),
        saved.grad_out.direct(batch, head, block.start, block.rows),
    );
    for row in 0..block.rows {
        let log = saved.lse[first + row];
        if block.live[row] && log != -A::INFINITY {
            let at = (batch, head, block.start + row);
            let out = line(outs, row, &saved.out, at, &mut *out_line);
            let grad = line(grads, row, &saved.grad_out, at, &mut *grad_line);
            let mut sum = product::<S, A>(out, grad);
            if let Some(grad_lse) = saved.grad_lse {
                sum = sum - grad_lse[first + row];
            }
            lse[row] = log * A::LOG2_E;
            delta[row] = sum * factor;
        }
    }
    Prepared {
        query: if kept.is_some() { &[] } else { memory.query },
        kept,
        grad: memory.grad,
        lse,
        delta,
        hashes: hashes(ctx, block, batch, head),
        through_cap,
    }
}

/// A row: of those that were found to lie in place, or else copied.
#[inline(always)]
fn line<'s, A: Real>(
    in_place: Option<Rows<'s, A>>,
    row: usize,
    source: &Source<'s, A>,
    (batch, head, place): (usize, usize, usize),
    copy: &'s mut [A],
) -> &'s [A] {
    let width = source.shape()[3];
    match in_place {
        Some(rows) => &rows.skip(row).data[..width],
        None => source.rows(batch, head, place, 1, width, copy).data,
    }
}

/// The dot product of two slices of one length.
#[inline(always)]
fn product<S: Simd, A: Real>(a: &[A], b: &[A]) -> A {
    let lanes = lanes::<S, A>();
    let mut sums = splat::<S, A>(A::ZERO);
    let (a_vectors, b_vectors) = (a.chunks_exact(lanes), b.chunks_exact(lanes));
    let mut sum = A::ZERO;
    for (&a, &b) in a_vectors.remainder().iter().zip(b_vectors.remainder()) {
        sum += a * b;
    }
    for (a, b) in a_vectors.zip(b_vectors) {
        sums = mul_add(load::<S, A>(a, 0), load::<S, A>(b, 0), sums);
    }
    sum + sums.reduce_add()
}

/// Computes weights and gradients of a tile. `keys` and `values` start at the tile's first key; rows of the tile go to
/// rows `first_row..` of the memory, at the lanes of its queries.
pub(crate) struct Gradient<'a, 'm, 'p, A: Real> {
    pub(crate) ctx: &'a Context<'p, A>,
    pub(crate) block: &'a Block,
    pub(crate) prepared: &'a Prepared<'a, A>,
    pub(crate) place: Place,
    pub(crate) keys: Rows<'a, A>,
    pub(crate) values: Rows<'a, A>,
    /// Row of the memory where the tile's first key goes.
    pub(crate) first_row: usize,
    pub(crate) memory: &'a mut TileMemory<'m, A>,
}

impl<A: Real> WithSimd for Gradient<'_, '_, '_, A> {
    type Output = Seen;

    #[inline(always)]
    fn with_simd<S: Simd>(self) -> Seen {
        gradient::<S, A>(self)
    }
}

#[inline(always)]
fn gradient<S: Simd, A: Real>(work: Gradient<'_, '_, '_, A>) -> Seen {
    let Gradient {
        ctx,
        block,
        prepared,
        place,
        keys,
        values,
        first_row,
        memory,
    } = work;
    let (width, lanes) = (width::<S, A>(), lanes::<S, A>());
    let (d_k, d_v) = (ctx.sizes.d_k, ctx.sizes.d_v);
    let rows = place.to - place.from;
    let tile = place.tile;
    let start = first_row * ROW + tile * width;
    let weights = &mut memory.weights[start..];
    let grads = &mut memory.grads[start..];
    let grad = &prepared.grad[tile * d_v * width..(tile + 1) * d_v * width];
    let (mut lse, mut delta) = ([splat(A::ZERO); NV], [splat(A::ZERO); NV]);
    for n in 0..NV {
        lse[n] = load::<S, A>(&prepared.lse, tile * width + n * lanes);
        delta[n] = load::<S, A>(&prepared.delta, tile * width + n * lanes);
    }

    let mut slopes = (ctx.softcap.is_some() && prepared.through_cap).then_some(&mut *memory.slopes);
    let cut = ctx.has_extras() || block.is_cut(tile, place.from, place.to);
    if let Some(kept) = prepared.kept {
        let len = tile_len(ctx.sizes.keys, width);
        let kept = &kept[tile * len..(tile + 1) * len];
        if restore::<S, A>(kept, place, weights) == Seen::Nothing {
            return Seen::Nothing;
        }
    } else {
        let query = &prepared.query[tile * d_k * width..(tile + 1) * d_k * width];
        dots::<S, A>(
            keys.data,
            keys.pitch,
            rows,
            query,
            d_k,
            &mut Raw { tile: weights },
        );
        if cut
            && call::<S, _>(Adjust {
                ctx,
                block,
                place,
                scores: weights,
                pitch: ROW,
                slopes: slopes.as_deref_mut(),
                scratch: memory.extras,
            }) == Seen::Nothing
        {
            return Seen::Nothing;
        }
        call::<S, _>(Power::<S, A> {
            tile: &mut weights[..(rows - 1) * ROW + width],
            lse,
        });
    }
    if ctx.dropout.is_none() && slopes.is_none() {
        let mut take = Grads::<S, A> {
            weights,
            tile: grads,
            delta,
            cut,
        };
        dots(values.data, values.pitch, rows, grad, d_v, &mut take);
        return Seen::Something;
    }
    dots::<S, A>(
        values.data,
        values.pitch,
        rows,
        grad,
        d_v,
        &mut Raw { tile: grads },
    );
    for row in 0..rows {
        let factors = ctx
            .dropout
            .as_ref()
            .map(|dropping| keep::<S, A>(dropping, &prepared.hashes, tile, place.from + row));
        for n in 0..NV {
            let at = row * ROW + n * lanes;
            let weight = load::<S, A>(weights, at);
            let mut grad = load::<S, A>(grads, at);
            if let Some(factors) = &factors {
                store(weights, at, weight * factors[n]);
                grad *= factors[n];
            }
            let mut grad = at_score(weight, grad - delta[n]);
            if let Some(slopes) = &slopes {
                grad *= load::<S, A>(slopes, at);
            }
            store(grads, at, grad);
        }
    }
    Seen::Something
}

/// Reads the weights of a tile that were kept. Nothing is seen if all that they are to be multiplied by is 0.
#[inline(always)]
fn restore<S: Simd, A: Real>(kept: &[A], place: Place, weights: &mut [A]) -> Seen {
    let (width, lanes) = (width::<S, A>(), lanes::<S, A>());
    let (kept, last) = kept.split_at(kept.len() - width);
    let zero = splat::<S, A>(A::ZERO);
    let mut factors = [zero; NV];
    let mut any = false;
    for n in 0..NV {
        factors[n] = load::<S, A>(last, n * lanes);
        any |= !factors[n].eq(zero).all();
    }
    if !any {
        return Seen::Nothing;
    }
    let rows = kept[place.from * width..place.to * width].chunks_exact(width);
    for (row, kept) in rows.enumerate() {
        for n in 0..NV {
            let weight = load::<S, A>(kept, n * lanes) * factors[n];
            store(weights, row * ROW + n * lanes, weight);
        }
    }
    Seen::Something
}

/// The gradient at a score: its weight times what the gradient at the weight has more than the row's mean.
#[inline(always)]
fn at_score<S: Simd, A: Real>(weight: V<S, A>, more: V<S, A>) -> V<S, A> {
    let zero = splat::<S, A>(A::ZERO);
    // A blocked value may be so large that its product is infinite, and 0 times that is no number.
    weight.eq(zero).select(zero, weight * more)
}

/// Stores products as they are.
struct Raw<'s, A> {
    tile: &'s mut [A],
}

impl<S: Simd, A: Real> Take<S, A> for Raw<'_, A> {
    #[inline(always)]
    fn take<const R: usize>(&mut self, row: usize, sums: &[[V<S, A>; NV]; R]) {
        for r in 0..R {
            for n in 0..NV {
                store(self.tile, (row + r) * ROW + n * lanes::<S, A>(), sums[r][n]);
            }
        }
    }
}

/// Turns scores into weights. A pass of its own: there the constants of the power have registers.
struct Power<'s, S: Simd, A: Real> {
    tile: &'s mut [A],
    lse: [V<S, A>; NV],
}

impl<S: Simd, A: Real> WithSimd for Power<'_, S, A> {
    type Output = ();

    #[inline(always)]
    fn with_simd<T: Simd>(self) {
        let lanes = lanes::<S, A>();
        for row in self.tile.chunks_mut(ROW) {
            let mut scores = self.lse;
            for n in 0..NV {
                scores[n] = load::<S, A>(row, n * lanes) - self.lse[n];
            }
            let weights = A::exp2::<S, NV>(scores);
            for n in 0..NV {
                store(row, n * lanes, weights[n]);
            }
        }
    }
}

/// Turns gradients at weights into gradients at scores.
struct Grads<'s, S: Simd, A: Real> {
    weights: &'s [A],
    tile: &'s mut [A],
    delta: [V<S, A>; NV],
    /// Whether keys may be blocked.
    cut: bool,
}

impl<S: Simd, A: Real> Take<S, A> for Grads<'_, S, A> {
    #[inline(always)]
    fn take<const R: usize>(&mut self, row: usize, sums: &[[V<S, A>; NV]; R]) {
        for r in 0..R {
            for n in 0..NV {
                let at = (row + r) * ROW + n * lanes::<S, A>();
                let weight = load::<S, A>(self.weights, at);
                let more = sums[r][n] - self.delta[n];
                let grad = if self.cut {
                    at_score(weight, more)
                } else {
                    weight * more
                };
                store(self.tile, at, grad);
            }
        }
    }
}
