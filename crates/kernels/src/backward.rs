//! The backward pass at queries, keys and values: one visit to the keys for each block of queries, five products, or
//! four where weights were kept.
//!
//! A task is a few blocks of queries of one head; the tasks of a key head add to its sums in [turns](crate::turns), so
//! that neither the number of threads nor who comes first changes a bit.
//!
//! Dao, <https://arxiv.org/abs/2307.08691>.

use crate::block::{Block, Blocks, MAX_TILES};
use crate::context::{BLOCK, Context, KEYS};
use crate::erased::{Rows, Shared, Source, Sums, Target};
use crate::gradient::{Gradient, Prepare, PrepareMemory, Prepared, ROW, TileMemory};
use crate::held::Held;
use crate::micro::{NV, Strips, accumulate, strips, tile, width};
use crate::pack::{lanes_to_rows, pad_rows};
use crate::parallel::{self, Tasks};
use crate::problem::{check_len, check_shape};
use crate::real::{Real, call, lanes, load, store_new};
use crate::scores::{Place, Seen, scratch_len};
use crate::scratch::Scratch;
use crate::turns::{TEAM, Task, Turn, Turns, Watch};
use crate::{Element, Error, Gradients, KeptWeights, Problem, Saved, bias, sink};
use macerator::{Simd, WithSimd};
use std::marker::PhantomData;

/// Gradients of attention: at queries, keys, values, bias and sink, those that are wanted.
///
/// The problem must be the one that [`forward`](crate::forward) ran, dropout's seed included: weights are computed
/// again, unless they were [kept](KeptWeights).
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
///         kept: None,
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
    if let Some(kept) = saved.kept {
        kept.check(&ctx)?;
    }
    let incoming = Incoming {
        out: Source::new(&saved.out),
        lse: saved.lse,
        kept: saved.kept,
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
    pub(crate) kept: Option<&'a KeptWeights<A>>,
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
    let turns = Turns::new(ctx);
    let lanes = ctx.lanes();
    let (mut key_memory, mut value_memory) = (Vec::new(), Vec::new());
    let shares = Shares {
        query: wanted.query,
        key: wanted
            .key
            .map(|target| Held::new(target, lanes, &mut key_memory)),
        value: wanted
            .value
            .map(|target| Held::new(target, lanes, &mut value_memory)),
    };
    let flops = 5.0 * ctx.product_flops() * turns.team as f64;
    parallel::run(heads * turns.chain(), flops, |tasks| {
        let watch = Watch::over(&turns);
        ctx.isa.dispatch(Worker {
            ctx,
            saved,
            shares: &shares,
            turns: &turns,
            tasks,
        });
        watch.end();
    });
    for held in [shares.key, shares.value].into_iter().flatten() {
        held.finish();
    }
}

/// What the threads write.
struct Shares<'a, A: Real> {
    query: Option<Target<'a, A>>,
    key: Option<Held<'a, A>>,
    value: Option<Held<'a, A>>,
}

/// One thread's share.
struct Worker<'a, 'p, A: Real> {
    ctx: &'a Context<'p, A>,
    saved: &'a Incoming<'p, A>,
    shares: &'a Shares<'a, A>,
    turns: &'a Turns,
    tasks: &'a Tasks,
}

/// A worker's memory. What is kept of a block of queries is there once for each of a team.
struct Memory<'s, A> {
    tile: TileMemory<'s, A>,
    keys: &'s mut [A],
    values: &'s mut [A],
    lines: &'s mut [A],
    query: &'s mut [A],
    grad: &'s mut [A],
    grad_query: &'s mut [A],
    query_rows: &'s mut [A],
    grad_rows: &'s mut [A],
}

/// A block of queries of a team.
struct Member<'s, A> {
    block: &'s Block,
    prepared: Prepared<'s, A>,
    /// Queries and gradients of the output as rows, if gradients at keys and values are wanted.
    query_rows: Option<Rows<'s, A>>,
    grad_rows: Option<Rows<'s, A>>,
}

