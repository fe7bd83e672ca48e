//! Gradients at a tile of scores, which every gradient is a product of.
//!
//! The weights are computed again from the logsumexp, as in Dao, <https://arxiv.org/abs/2307.08691>, section 3.1.2.

use crate::backward::Incoming;
use crate::block::Block;
use crate::context::{BLOCK, Context};
use crate::erased::Rows;
use crate::micro::{NV, Take, dots, width};
use crate::pack::rows_to_lanes;
use crate::real::{Real, V, call, lanes, load, mul_add, splat, store};
use crate::scores::{Adjust, Place, Seen, hashes, keep};
use macerator::{Simd, WithSimd};

/// A row of a tile of scores: all queries of a block, so that one key's weights are adjacent.
pub(crate) const ROW: usize = BLOCK;

/// What is known of a block of queries before it meets keys.
pub(crate) struct Prepared<'s, A> {
    /// Queries as lanes, times the factor that makes products scores in powers of 2.
    query: &'s [A],
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
    pub(crate) saved: &'a Incoming<'p, A>,
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
    rows_to_lanes::<S, A>(
        &ctx.query,
        at,
        block,
        sizes.d_k,
        ctx.query_factor(),
        memory.query,
        memory.lines,
    );
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
    for row in 0..block.rows {
        let log = saved.lse[first + row];
        if block.live[row] && log != -A::INFINITY {
            let out = saved
                .out
                .rows(batch, head, block.start + row, 1, sizes.d_v, out_line);
            let grad = saved
                .grad_out
                .rows(batch, head, block.start + row, 1, sizes.d_v, grad_line);
            let mut sum = product::<S, A>(out.data, grad.data);
            if let Some(grad_lse) = saved.grad_lse {
                sum = sum - grad_lse[first + row];
            }
            lse[row] = log * A::LOG2_E;
            delta[row] = sum * factor;
        }
    }
    Prepared {
        query: memory.query,
        grad: memory.grad,
        lse,
        delta,
        hashes: hashes(ctx, block, batch, head),
        through_cap,
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
    let query = &prepared.query[tile * d_k * width..(tile + 1) * d_k * width];
    let grad = &prepared.grad[tile * d_v * width..(tile + 1) * d_v * width];
    let (mut lse, mut delta) = ([splat(A::ZERO); NV], [splat(A::ZERO); NV]);
    for n in 0..NV {
        lse[n] = load::<S, A>(&prepared.lse, tile * width + n * lanes);
        delta[n] = load::<S, A>(&prepared.delta, tile * width + n * lanes);
    }

    let plain =
        !ctx.has_extras() && ctx.dropout.is_none() && !block.is_cut(tile, place.from, place.to);
    if plain {
        let mut take = Weights::<S, A> { tile: weights, lse };
        dots(keys.data, keys.pitch, rows, query, d_k, &mut take);
        let mut take = Grads::<S, A> {
            weights,
            tile: grads,
            delta,
        };
        dots(values.data, values.pitch, rows, grad, d_v, &mut take);
        return Seen::Something;
    }

    dots::<S, A>(
        keys.data,
        keys.pitch,
        rows,
        query,
        d_k,
        &mut Raw { tile: weights },
    );
    let mut slopes = (ctx.softcap.is_some() && prepared.through_cap).then_some(&mut *memory.slopes);
    let seen = call::<S, _>(Adjust {
        ctx,
        block,
        place,
        scores: weights,
        pitch: ROW,
        slopes: slopes.as_deref_mut(),
        scratch: memory.extras,
    });
    if seen == Seen::Nothing {
        return seen;
    }
    dots::<S, A>(
        values.data,
        values.pitch,
        rows,
        grad,
        d_v,
        &mut Raw { tile: grads },
    );
    let zero = splat::<S, A>(A::ZERO);
    for row in 0..rows {
        let factors = ctx
            .dropout
            .as_ref()
            .map(|dropping| keep::<S, A>(dropping, &prepared.hashes, tile, place.from + row));
        for n in 0..NV {
            let at = row * ROW + n * lanes;
            let weight = A::exp2::<S>(load::<S, A>(weights, at) - lse[n]);
            let mut grad = load::<S, A>(grads, at);
            let mut kept = weight;
            if let Some(factors) = &factors {
                kept = weight * factors[n];
                grad *= factors[n];
            }
            // A blocked value may be so large that its product is infinite, and 0 times that is no number.
            let mut grad = weight.eq(zero).select(zero, weight * (grad - delta[n]));
            if let Some(slopes) = &slopes {
                grad *= load::<S, A>(slopes, at);
            }
            store(weights, at, kept);
            store(grads, at, grad);
        }
    }
    Seen::Something
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

/// Turns scores into weights.
struct Weights<'s, S: Simd, A: Real> {
    tile: &'s mut [A],
    lse: [V<S, A>; NV],
}

impl<S: Simd, A: Real> Take<S, A> for Weights<'_, S, A> {
    #[inline(always)]
    fn take<const R: usize>(&mut self, row: usize, sums: &[[V<S, A>; NV]; R]) {
        for r in 0..R {
            for n in 0..NV {
                let weight = A::exp2::<S>(sums[r][n] - self.lse[n]);
                store(self.tile, (row + r) * ROW + n * lanes::<S, A>(), weight);
            }
        }
    }
}

/// Turns gradients at weights into gradients at scores.
struct Grads<'s, S: Simd, A: Real> {
    weights: &'s [A],
    tile: &'s mut [A],
    delta: [V<S, A>; NV],
}

impl<S: Simd, A: Real> Take<S, A> for Grads<'_, S, A> {
    #[inline(always)]
    fn take<const R: usize>(&mut self, row: usize, sums: &[[V<S, A>; NV]; R]) {
        for r in 0..R {
            for n in 0..NV {
                let at = (row + r) * ROW + n * lanes::<S, A>();
                let weight = load::<S, A>(self.weights, at);
                store(self.tile, at, weight * (sums[r][n] - self.delta[n]));
            }
        }
    }
}
