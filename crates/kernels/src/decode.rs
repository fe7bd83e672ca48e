//! The forward pass for few queries and many keys, as in generation step by step: reading keys and values is all the work.
//!
//! Lanes run along the head dimension here, as lanes of queries would be mostly empty. All query heads that share a key
//! head are done in one pass over its keys and values. Long rows are split over the keys where there are few heads;
//! the parts are merged in order. Into how many depends on the shape alone.

use crate::context::Context;
use crate::dropout::mix;
use crate::erased::{Rows, Shared, Source, Target};
use crate::micro::{NV, Strips, add, strips, tile};
use crate::parallel::{self, Tasks};
use crate::real::{Real, V, lanes, load, mul_add, splat, store, tanh};
use crate::scratch::Scratch;
use crate::transpose::{SIDE, Square};
use macerator::{Simd, WithSimd};
use std::marker::PhantomData;

/// The most queries that are worth it: with more, lanes of queries are full enough.
const QUERIES: usize = 4;

/// Keys of one visit; with their values they fit the first-level cache at 128 dimensions.
const KEYS: usize = 32;

/// Keys of one visit for a single row: each key and value is read once, and memory is fastest in long stretches.
const LONG: usize = 256;

/// Keys of a part, about, at the least.
const PART: usize = 512;

/// Whether this pass is the faster one.
pub(crate) fn suits<A: Real>(ctx: &Context<'_, A>) -> bool {
    ctx.sizes.queries <= QUERIES
}

/// Computes output and logsumexp.
pub(crate) fn run<A: Real>(ctx: &Context<'_, A>, out: Target<'_, A>, lse: Shared<'_, A>) {
    let sizes = &ctx.sizes;
    let heads = sizes.batch * sizes.kv_heads;
    if heads == 0 {
        return;
    }
    let rows = sizes.group() * sizes.queries;
    let parts = 16_usize.div_ceil(heads).min(sizes.keys / PART).max(1);
    let part = sizes.keys.div_ceil(parts).next_multiple_of(KEYS);
    // Of each part and row: the sums of weighted values, the shift and the sum of weights.
    let width = sizes.d_v + 2;
    let mut memory = vec![A::ZERO; heads * parts * rows * width];
    let shared = Shared::new(&mut memory);
    let flops = ctx.product_flops() * 2.0 * sizes.group() as f64 / parts as f64;
    parallel::run(heads * parts, flops, |tasks| {
        ctx.isa.dispatch(Worker {
            ctx,
            parts,
            part,
            results: shared,
            tasks,
        });
    });
    let merge_flops = (parts * rows * width * 4) as f64;
    parallel::run(heads, merge_flops, |tasks| {
        let mut line = vec![A::ZERO; sizes.d_v];
        while let Some(run) = tasks.next() {
            for head in run {
                for row in 0..rows {
                    // SAFETY: the parts are done, and each task has a head of its own.
                    let results =
                        unsafe { shared.part(head * parts * rows * width, parts * rows * width) };
                    merge(ctx, (head, row), results, &mut line, &out, &lse);
                }
            }
        }
    });
}

