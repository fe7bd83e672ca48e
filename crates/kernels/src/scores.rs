//! What lies between products and softmax: softcap, bias, ALiBi, masks; and after it: dropout.

use crate::block::Block;
use crate::context::{BLOCK, Context, Dropping, KEYS};
use crate::dropout::mix;
use crate::micro::{NV, width};
use crate::real::{Real, V, lanes, load, mul_add, splat, store, tanh};
use macerator::{Simd, WithSimd};

/// Place of a tile of scores: keys `from..to` of one head's tile of queries.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) batch: usize,
    pub(crate) head: usize,
    pub(crate) tile: usize,
    pub(crate) from: usize,
    pub(crate) to: usize,
}

/// What bias and blocked keys add to a tile of scores.
enum Added<'s, A> {
    Nothing,
    /// One number a key.
    Keys(&'s [A]),
    /// One number a key and query.
    Scores(&'s [A]),
}

/// Whether a tile holds any score.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Every key is blocked for every query.
    Nothing,
    Something,
}

/// Working memory of [`Adjust`]: room for one tile of scores.
pub(crate) fn scratch_len<S: Simd, A: Real>(ctx: &Context<'_, A>) -> usize {
    ctx.visit_keys() * width::<S, A>()
}

/// Turns products into scores in powers of 2, `-inf` where blocked, in place: `scores` has one row of queries a key,
/// `pitch` apart. With `slopes`, laid out alike, also writes the softcap's derivative there.
///
/// The order is the one that [`Problem`](crate::Problem) states.
pub(crate) struct Adjust<'a, 'p, A: Real> {
    pub(crate) ctx: &'a Context<'p, A>,
    pub(crate) block: &'a Block,
    pub(crate) place: Place,
    pub(crate) scores: &'a mut [A],
    pub(crate) pitch: usize,
    pub(crate) slopes: Option<&'a mut [A]>,
    /// Room for one tile of scores.
    pub(crate) scratch: &'a mut [A],
}

impl<A: Real> WithSimd for Adjust<'_, '_, A> {
    type Output = Seen;

    #[inline(always)]
    fn with_simd<S: Simd>(self) -> Seen {
        adjust::<S, A>(self)
    }
}

