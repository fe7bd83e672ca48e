//! The backward pass at queries, keys and values: one visit to the keys for each block of queries, five products.
//!
//! A task is a key head with all query heads that share it, so that nothing is added by two threads. Where that makes
//! too few tasks, the queries are cut into chunks with sums of their own, added up afterwards in order. How many
//! depends on the shape alone: neither the number of threads nor who comes first changes a bit.
//!
//! Dao, <https://arxiv.org/abs/2307.08691>.

use crate::block::{Block, Blocks};
use crate::context::{BLOCK, Context, KEYS};
use crate::erased::{Rows, Shared, Source, Sums, Target};
use crate::gradient::{Gradient, Prepare, PrepareMemory, ROW, TileMemory};
use crate::micro::{NV, Strips, accumulate, strips, tile, width};
use crate::pack::{lanes_to_rows, pad_rows};
use crate::parallel::{self, Tasks};
use crate::problem::{check_len, check_shape};
use crate::real::{Real, call, lanes, load, store};
use crate::scores::{Place, Seen, scratch_len};
use crate::scratch::Scratch;
use crate::{Element, Error, Gradients, Problem, Saved, bias, sink};
use macerator::{Simd, WithSimd};
use std::marker::PhantomData;

/// Gradients of attention: at queries, keys, values, bias and sink, those that are wanted.
///
/// The problem must be the one that [`forward`](crate::forward) ran, dropout's seed included: weights are computed
/// again, not stored.
///
/// # Shapes
///
/// As [`Saved`] and [`Gradients`] say.
///
/// # Errors
///
/// As [`forward`](crate::forward), and if a gradient is wanted of a bias or sink that the problem does not have.
/// Nothing is written then.
///
/// # Example
///
/// Two keys with equal weights and values 1 and 3; the gradient of the output with respect to the second value is its
/// weight:
///
/// ```
/// use kernels::{Gradients, Problem, Saved, View, ViewMut};
///
/// let (q, k, v) = ([0.0_f32], [1.0, -1.0], [1.0, 3.0]);
/// let problem = Problem::new(
///     View::contiguous(&q, [1, 1, 1, 1])?,
///     View::contiguous(&k, [1, 1, 2, 1])?,
///     View::contiguous(&v, [1, 1, 2, 1])?,
/// );
/// let (mut out, mut lse) = ([0.0], [0.0]);
/// kernels::forward(&problem, ViewMut::contiguous(&mut out, [1, 1, 1, 1])?, &mut lse)?;
/// let (mut dq, mut dv) = ([0.0], [0.0; 2]);
/// kernels::backward(
///     &problem,
///     &Saved {
///         out: View::contiguous(&out, [1, 1, 1, 1])?,
///         lse: &lse,
///         grad_out: View::contiguous(&[1.0], [1, 1, 1, 1])?,
///         grad_lse: None,
///     },
///     Gradients {
///         query: Some(ViewMut::contiguous(&mut dq, [1, 1, 1, 1])?),
///         value: Some(ViewMut::contiguous(&mut dv, [1, 1, 2, 1])?),
///         ..Gradients::default()
///     },
/// )?;
/// assert_eq!(dv, [0.5, 0.5]);
/// assert_eq!(dq, [-1.0]);
/// # Ok::<(), kernels::Error>(())
/// ```
pub fn backward<T: Element>(
    problem: &Problem<T>,
    saved: &Saved<T>,
    grads: Gradients<T>,
) -> Result<(), Error> {
    let ctx = Context::new(problem)?;
    let sizes = ctx.sizes;
    check_shape("out", saved.out.shape(), sizes.out())?;
    check_shape("grad_out", saved.grad_out.shape(), sizes.out())?;
    check_len("lse", saved.lse.len(), sizes.rows())?;
    if let Some(grad_lse) = saved.grad_lse {
        check_len("grad_lse", grad_lse.len(), sizes.rows())?;
    }
    if let Some(query) = &grads.query {
        check_shape("grads.query", query.shape(), sizes.query())?;
    }
    if let Some(key) = &grads.key {
        check_shape("grads.key", key.shape(), sizes.key())?;
    }
    if let Some(value) = &grads.value {
        check_shape("grads.value", value.shape(), sizes.value())?;
    }
    if let Some(bias) = &grads.bias {
        let expected = problem.bias.map_or([0; 4], |bias| bias.shape());
        check_shape("grads.bias", bias.shape(), expected)?;
    }
    if let Some(sink) = &grads.sink {
        let expected = problem.sink.map_or(0, <[_]>::len);
        check_len("grads.sink", sink.len(), expected)?;
    }
    let incoming = Incoming {
        out: Source::new(&saved.out),
        lse: saved.lse,
        grad_out: Source::new(&saved.grad_out),
        grad_lse: saved.grad_lse,
    };
    let wanted = Wanted {
        query: grads.query.map(Target::new),
        key: grads.key.map(Target::new),
        value: grads.value.map(Target::new),
        bias: grads.bias.map(Target::new),
        sink: grads.sink.map(Shared::new),
    };
    T::Acc::backward(&ctx, &incoming, &wanted);
    Ok(())
}