impl<A: Real> WithSimd for Worker<'_, '_, A> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self) {
        let Self {
            ctx,
            saved,
            shares,
            turns,
            tasks,
        } = self;
        let sizes = &ctx.sizes;
        let lanes = lanes::<S, A>();
        let tile = ctx.visit_keys() * ROW;
        let rows = turns.team * ctx.block_rows(width::<S, A>());
        let lens = [
            tile,
            tile,
            if ctx.softcap.is_some() { tile } else { 0 },
            scratch_len::<S, A>(ctx),
            ctx.visit_keys() * sizes.d_k,
            ctx.visit_keys() * sizes.d_v,
            2 * sizes.d_k.max(sizes.d_v),
            rows * sizes.d_k,
            rows * sizes.d_v,
            rows * sizes.d_k,
            rows * sizes.d_k.next_multiple_of(lanes),
            rows * sizes.d_v.next_multiple_of(lanes),
        ];
        let mut scratch = Scratch::new(&lens);
        let [
            weights,
            grads,
            slopes,
            extras,
            keys,
            values,
            lines,
            query,
            grad,
            grad_query,
            query_rows,
            grad_rows,
        ] = scratch.pieces(lens);
        let mut memory = Memory {
            tile: TileMemory {
                weights,
                grads,
                slopes,
                extras,
            },
            keys,
            values,
            lines,
            query,
            grad,
            grad_query,
            query_rows,
            grad_rows,
        };
        let mut seen = Blocks::default();
        let heads = sizes.batch * sizes.kv_heads;
        let threads = parallel::threads();
        while let Some(run) = tasks.next() {
            for number in run {
                let task = turns.task(number, heads, sizes.kv_heads, threads);
                let (first, count) = turns.blocks(task);
                let blocks = seen.get(ctx, task.batch, first, count, width::<S, A>());
                visit::<S, A>(ctx, saved, blocks, task, shares, turns, &mut memory);
            }
        }
    }
}