#[inline(always)]
fn adjust<S: Simd, A: Real>(work: Adjust<'_, '_, A>) -> Seen {
    let Adjust {
        ctx,
        block,
        place,
        scores,
        pitch,
        mut slopes,
        scratch,
    } = work;
    let (width, lanes) = (width::<S, A>(), lanes::<S, A>());
    let rows = place.to - place.from;
    let added = match gather::<S, A>(ctx, block, place, scratch) {
        Some(added) => added,
        None => return Seen::Nothing,
    };

    if let Some(cap) = ctx.cap_factor() {
        let one = splat::<S, A>(A::ONE);
        for row in 0..rows {
            for n in 0..NV {
                let at = row * pitch + n * lanes;
                let t = tanh(load::<S, A>(scores, at));
                store(scores, at, t * splat(cap));
                if let Some(slopes) = &mut slopes {
                    store(slopes, at, one - t * t);
                }
            }
        }
    }

    let blocked = splat::<S, A>(-A::INFINITY);
    let log2_e = splat::<S, A>(A::LOG2_E);
    match added {
        Added::Nothing => {}
        Added::Keys(keys) => {
            for row in 0..rows {
                let add = splat::<S, A>(keys[row]);
                for n in 0..NV {
                    let at = row * pitch + n * lanes;
                    let score = mul_add(add, log2_e, load::<S, A>(scores, at));
                    store(scores, at, add.eq(blocked).select(blocked, score));
                }
            }
        }
        Added::Scores(sums) => {
            for row in 0..rows {
                for n in 0..NV {
                    let at = row * pitch + n * lanes;
                    let add = load::<S, A>(sums, row * width + n * lanes);
                    let score = mul_add(add, log2_e, load::<S, A>(scores, at));
                    // Not the sum: an infinite product plus -inf is no number.
                    store(scores, at, add.eq(blocked).select(blocked, score));
                }
            }
        }
    }

    let lane = place.tile * width;
    if let Some(slopes) = ctx.alibi {
        let slope = splat::<S, A>(A::from_f64(
            -f64::from(slopes[place.head]) * std::f64::consts::LOG2_E,
        ));
        // Distances from the tile's first key, which are small enough to be exact.
        let mut distance = [A::ZERO; BLOCK];
        for l in 0..width.min(block.rows - lane) {
            let row = block.start + lane + l;
            let position = match &ctx.key_ranges {
                Some(ranges) => i64::from(ranges.position(place.batch, row, ctx.sizes.queries)),
                None => ctx.sizes.keys as i64 - ctx.sizes.queries as i64 + row as i64,
            };
            distance[l] = A::from_i64(position - place.from as i64);
        }
        for row in 0..rows {
            let key = splat::<S, A>(A::from_i64(row as i64));
            for n in 0..NV {
                let at = row * pitch + n * lanes;
                let right = load::<S, A>(&distance, n * lanes) - key;
                let distance = right.max(key - load::<S, A>(&distance, n * lanes));
                store(
                    scores,
                    at,
                    mul_add(slope, distance, load::<S, A>(scores, at)),
                );
            }
        }
    }

    if block.is_cut(place.tile, place.from, place.to) {
        let (mut first, mut end) = ([A::ZERO; BLOCK], [A::ZERO; BLOCK]);
        for l in 0..width {
            // A row that sees nothing has an empty range, a lane past the last row too.
            if let (Some(&from), Some(&to)) = (block.first.get(lane + l), block.end.get(lane + l)) {
                let relative = |key: u32| {
                    A::from_i64((i64::from(key) - place.from as i64).clamp(0, rows as i64))
                };
                (first[l], end[l]) = (relative(from), relative(to));
            }
        }
        for row in 0..rows {
            let key = splat::<S, A>(A::from_i64(row as i64));
            for n in 0..NV {
                let at = row * pitch + n * lanes;
                let first = load::<S, A>(&first, n * lanes);
                let end = load::<S, A>(&end, n * lanes);
                let sees = key.ge(first) & key.lt(end);
                store(scores, at, sees.select(load::<S, A>(scores, at), blocked));
            }
        }
    }
    Seen::Something
}

/// Collects bias and blocked keys of a tile; nothing if all of it is blocked.
#[inline(always)]
fn gather<'s, S: Simd, A: Real>(
    ctx: &Context<'_, A>,
    block: &Block,
    place: Place,
    scratch: &'s mut [A],
) -> Option<Added<'s, A>> {
    let Place {
        batch,
        head,
        from,
        to,
        ..
    } = place;
    let width = width::<S, A>();
    let rows = to - from;
    let lane = place.tile * width;
    let count = width.min(block.rows - lane);
    let bias_by_key = ctx.bias.is_none_or(|bias| bias.strides()[2] == 0);

    // How many of the tile's keys are blocked, before anything is written.
    let mut by_key = bias_by_key;
    let mut blocked = None;
    if let Some(view) = &ctx.blocked {
        let mut bytes = [0_u8; KEYS];
        let one_row = view.layout.strides[2] == 0;
        let lines = if one_row { 1 } else { count };
        let (mut any, mut all) = (false, true);
        for l in 0..lines {
            if one_row || block.live[lane + l] {
                let bytes = read_bytes(
                    view,
                    batch,
                    head,
                    block.start + lane + l,
                    from,
                    &mut bytes[..rows],
                );
                let set = bytes
                    .iter()
                    .map(|&byte| usize::from(byte != 0))
                    .sum::<usize>();
                any |= set > 0;
                all &= set == rows;
            }
        }
        if all {
            return None;
        }
        if any {
            blocked = Some(view);
            by_key &= one_row;
        }
    }
    if ctx.bias.is_none() && blocked.is_none() {
        return Some(Added::Nothing);
    }

    if by_key {
        let keys = &mut scratch[..rows];
        match &ctx.bias {
            Some(bias) => bias.read(batch, head, 0, from, keys),
            None => keys.fill(A::ZERO),
        }
        if let Some(view) = blocked {
            let mut bytes = [0_u8; KEYS];
            let bytes = read_bytes(view, batch, head, 0, from, &mut bytes[..rows]);
            for (key, &byte) in keys.iter_mut().zip(bytes) {
                if byte != 0 {
                    *key = -A::INFINITY;
                }
            }
        }
        return Some(Added::Keys(keys));
    }

    let sums = &mut scratch[..rows * width];
    let (mut line, mut bytes) = ([A::ZERO; KEYS], [0_u8; KEYS]);
    for l in 0..width {
        // What is added to rows that see nothing must not be read: it may be anything.
        let live = l < count && block.live[lane + l];
        match &ctx.bias {
            Some(bias) if live => {
                bias.read(batch, head, block.start + lane + l, from, &mut line[..rows]);
            }
            _ => line[..rows].fill(A::ZERO),
        }
        if let Some(view) = blocked.filter(|_| live) {
            let bytes = read_bytes(
                view,
                batch,
                head,
                block.start + lane + l,
                from,
                &mut bytes[..rows],
            );
            for (x, &byte) in line.iter_mut().zip(bytes) {
                if byte != 0 {
                    *x = -A::INFINITY;
                }
            }
        }
        for (sums, &x) in sums.chunks_exact_mut(width).zip(&line[..rows]) {
            sums[l] = x;
        }
    }
    Some(Added::Scores(sums))
}