/// [`Saved`] with its element type erased.
#[derive(Clone, Copy)]
pub struct Incoming<'a, A: Real> {
    pub(crate) out: Source<'a, A>,
    pub(crate) lse: &'a [A],
    pub(crate) grad_out: Source<'a, A>,
    pub(crate) grad_lse: Option<&'a [A]>,
}

/// [`Gradients`] with its element type erased.
pub struct Wanted<'a, A: Real> {
    pub(crate) query: Option<Target<'a, A>>,
    pub(crate) key: Option<Target<'a, A>>,
    pub(crate) value: Option<Target<'a, A>>,
    pub(crate) bias: Option<Target<'a, A>>,
    pub(crate) sink: Option<Shared<'a, A>>,
}

/// The backward pass of a checked problem.
pub(crate) fn run<A: Real>(ctx: &Context<'_, A>, saved: &Incoming<'_, A>, wanted: &Wanted<'_, A>) {
    if let Some(target) = &wanted.bias {
        bias::run(ctx, saved, target);
    }
    if let Some(target) = &wanted.sink {
        sink::run(ctx, saved, target);
    }
    let sizes = &ctx.sizes;
    let heads = sizes.batch * sizes.kv_heads;
    if heads == 0 || (wanted.query.is_none() && wanted.key.is_none() && wanted.value.is_none()) {
        return;
    }
    let items = sizes.group() * ctx.blocks();
    let chunks = chunks(heads, items);
    let lanes = ctx.isa.dispatch(Lanes::<A>(PhantomData));
    let key = wanted
        .key
        .map(|target| Partials::new(target, chunks, lanes));
    let value = wanted
        .value
        .map(|target| Partials::new(target, chunks, lanes));
    let (mut key, mut value) = (key, value);
    let flops = 5.0 * ctx.product_flops() * items.div_ceil(chunks) as f64;
    let worker = Shares {
        chunks,
        query: wanted.query,
        key: key.as_mut().map(Partials::share),
        value: value.as_mut().map(Partials::share),
    };
    parallel::run(heads * chunks, flops, |tasks| {
        ctx.isa.dispatch(Worker {
            ctx,
            saved,
            shares: &worker,
            tasks,
        });
    });
    for partials in [key, value].into_iter().flatten() {
        partials.finish();
    }
}

/// Vector length of an arithmetic type.
struct Lanes<A>(PhantomData<A>);

impl<A: Real> WithSimd for Lanes<A> {
    type Output = usize;

    #[inline(always)]
    fn with_simd<S: Simd>(self) -> usize {
        lanes::<S, A>()
    }
}

/// Into how many chunks the queries of a key head are cut: enough to make 16 tasks, but each of at least 8 blocks, as
/// every chunk has a copy of the sums.
fn chunks(heads: usize, items: usize) -> usize {
    16_usize.div_ceil(heads).min(items / 8).max(1)
}