/// Merges the parts of a row and writes it.
fn merge<A: Real>(
    ctx: &Context<'_, A>,
    (kv, row): (usize, usize),
    results: &[A],
    line: &mut [A],
    out: &Target<'_, A>,
    lse: &Shared<'_, A>,
) {
    let sizes = &ctx.sizes;
    let rows = sizes.group() * sizes.queries;
    let width = sizes.d_v + 2;
    let (batch, kv_head) = (kv / sizes.kv_heads, kv % sizes.kv_heads);
    let (head, query) = (
        kv_head * sizes.group() + row / sizes.queries,
        row % sizes.queries,
    );
    let parts = || {
        results
            .chunks_exact(rows * width)
            .map(|part| &part[row * width..][..width])
    };
    let sink = ctx.sink.map_or(f64::NEG_INFINITY, |sink| sink[head].into());
    let mut shift = sink * std::f64::consts::LOG2_E;
    for part in parts() {
        shift = shift.max(part[sizes.d_v].into());
    }
    let mut sum = 0.0;
    if shift > f64::NEG_INFINITY {
        sum = (sink * std::f64::consts::LOG2_E - shift).exp2();
    }
    line.fill(A::ZERO);
    for part in parts() {
        let own: f64 = part[sizes.d_v].into();
        let weights: f64 = part[sizes.d_v + 1].into();
        // Not the shift alone: it stays where it was if all scores are no numbers.
        if own == f64::NEG_INFINITY && weights == 0.0 {
            continue;
        }
        let factor = (own - shift).exp2();
        sum += factor * weights;
        for (to, &from) in line.iter_mut().zip(part) {
            *to += from * A::from_f64(factor);
        }
    }
    let log = if sum == 0.0 {
        f64::NEG_INFINITY
    } else {
        shift * std::f64::consts::LN_2 + sum.ln()
    };
    for to in line.iter_mut() {
        *to = if sum == 0.0 {
            A::ZERO
        } else {
            *to * A::from_f64(1.0 / sum)
        };
    }
    // SAFETY: each row is written once.
    unsafe {
        if sizes.d_v > 0 {
            out.write(batch, head, query, line);
        }
        let at = (batch * sizes.heads + head) * sizes.queries + query;
        lse.part(at, 1)[0] = A::from_f64(log);
    }
}

/// One thread's share.
struct Worker<'a, 'p, A: Real> {
    ctx: &'a Context<'p, A>,
    parts: usize,
    part: usize,
    results: Shared<'a, A>,
    tasks: &'a Tasks,
}

impl<A: Real> WithSimd for Worker<'_, '_, A> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self) {
        let Self {
            ctx,
            parts,
            part,
            results,
            tasks,
        } = self;
        let sizes = &ctx.sizes;
        let rows = sizes.group() * sizes.queries;
        let width = sizes.d_v + 2;
        // Copies of keys and values are read again soon, whatever the rows.
        let direct = |source: &Source<'_, A>| source.direct(0, 0, 0, sizes.keys).is_some();
        let visit = if rows == 1 && direct(&ctx.key) && direct(&ctx.value) {
            LONG
        } else {
            KEYS
        };
        let lens = [
            rows * sizes.d_k,
            rows * visit,
            visit,
            KEYS * sizes.d_k,
            KEYS * sizes.d_v,
        ];
        let mut scratch = Scratch::new(&lens);
        let [query, scores, line, keys, values] = scratch.pieces(lens);
        while let Some(run) = tasks.next() {
            for task in run {
                let (kv, index) = (task / parts, task % parts);
                let (batch, kv_head) = (kv / sizes.kv_heads, kv % sizes.kv_heads);
                // SAFETY: each task has a part of its own.
                let results = unsafe { results.part(task * rows * width, rows * width) };
                let (mut range, mut seen) = ((usize::MAX, 0), false);
                for row in 0..rows {
                    let head = kv_head * sizes.group() + row / sizes.queries;
                    let query = &mut query[row * sizes.d_k..(row + 1) * sizes.d_k];
                    ctx.query.read(batch, head, row % sizes.queries, 0, query);
                    for x in query {
                        *x *= ctx.query_factor();
                    }
                    let (first, end) = see(ctx, batch, row);
                    if first < end {
                        range = (range.0.min(first), range.1.max(end));
                        seen = true;
                    }
                    results[row * width..(row + 1) * width].fill(A::ZERO);
                    results[row * width + sizes.d_v] = -A::INFINITY;
                }
                if !seen {
                    continue;
                }
                let (mut from, end) = (range.0.max(index * part), range.1.min((index + 1) * part));
                while from < end {
                    let to = end.min(from + visit);
                    let count = to - from;
                    let key_rows = ctx.key.rows(batch, kv_head, from, count, sizes.d_k, keys);
                    let values = ctx
                        .value
                        .rows(batch, kv_head, from, count, sizes.d_v, values);
                    products::<S, A>(key_rows, count, query, rows, sizes.d_k, scores, visit);
                    for row in 0..rows {
                        soften::<S, A>(
                            ctx,
                            (batch, kv_head, row),
                            (from, to),
                            &mut scores[row * visit..(row + 1) * visit],
                            line,
                            &mut results[row * width..(row + 1) * width],
                        );
                    }
                    if sizes.d_v > 0 {
                        add_values::<S, A>(values, count, scores, visit, rows, sizes.d_v, results);
                    }
                    from = to;
                }
            }
        }
    }
}