/// Visits the keys of a team of queries and adds up its gradients.
#[inline(always)]
fn visit<S: Simd, A: Real>(
    ctx: &Context<'_, A>,
    saved: &Incoming<'_, A>,
    blocks: &[Block],
    task: Task,
    shares: &Shares<'_, A>,
    turns: &Turns,
    memory: &mut Memory<'_, A>,
) {
    let sizes = &ctx.sizes;
    let (d_k, d_v, keys) = (sizes.d_k, sizes.d_v, sizes.keys);
    let (batch, kv_head) = (task.batch, task.kv_head);
    let head = kv_head * sizes.group() + task.member;
    let kv = batch * sizes.kv_heads + kv_head;
    // SAFETY: rows are reached in this task's turn at their block of keys, or if they are for it to clear.
    let mut key_sums = shares
        .key
        .map(|share| unsafe { share.sums(batch, kv_head) });
    // SAFETY: as above.
    let mut value_sums = shares
        .value
        .map(|share| unsafe { share.sums(batch, kv_head) });
    for slot in turns.unseen(task) {
        for sums in [&mut key_sums, &mut value_sums].into_iter().flatten() {
            sums.clear(slot * KEYS, keys.min((slot + 1) * KEYS));
        }
    }

    let width = width::<S, A>();
    let block_rows = ctx.block_rows(width);
    let mut fresh = [[true; MAX_TILES]; TEAM];
    let lines = &mut *memory.lines;
    let mut pieces = [
        (&mut *memory.query, block_rows * d_k),
        (&mut *memory.grad, block_rows * d_v),
        (
            &mut *memory.query_rows,
            block_rows * d_k.next_multiple_of(lanes::<S, A>()),
        ),
        (
            &mut *memory.grad_rows,
            block_rows * d_v.next_multiple_of(lanes::<S, A>()),
        ),
    ];
    let mut members: [Option<Member<'_, A>>; TEAM] = [const { None }; TEAM];
    for (member, block) in members.iter_mut().zip(blocks) {
        let [query, grad, query_rows, grad_rows] = pieces.each_mut().map(|(rest, len)| {
            let (piece, tail) = std::mem::take(rest).split_at_mut(*len);
            *rest = tail;
            piece
        });
        if block.range.0 == block.range.1 {
            continue;
        }
        let at = (batch, head);
        let prepared = call::<S, _>(Prepare {
            ctx,
            saved,
            block,
            at,
            factor: A::from_f64(ctx.gradient_factor()),
            through_cap: true,
            memory: PrepareMemory {
                query,
                grad,
                lines: &mut *lines,
            },
        });
        *member = Some(Member {
            block,
            prepared,
            query_rows: key_sums
                .is_some()
                .then(|| operand::<S, A>(&ctx.query, at, block, d_k, query_rows)),
            grad_rows: value_sums
                .is_some()
                .then(|| operand::<S, A>(&saved.grad_out, at, block, d_v, grad_rows)),
        });
    }

    let (first_slot, end_slot) = turns.span(task);
    for slot in first_slot..end_slot {
        let (from, to) = (slot * KEYS, keys.min((slot + 1) * KEYS));
        let count = to - from;
        let key_rows = ctx
            .key
            .near_rows(batch, kv_head, from, count, d_k, memory.keys);
        let value_rows = ctx
            .value
            .near_rows(batch, kv_head, from, count, d_v, memory.values);
        let sums = key_sums.is_some() || value_sums.is_some();
        let mut turn = sums.then(|| turns.turn(task, kv, slot));
        for (index, member) in members.iter().enumerate() {
            let Some(member) = member else { continue };
            let range = member.block.range;
            if range.0 >= to || range.1 <= from {
                continue;
            }
            let grad_query = shares
                .query
                .is_some()
                .then(|| &mut memory.grad_query[index * block_rows * d_k..][..block_rows * d_k])
                .map(|sums| (sums, &mut fresh[index]));
            meet::<S, A>(
                ctx,
                member,
                (batch, head),
                (from, to),
                (key_rows, value_rows),
                grad_query,
                (key_sums.as_mut(), value_sums.as_mut()),
                turn.as_mut(),
                &mut memory.tile,
            );
        }
        if let Some(mut turn) = turn {
            // A team may see keys on both sides of these only.
            if turn.take() {
                for sums in [&mut key_sums, &mut value_sums].into_iter().flatten() {
                    sums.clear(from, to);
                }
            }
            turn.pass();
        }
    }

    if let Some(target) = &shares.query {
        let ones = [A::ONE; BLOCK];
        for (index, block) in blocks.iter().enumerate() {
            let packed = &mut memory.grad_query[index * block_rows * d_k..];
            for tile in 0..block.tiles {
                if fresh[index][tile] {
                    packed[tile * d_k * width..(tile + 1) * d_k * width].fill(A::ZERO);
                }
            }
            // SAFETY: each block of queries belongs to one task.
            unsafe {
                lanes_to_rows::<S, A>(target, (batch, head), block, d_k, &ones, packed, lines);
            }
        }
    }
}

/// A block of queries meets a block of keys: adds to the gradients of both, to those of the keys in its turn. The gradient
/// at the queries comes with which of its tiles start here.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn meet<'s, S: Simd, A: Real>(
    ctx: &Context<'_, A>,
    member: &Member<'_, A>,
    (batch, head): (usize, usize),
    (from, to): (usize, usize),
    (keys, values): (Rows<'_, A>, Rows<'_, A>),
    mut grad_query: Option<(&mut [A], &mut [bool; MAX_TILES])>,
    (key_sums, value_sums): (Option<&mut Sums<'s, A>>, Option<&mut Sums<'s, A>>),
    turn: Option<&mut Turn<'_>>,
    memory: &mut TileMemory<'_, A>,
) {
    let sizes = &ctx.sizes;
    let (width, lanes) = (width::<S, A>(), lanes::<S, A>());
    let (d_k, d_v, count) = (sizes.d_k, sizes.d_v, to - from);
    let block = member.block;
    let mut visits = Visits::new();
    for tile in 0..block.tiles {
        let (first, end) = block.visit(tile, from, to);
        let (top, bottom) = (first - from, end - from);
        let more = ctx.has_extras() || ctx.dropout.is_some() || member.prepared.kept.is_some();
        let mut seen = false;
        for (first, end) in block.parts(tile, first, end, more) {
            seen |= first < end
                && call::<S, _>(Gradient {
                    ctx,
                    block,
                    prepared: &member.prepared,
                    place: Place {
                        batch,
                        head,
                        tile,
                        from: first,
                        to: end,
                    },
                    keys: keys.skip(first - from),
                    values: values.skip(first - from),
                    first_row: first - from,
                    memory,
                }) == Seen::Something;
        }
        if !seen {
            clear::<S, A>(memory, tile, 0, count);
            continue;
        }
        clear::<S, A>(memory, tile, 0, top);
        clear::<S, A>(memory, tile, bottom, count);
        visits.add(tile, top, bottom);
        if let Some((sums, fresh)) = &mut grad_query {
            accumulate::<S, A>(
                keys.skip(top).data,
                keys.pitch,
                d_k,
                &memory.grads[top * ROW + tile * width..],
                ROW,
                bottom - top,
                &mut sums[tile * d_k * width..(tile + 1) * d_k * width],
                fresh[tile],
            );
            fresh[tile] = false;
        }
    }
    let fresh = turn.is_some_and(Turn::take);
    for (sums, rows, tile, dim) in [
        (value_sums, member.grad_rows, &*memory.weights, d_v),
        (key_sums, member.query_rows, &*memory.grads, d_k),
    ] {
        if let (Some(sums), Some(rows)) = (sums, rows) {
            let mut work = AddProducts::<S, A> {
                block,
                visits: &visits,
                tile,
                operand: rows,
                dim: dim.next_multiple_of(lanes),
                first: from,
                sums,
                fresh,
                simd: PhantomData,
            };
            strips(count, false, &mut work);
        }
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
    rows: [(usize, usize); MAX_TILES],
}

impl Visits {
    fn new() -> Self {
        Self {
            rows: [(0, 0); MAX_TILES],
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

/// Adds to the sums of keys the products of a tile's rows with the block's operand rows.
struct AddProducts<'a, 's, S, A> {
    block: &'a Block,
    visits: &'a Visits,
    tile: &'a [A],
    operand: Rows<'a, A>,
    /// Columns of the sums.
    dim: usize,
    /// Row of the sums of the first key.
    first: usize,
    sums: &'a mut Sums<'s, A>,
    /// Whether the sums start here.
    fresh: bool,
    simd: PhantomData<S>,
}

impl<S: Simd, A: Real> Strips for AddProducts<'_, '_, S, A> {
    #[inline(always)]
    fn strip<const R: usize>(&mut self, row: usize) {
        let (width, lanes) = (width::<S, A>(), lanes::<S, A>());
        let (from, to) = self.visits.tiles(self.block.tiles, row, row + R);
        let (from, to) = (from * width, (to * width).min(self.block.rows));
        let first = self.first + row;
        let (from, to) = self.block.seers((from, to), (first, first + R));
        if from >= to {
            if self.fresh {
                self.sums.clear(first, first + R);
            }
            return;
        }
        let queries = (from, to);
        let mut column = 0;
        while column + NV * lanes <= self.dim {
            self.add::<R, NV>(row, queries, column);
            column += NV * lanes;
        }
        while column < self.dim {
            self.add::<R, 1>(row, queries, column);
            column += lanes;
        }
    }
}

impl<S: Simd, A: Real> AddProducts<'_, '_, S, A> {
    #[inline(always)]
    fn add<const R: usize, const N: usize>(
        &mut self,
        row: usize,
        (from, to): (usize, usize),
        column: usize,
    ) {
        let Rows { data, pitch } = self.operand;
        let (a, b) = (
            &self.tile[row * ROW + from..],
            &data[from * pitch + column..],
        );
        let tile = tile::<S, A, R, N>(a, ROW, 1, b, pitch, to - from);
        for r in 0..R {
            let sums = self.sums.room(self.first + row + r);
            for n in 0..N {
                let at = column + n * lanes::<S, A>();
                let sum = match self.fresh {
                    true => tile[r][n],
                    // SAFETY: whoever came first has written the row.
                    false => load::<S, A>(unsafe { sums.assume_init_ref() }, at) + tile[r][n],
                };
                store_new(sums, at, sum);
            }
        }
    }
}