/// Where the gradient at keys or values is summed up.
struct Partials<'a, A> {
    target: Target<'a, A>,
    chunks: usize,
    /// Whether chunk 0 is summed up in the target: its rows must be whole vectors of the arithmetic type.
    direct: bool,
    /// Row length of the copies.
    width: usize,
    copies: Vec<A>,
}

#[derive(Clone, Copy)]
struct PartialsShare<'a, A> {
    target: Target<'a, A>,
    direct: bool,
    copied: usize,
    width: usize,
    copies: Shared<'a, A>,
}

impl<'a, A: Real> Partials<'a, A> {
    fn new(target: Target<'a, A>, chunks: usize, lanes: usize) -> Self {
        let [batch, heads, rows, dim] = target.shape();
        let direct = target.is_direct() && dim.is_multiple_of(lanes);
        let width = dim.next_multiple_of(lanes);
        let copies = batch * heads * (chunks - usize::from(direct)) * rows * width;
        Self {
            target,
            chunks,
            direct,
            width,
            copies: vec![A::ZERO; copies],
        }
    }

    fn share(&mut self) -> PartialsShare<'_, A> {
        PartialsShare {
            target: self.target,
            direct: self.direct,
            copied: self.chunks - usize::from(self.direct),
            width: self.width,
            copies: Shared::new(&mut self.copies),
        }
    }

    /// Adds the copies up, in order, in the target.
    fn finish(self) {
        let [batch, heads, rows, dim] = self.target.shape();
        let copied = self.chunks - usize::from(self.direct);
        if copied == 0 || dim == 0 {
            return;
        }
        let len = rows * self.width;
        parallel::run(batch * heads, (copied * len) as f64, |tasks| {
            let mut line = vec![A::ZERO; dim];
            while let Some(run) = tasks.next() {
                for task in run {
                    let (batch, head) = (task / heads, task % heads);
                    for row in 0..rows {
                        // SAFETY: each task has a head of its own.
                        let to = unsafe { self.target.row(batch, head, row) };
                        let written = to.is_some();
                        let to = to.unwrap_or(&mut line);
                        for copy in 0..copied {
                            let from =
                                &self.copies[(task * copied + copy) * len + row * self.width..];
                            if copy == 0 && !self.direct {
                                to.copy_from_slice(&from[..dim]);
                            } else {
                                for (to, &from) in to.iter_mut().zip(from) {
                                    *to += from;
                                }
                            }
                        }
                        if !written {
                            // SAFETY: as above.
                            unsafe { self.target.write(batch, head, row, &line) };
                        }
                    }
                }
            }
        });
    }
}

impl<'a, A: Real> PartialsShare<'a, A> {
    /// The sums of a chunk of a key head, cleared.
    ///
    /// # Safety
    ///
    /// Nothing else may use the sums of this head and chunk while these live.
    unsafe fn sums(&self, (batch, head): (usize, usize), chunk: usize) -> Sums<'a, A> {
        let [_, heads, rows, _] = self.target.shape();
        let mut sums = if self.direct && chunk == 0 {
            // SAFETY: the caller promises that the head's rows are free.
            unsafe { Sums::of(&self.target, batch, head) }
        } else {
            let copy = (batch * heads + head) * self.copied + chunk - usize::from(self.direct);
            let len = rows * self.width;
            // SAFETY: the caller promises that this chunk's copy is free.
            Some(Sums::new(
                unsafe { self.copies.part(copy * len, len) },
                self.width,
            ))
        }
        // A target without elements is direct, but has no rows.
        .unwrap_or_else(|| Sums::new(&mut [], 0));
        sums.clear();
        sums
    }
}

/// What the threads write.
struct Shares<'a, A: Real> {
    chunks: usize,
    query: Option<Target<'a, A>>,
    key: Option<PartialsShare<'a, A>>,
    value: Option<PartialsShare<'a, A>>,
}