/// First key and end of a row.
fn see<A: Real>(ctx: &Context<'_, A>, batch: usize, row: usize) -> (usize, usize) {
    let queries = ctx.sizes.queries;
    match &ctx.key_ranges {
        None => (0, ctx.sizes.keys),
        Some(ranges) => {
            let (first, end) = ranges.get(batch, row % queries, queries);
            (first as usize, end as usize)
        }
    }
}

/// The products of `count` keys with all rows of queries; scores of a row are `visit` long.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn products<S: Simd, A: Real>(
    keys: Rows<'_, A>,
    count: usize,
    query: &[A],
    rows: usize,
    dim: usize,
    scores: &mut [A],
    visit: usize,
) {
    let whole = dim - dim % lanes::<S, A>();
    let mut key = 0;
    while key < count {
        // Eight keys, or what is left one by one.
        let take = if key + SIDE <= count { SIDE } else { 1 };
        let group = keys.skip(key);
        for row in 0..rows {
            let query = &query[row * dim..(row + 1) * dim];
            let mut sums = [splat::<S, A>(A::ZERO); SIDE];
            if row == 0 {
                // In the order in which they lie: nothing reads memory faster. Asking ahead of time did not.
                for s in 0..take {
                    sums[s] = one_key::<S, A>(group.skip(s).data, &query[..whole]);
                }
            } else if take == SIDE {
                let half = group.skip(SIDE / 2);
                sums[..SIDE / 2].copy_from_slice(&four_keys(
                    group.data,
                    group.pitch,
                    &query[..whole],
                ));
                sums[SIDE / 2..].copy_from_slice(&four_keys(
                    half.data,
                    half.pitch,
                    &query[..whole],
                ));
            } else {
                sums[0] = one_key(group.data, &query[..whole]);
            }
            let mut totals = add_lanes::<S, A>(&sums);
            for s in 0..take {
                for at in whole..dim {
                    totals[s] += query[at] * group.data[s * group.pitch + at];
                }
            }
            scores[row * visit + key..][..take].copy_from_slice(&totals[..take]);
        }
        key += take;
    }
}

/// The products of a row of queries with one key, before the lanes are added up.
#[inline(always)]
fn one_key<S: Simd, A: Real>(key: &[A], query: &[A]) -> V<S, A> {
    const SUMS: usize = 4;
    let lanes = lanes::<S, A>();
    let mut sums = [splat::<S, A>(A::ZERO); SUMS];
    let mut at = 0;
    while at + SUMS * lanes <= query.len() {
        for n in 0..SUMS {
            let factor = load::<S, A>(query, at + n * lanes);
            sums[n] = mul_add(factor, load::<S, A>(key, at + n * lanes), sums[n]);
        }
        at += SUMS * lanes;
    }
    while at < query.len() {
        let factor = load::<S, A>(query, at);
        sums[0] = mul_add(factor, load::<S, A>(key, at), sums[0]);
        at += lanes;
    }
    (sums[0] + sums[1]) + (sums[2] + sums[3])
}

/// The products of a row of queries with four keys, before the lanes are added up. Four keys and two sums of each: as
/// many sums as hide the latency of an addition, and no more streams than the processor follows.
#[inline(always)]
fn four_keys<S: Simd, A: Real>(keys: &[A], pitch: usize, query: &[A]) -> [V<S, A>; SIDE / 2] {
    const FOUR: usize = SIDE / 2;
    let lanes = lanes::<S, A>();
    assert!(pitch.saturating_mul(FOUR - 1).saturating_add(query.len()) <= keys.len());
    let mut pairs = [[splat::<S, A>(A::ZERO); 2]; FOUR];
    let chunks = query.chunks_exact(2 * lanes);
    let rest = chunks.remainder();
    let mut at = 0;
    for chunk in chunks {
        for n in 0..2 {
            let factor = load::<S, A>(chunk, n * lanes);
            for s in 0..FOUR {
                // SAFETY: `at + 2 * lanes` is at most the query's length, for which the assertion has found room behind
                // each key's start.
                let key =
                    unsafe { A::vload_unaligned(keys.as_ptr().add(s * pitch + at + n * lanes)) };
                pairs[s][n] = mul_add(factor, key, pairs[s][n]);
            }
        }
        at += 2 * lanes;
    }
    if rest.len() >= lanes {
        let factor = load::<S, A>(rest, 0);
        for s in 0..FOUR {
            let key = load::<S, A>(keys, s * pitch + at);
            pairs[s][0] = mul_add(factor, key, pairs[s][0]);
        }
    }
    let mut sums = [splat::<S, A>(A::ZERO); FOUR];
    for s in 0..FOUR {
        sums[s] = pairs[s][0] + pairs[s][1];
    }
    sums
}