/// The bytes of a row from a key on: where they lie if they are adjacent, else copied.
#[inline(always)]
fn read_bytes<'b>(
    view: &crate::View<'b, u8>,
    batch: usize,
    head: usize,
    row: usize,
    key: usize,
    copy: &'b mut [u8],
) -> &'b [u8] {
    let stride = view.layout.strides[3];
    let start = view.layout.row(batch, head, row) + key as isize * stride;
    if stride == 1 {
        return &view.data[start as usize..start as usize + copy.len()];
    }
    for (k, byte) in copy.iter_mut().enumerate() {
        *byte = view.data[(start + k as isize * stride) as usize];
    }
    copy
}

/// The factor of each weight of one key under dropout: 0, or what makes up for the dropped.
///
/// `hashes` are those of the tile's rows.
#[inline(always)]
pub(crate) fn keep<S: Simd, A: Real>(
    dropping: &Dropping,
    hashes: &[u32; BLOCK],
    tile: usize,
    key: usize,
) -> [V<S, A>; NV] {
    let (width, lanes) = (width::<S, A>(), lanes::<S, A>());
    let mut factors = [A::ZERO; BLOCK];
    let factor = A::from_f64(dropping.factor);
    let hashes = &hashes[tile * width..(tile + 1) * width];
    // A plain loop: within a kernel the compiler vectorises it.
    for (to, &hash) in factors.iter_mut().zip(hashes) {
        let kept = mix(hash ^ key as u32) & 0x7FFF_FFFF >= dropping.threshold;
        *to = if kept { factor } else { A::ZERO };
    }
    let mut vectors = [splat::<S, A>(A::ZERO); NV];
    for n in 0..NV {
        vectors[n] = load::<S, A>(&factors, n * lanes);
    }
    vectors
}

/// The rows' part of the dropout hash.
#[inline(always)]
pub(crate) fn hashes<A: Real>(
    ctx: &Context<'_, A>,
    block: &Block,
    batch: usize,
    head: usize,
) -> [u32; BLOCK] {
    let mut hashes = [0; BLOCK];
    if let Some(dropping) = &ctx.dropout {
        let row = (batch * ctx.sizes.heads + head) * ctx.sizes.queries + block.start;
        for (r, hash) in hashes[..block.rows].iter_mut().enumerate() {
            *hash = dropping.dropout.row(row + r);
        }
    }
    hashes
}