/// One thread's share.
struct Worker<'a, 'p, A: Real> {
    ctx: &'a Context<'p, A>,
    saved: &'a Incoming<'p, A>,
    shares: &'a Shares<'a, A>,
    tasks: &'a Tasks,
}

/// A worker's memory.
struct Memory<'s, A> {
    prepare: PrepareMemory<'s, A>,
    tile: TileMemory<'s, A>,
    /// Gradients at the queries as lanes, tile after tile.
    grad_query: &'s mut [A],
    keys: &'s mut [A],
    values: &'s mut [A],
    query_rows: &'s mut [A],
    grad_rows: &'s mut [A],
}

impl<A: Real> WithSimd for Worker<'_, '_, A> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self) {
        let Self {
            ctx,
            saved,
            shares,
            tasks,
        } = self;
        let sizes = &ctx.sizes;
        let lanes = lanes::<S, A>();
        let slopes = if ctx.softcap.is_some() { KEYS * ROW } else { 0 };
        let lens = [
            BLOCK * sizes.d_k,
            BLOCK * sizes.d_v,
            2 * sizes.d_k.max(sizes.d_v),
            KEYS * ROW,
            KEYS * ROW,
            slopes,
            scratch_len::<S, A>(),
            BLOCK * sizes.d_k,
            KEYS * sizes.d_k,
            KEYS * sizes.d_v,
            BLOCK * sizes.d_k.next_multiple_of(lanes),
            BLOCK * sizes.d_v.next_multiple_of(lanes),
        ];
        let mut scratch = Scratch::new(&lens);
        let [
            query,
            grad,
            lines,
            weights,
            grads,
            slopes,
            extras,
            grad_query,
            keys,
            values,
            query_rows,
            grad_rows,
        ] = scratch.pieces(lens);
        let mut memory = Memory {
            prepare: PrepareMemory { query, grad, lines },
            tile: TileMemory {
                weights,
                grads,
                slopes,
                extras,
            },
            grad_query,
            keys,
            values,
            query_rows,
            grad_rows,
        };
        let mut seen = Blocks::default();
        let (chunks, blocks) = (shares.chunks, ctx.blocks());
        let items = sizes.group() * blocks;
        while let Some(run) = tasks.next() {
            for task in run {
                // The last rows first: under a causal mask they are the longest.
                let chunk = chunks - 1 - task % chunks;
                let kv = (
                    task / chunks / sizes.kv_heads,
                    task / chunks % sizes.kv_heads,
                );
                // SAFETY: each task has a chunk of a head of its own.
                let mut key_sums = shares.key.map(|share| unsafe { share.sums(kv, chunk) });
                // SAFETY: as above.
                let mut value_sums = shares.value.map(|share| unsafe { share.sums(kv, chunk) });
                for item in chunk * items / chunks..(chunk + 1) * items / chunks {
                    let at = (kv.0, kv.1 * sizes.group() + item / blocks);
                    let block = seen.get(ctx, at.0, item % blocks * BLOCK, width::<S, A>());
                    visit::<S, A>(
                        ctx,
                        saved,
                        block,
                        at,
                        shares.query.is_some(),
                        key_sums.as_mut(),
                        value_sums.as_mut(),
                        &mut memory,
                    );
                    if let Some(target) = &shares.query {
                        let ones = [A::ONE; BLOCK];
                        // SAFETY: each block of queries belongs to one task.
                        unsafe {
                            lanes_to_rows::<S, A>(
                                target,
                                at,
                                block,
                                sizes.d_k,
                                &ones,
                                memory.grad_query,
                                memory.prepare.lines,
                            );
                        }
                    }
                }
            }
        }
    }
}