/// The sum of each vector's lanes.
#[inline(always)]
fn add_lanes<S: Simd, A: Real>(sums: &[V<S, A>; SIDE]) -> [A; SIDE] {
    let lanes = lanes::<S, A>();
    let mut totals = [A::ZERO; SIDE];
    if lanes < SIDE {
        for s in 0..SIDE {
            totals[s] = sums[s].reduce_add();
        }
        return totals;
    }
    let mut square = Square::new();
    for s in 0..SIDE {
        let mut wide = [A::ZERO; 2 * SIDE];
        store(&mut wide, 0, sums[s]);
        let (low, high) = wide.split_at(SIDE);
        for (to, (&low, &high)) in square.row_mut(s).iter_mut().zip(low.iter().zip(high)) {
            *to = if lanes > SIDE { low + high } else { low };
        }
    }
    A::transpose::<S>(&mut square);
    for lane in 0..SIDE {
        for (total, &x) in totals.iter_mut().zip(square.row(lane)) {
            *total += x;
        }
    }
    totals
}

/// Turns a row's products with keys `from..to` into weights, and scales down what was summed under a lower shift.
/// `result` is the row's sums of weighted values, its shift and its sum of weights.
#[inline(always)]
fn soften<S: Simd, A: Real>(
    ctx: &Context<'_, A>,
    (batch, kv_head, row): (usize, usize, usize),
    (from, to): (usize, usize),
    scores: &mut [A],
    line: &mut [A],
    result: &mut [A],
) {
    let sizes = &ctx.sizes;
    let lanes = lanes::<S, A>();
    let count = to - from;
    let (head, query) = (
        kv_head * sizes.group() + row / sizes.queries,
        row % sizes.queries,
    );
    let blocked = -A::INFINITY;
    // Whole vectors are computed; what lies past the last key counts for nothing.
    let scores = &mut scores[..count.next_multiple_of(lanes)];
    scores[count..].fill(blocked);
    if let Some(cap) = ctx.cap_factor() {
        for at in (0..count).step_by(lanes) {
            let score = tanh(load::<S, A>(scores, at)) * splat(cap);
            store(scores, at, score);
        }
    }
    if let Some(bias) = &ctx.bias {
        let line = &mut line[..count];
        bias.read(batch, head, query, from, line);
        for (score, &add) in scores.iter_mut().zip(&*line) {
            // Not the sum: an infinite product plus -inf is no number.
            *score = if add == blocked {
                blocked
            } else {
                *score + add * A::LOG2_E
            };
        }
    }
    if let Some(slopes) = ctx.alibi {
        let slope = A::from_f64(-f64::from(slopes[head]) * std::f64::consts::LOG2_E);
        let position = match &ctx.key_ranges {
            Some(ranges) => i64::from(ranges.position(batch, query, sizes.queries)),
            None => sizes.keys as i64 - sizes.queries as i64 + query as i64,
        };
        for (j, score) in scores[..count].iter_mut().enumerate() {
            *score += slope * A::from_i64((position - (from + j) as i64).abs());
        }
    }
    let (first, end) = see(ctx, batch, row);
    scores[..first.clamp(from, to) - from].fill(blocked);
    scores[end.clamp(from, to) - from..].fill(blocked);
    if let Some(view) = &ctx.blocked {
        let stride = view.layout.strides[3];
        let start = view.layout.row(batch, head, query) + from as isize * stride;
        for (j, score) in scores[..count].iter_mut().enumerate() {
            if view.data[(start + j as isize * stride) as usize] != 0 {
                *score = blocked;
            }
        }
    }

    let mut highest = splat::<S, A>(blocked);
    for at in (0..scores.len()).step_by(lanes) {
        highest = highest.max(load::<S, A>(scores, at));
    }
    let highest = highest.reduce_max();
    let (sums, state) = result.split_at_mut(sizes.d_v);
    if highest > state[0] {
        let mut factor = [A::ZERO; 64];
        store(
            &mut factor,
            0,
            A::exp2::<S, 1>([splat(state[0] - highest)])[0],
        );
        for sum in sums {
            *sum *= factor[0];
        }
        state[1] *= factor[0];
        state[0] = highest;
    }
    let lowest = splat::<S, A>(A::from_f64(-1e30));
    let shift = splat::<S, A>(state[0]).max(lowest);
    let mut total = splat::<S, A>(A::ZERO);
    for at in (0..scores.len()).step_by(lanes) {
        let weight = A::exp2::<S, 1>([load::<S, A>(scores, at) - shift])[0];
        store(scores, at, weight);
        total += weight;
    }
    state[1] += total.reduce_add();
    if let Some(dropping) = &ctx.dropout {
        let index = (batch * sizes.heads + head) * sizes.queries + query;
        let hash = dropping.dropout.row(index);
        let factor = A::from_f64(dropping.factor);
        for (j, weight) in scores[..count].iter_mut().enumerate() {
            let kept = mix(hash ^ (from + j) as u32) & 0x7FFF_FFFF >= dropping.threshold;
            *weight *= if kept { factor } else { A::ZERO };
        }
    }
}

/// Adds the weighted values of `count` keys to the sums of all rows; weights of a row are `visit` long.
#[inline(always)]
fn add_values<S: Simd, A: Real>(
    values: Rows<'_, A>,
    count: usize,
    weights: &[A],
    visit: usize,
    rows: usize,
    dim: usize,
    results: &mut [A],
) {
    let mut work = AddValues {
        values,
        count,
        weights,
        visit,
        dim,
        results,
        simd: PhantomData::<S>,
    };
    strips(rows, false, &mut work);
}

struct AddValues<'a, S, A> {
    values: Rows<'a, A>,
    count: usize,
    weights: &'a [A],
    visit: usize,
    dim: usize,
    results: &'a mut [A],
    simd: PhantomData<S>,
}

impl<S: Simd, A: Real> Strips for AddValues<'_, S, A> {
    #[inline(always)]
    fn strip<const R: usize>(&mut self, row: usize) {
        let (dim, lanes) = (self.dim, lanes::<S, A>());
        let mut column = 0;
        while column + lanes <= dim {
            // One row has registers for more vectors, and needs them to hide the latency of an addition.
            column += lanes
                * match (R, (dim - column) / lanes) {
                    (1, 8..) => self.add::<R, 8>(row, column),
                    (1, 4..) => self.add::<R, 4>(row, column),
                    (_, NV..) => self.add::<R, NV>(row, column),
                    _ => self.add::<R, 1>(row, column),
                };
        }
        for r in row..row + R {
            let weights = &self.weights[r * self.visit..];
            for c in column..dim {
                let mut sum = A::ZERO;
                for (j, &weight) in weights[..self.count].iter().enumerate() {
                    sum += weight * self.values.data[j * self.values.pitch + c];
                }
                self.results[r * (dim + 2) + c] += sum;
            }
        }
    }
}

impl<S: Simd, A: Real> AddValues<'_, S, A> {
    /// Adds one tile; returns its vectors.
    #[inline(always)]
    fn add<const R: usize, const N: usize>(&mut self, row: usize, column: usize) -> usize {
        let Self { values, visit, .. } = *self;
        let weights = &self.weights[row * visit..];
        let data = &values.data[column..];
        let tile = tile::<S, A, R, N>(weights, visit, 1, data, values.pitch, self.count);
        for r in 0..R {
            for n in 0..N {
                let at = (row + r) * (self.dim + 2) + column + n * lanes::<S, A>();
                add(self.results, at, tile[r][n], false);
            }
        }
        N
    }
}