/// Visits the keys of a block of queries and adds up its gradients.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn visit<S: Simd, A: Real>(
    ctx: &Context<'_, A>,
    saved: &Incoming<'_, A>,
    block: &Block,
    (batch, head): (usize, usize),
    want_query: bool,
    mut key_sums: Option<&mut Sums<'_, A>>,
    mut value_sums: Option<&mut Sums<'_, A>>,
    memory: &mut Memory<'_, A>,
) {
    let sizes = &ctx.sizes;
    let (width, lanes) = (width::<S, A>(), lanes::<S, A>());
    let (d_k, d_v) = (sizes.d_k, sizes.d_v);
    let kv_head = ctx.kv_head(head);
    let factor = A::from_f64(ctx.gradient_factor());
    if want_query {
        memory.grad_query[..block.tiles * width * d_k].fill(A::ZERO);
    }
    let (mut from, end) = block.range;
    if from == end {
        return;
    }
    let mut prepare = memory.prepare.reborrow();
    let prepared = call::<S, _>(Prepare {
        ctx,
        saved,
        block,
        at: (batch, head),
        factor,
        through_cap: true,
        memory: &mut prepare,
    });
    let at = (batch, head);
    let query_rows = key_sums
        .is_some()
        .then(|| operand::<S, A>(&ctx.query, at, block, d_k, memory.query_rows));
    let grad_rows = value_sums
        .is_some()
        .then(|| operand::<S, A>(&saved.grad_out, at, block, d_v, memory.grad_rows));
    while from < end {
        let to = end.min(from + KEYS);
        let count = to - from;
        let keys = ctx
            .key
            .near_rows(batch, kv_head, from, count, d_k, memory.keys);
        let values = ctx
            .value
            .near_rows(batch, kv_head, from, count, d_v, memory.values);
        let mut visits = Visits::new();
        for tile in 0..block.tiles {
            let (first, end) = block.visit(tile, from, to);
            let (top, bottom) = (first - from, end - from);
            let place = Place {
                batch,
                head,
                tile,
                from: first,
                to: end,
            };
            let tile_keys = keys.skip(top);
            let seen = first < end
                && call::<S, _>(Gradient {
                    ctx,
                    block,
                    prepared: &prepared,
                    place,
                    keys: tile_keys,
                    values: values.skip(top),
                    first_row: top,
                    memory: &mut memory.tile,
                }) == Seen::Something;
            if !seen {
                clear::<S, A>(&mut memory.tile, tile, 0, count);
                continue;
            }
            clear::<S, A>(&mut memory.tile, tile, 0, top);
            clear::<S, A>(&mut memory.tile, tile, bottom, count);
            visits.add(tile, top, bottom);
            if want_query {
                accumulate::<S, A>(
                    tile_keys.data,
                    tile_keys.pitch,
                    d_k,
                    &memory.tile.grads[top * ROW + tile * width..],
                    ROW,
                    bottom - top,
                    &mut memory.grad_query[tile * d_k * width..(tile + 1) * d_k * width],
                    false,
                );
            }
        }
        let place = |rows: Rows<'_, A>, dim: usize| (rows.pitch, dim.next_multiple_of(lanes));
        if let (Some(sums), Some(rows)) = (&mut value_sums, grad_rows) {
            let (pitch, dim) = place(rows, d_v);
            add_products::<S, A>(
                block,
                &visits,
                count,
                memory.tile.weights,
                rows.data,
                pitch,
                dim,
                from,
                sums,
            );
        }
        if let (Some(sums), Some(rows)) = (&mut key_sums, query_rows) {
            let (pitch, dim) = place(rows, d_k);
            add_products::<S, A>(
                block,
                &visits,
                count,
                memory.tile.grads,
                rows.data,
                pitch,
                dim,
                from,
                sums,
            );
        }
        from = to;
    }
}

/// Rows of a block where they lie, if they are whole vectors and none is to be left out; else a padded copy.
#[inline(always)]
fn operand<'s, S: Simd, A: Real>(
    source: &Source<'s, A>,
    (batch, head): (usize, usize),
    block: &Block,
    dim: usize,
    copy: &'s mut [A],
) -> Rows<'s, A> {
    if block.all_live
        && dim.is_multiple_of(lanes::<S, A>())
        && let Some(rows) = source.direct(batch, head, block.start, block.rows)
        && !rows.crowd(dim)
    {
        return rows;
    }
    pad_rows::<S, A>(source, (batch, head), block, dim, copy);
    Rows {
        data: copy,
        pitch: dim.next_multiple_of(lanes::<S, A>()),
    }
}

/// Zeroes rows `from..to` of a tile.
#[inline(always)]
fn clear<S: Simd, A: Real>(memory: &mut TileMemory<'_, A>, tile: usize, from: usize, to: usize) {
    let width = width::<S, A>();
    for row in from..to {
        let at = row * ROW + tile * width;
        memory.weights[at..at + width].fill(A::ZERO);
        memory.grads[at..at + width].fill(A::ZERO);
    }
}

/// Which rows of each tile of a block were visited.
struct Visits {
    rows: [(usize, usize); crate::block::MAX_TILES],
}

impl Visits {
    fn new() -> Self {
        Self {
            rows: [(0, 0); crate::block::MAX_TILES],
        }
    }

    fn add(&mut self, tile: usize, from: usize, to: usize) {
        self.rows[tile] = (from, to);
    }

    /// The tiles from the first to the last that visited one of the rows `from..to`.
    #[inline(always)]
    fn tiles(&self, tiles: usize, from: usize, to: usize) -> (usize, usize) {
        let (mut first, mut end) = (0, 0);
        for (tile, rows) in self.rows[..tiles].iter().enumerate() {
            if rows.0 < to && rows.1 > from {
                if end == 0 {
                    first = tile;
                }
                end = tile + 1;
            }
        }
        (first, end)
    }
}

/// Adds to the sums of keys `first..` the products of a tile's rows with the block's operand rows.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn add_products<S: Simd, A: Real>(
    block: &Block,
    visits: &Visits,
    count: usize,
    tile_rows: &[A],
    operand: &[A],
    pitch: usize,
    dim: usize,
    first: usize,
    sums: &mut Sums<'_, A>,
) {
    let lanes = lanes::<S, A>();
    let mut work = AddProducts {
        block,
        visits,
        tile_rows,
        operand,
        pitch,
        column: 0,
        pair: true,
        first,
        sums,
        simd: PhantomData::<S>,
    };
    while work.column < dim {
        work.pair = work.column + NV * lanes <= dim;
        strips(count, false, &mut work);
        work.column += if work.pair { NV * lanes } else { lanes };
    }
}

struct AddProducts<'a, 's, S, A> {
    block: &'a Block,
    visits: &'a Visits,
    tile_rows: &'a [A],
    operand: &'a [A],
    pitch: usize,
    /// Column of the sums, and whether [`NV`] vectors from there on are done, or one.
    column: usize,
    pair: bool,
    /// Row of the sums of the first key.
    first: usize,
    sums: &'a mut Sums<'s, A>,
    simd: PhantomData<S>,
}

impl<S: Simd, A: Real> Strips for AddProducts<'_, '_, S, A> {
    #[inline(always)]
    fn strip<const R: usize>(&mut self, row: usize) {
        let width = width::<S, A>();
        let (from, to) = self.visits.tiles(self.block.tiles, row, row + R);
        let (from, to) = (from * width, (to * width).min(self.block.rows));
        if from >= to {
            return;
        }
        let a = &self.tile_rows[row * ROW + from..];
        let b = &self.operand[from * self.pitch + self.column..];
        if self.pair {
            self.add::<R, NV>(a, b, to - from, row);
        } else {
            self.add::<R, 1>(a, b, to - from, row);
        }
    }
}

impl<S: Simd, A: Real> AddProducts<'_, '_, S, A> {
    #[inline(always)]
    fn add<const R: usize, const N: usize>(&mut self, a: &[A], b: &[A], depth: usize, row: usize) {
        let tile = tile::<S, A, R, N>(a, ROW, 1, b, self.pitch, depth);
        for r in 0..R {
            let sums = self.sums.row(self.first + row + r);
            for n in 0..N {
                let at = self.column + n * lanes::<S, A>();
                let sum = load::<S, A>(sums, at) + tile[r][n];
                store(sums, at, sum);
            }
        }
    }
}
