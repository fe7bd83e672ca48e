//! The gradient at the bias, summed over the axes along which it broadcasts.
//!
//! A pass of its own: each task owns a part of the bias and visits, in order, every block of queries and keys that the
//! part was added to. Nothing is summed by two threads and nothing of the size of all scores is stored, unless the
//! bias itself has it. The price is two of the main pass's five products, done once more.

use crate::backward::Incoming;
use crate::block::Blocks;
use crate::context::{BLOCK, Context, KEYS};
use crate::erased::Target;
use crate::gradient::{Gradient, Prepare, PrepareMemory, ROW, TileMemory};
use crate::micro::width;
use crate::parallel::{self, Tasks};
use crate::real::{Real, call};
use crate::scores::{Place, Seen, scratch_len};
use crate::scratch::Scratch;
use macerator::{Simd, WithSimd};
use std::ops::Range;

/// Keys of a part of a bias that has a column a key. Several visits, so that preparing a block of queries pays.
const PART: usize = 8 * KEYS;

/// Computes the gradient at the bias.
pub(crate) fn run<A: Real>(ctx: &Context<'_, A>, saved: &Incoming<'_, A>, target: &Target<'_, A>) {
    let parts = Parts::new(target.shape());
    let sizes = &ctx.sizes;
    let len = parts.len();
    let visits = sizes.batch * sizes.heads * ctx.blocks();
    let flops = 2.0 * ctx.product_flops() * visits as f64 / len.max(1) as f64;
    parallel::run(len, flops, |tasks| {
        ctx.isa.dispatch(Worker {
            ctx,
            saved,
            target,
            parts: &parts,
            tasks,
        });
    });
}

/// How the bias is cut: a part is one batch index, one head, and a block of rows and columns.
struct Parts {
    shape: [usize; 4],
    row_parts: usize,
    column_parts: usize,
}

impl Parts {
    fn new(shape: [usize; 4]) -> Self {
        Self {
            shape,
            row_parts: shape[2].div_ceil(BLOCK),
            column_parts: shape[3].div_ceil(PART),
        }
    }

    fn len(&self) -> usize {
        self.shape[0] * self.shape[1] * self.row_parts * self.column_parts
    }
}

/// What an index of a broadcast axis stands for: all of it where the axis has size 1.
fn spread(index: usize, size: usize, full: usize) -> Range<usize> {
    if size == 1 { 0..full } else { index..index + 1 }
}

struct Worker<'a, 'p, A: Real> {
    ctx: &'a Context<'p, A>,
    saved: &'a Incoming<'p, A>,
    target: &'a Target<'a, A>,
    parts: &'a Parts,
    tasks: &'a Tasks,
}

impl<A: Real> WithSimd for Worker<'_, '_, A> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self) {
        let Self {
            ctx,
            saved,
            target,
            parts,
            tasks,
        } = self;
        let sizes = &ctx.sizes;
        let width = width::<S, A>();
        let [batches, heads, rows, columns] = parts.shape;
        let (part_rows, part_columns) = (rows.min(BLOCK), columns.min(PART));
        let (block_rows, visit_keys) = (ctx.block_rows(width), ctx.visit_keys());
        let lens = [
            block_rows * sizes.d_k,
            block_rows * sizes.d_v,
            2 * sizes.d_k.max(sizes.d_v),
            visit_keys * ROW,
            visit_keys * ROW,
            scratch_len::<S, A>(ctx),
            visit_keys * sizes.d_k,
            visit_keys * sizes.d_v,
            part_rows * part_columns,
        ];
        let mut scratch = Scratch::new(&lens);
        let [
            query,
            grad,
            lines,
            weights,
            grads,
            extras,
            keys,
            values,
            sums,
        ] = scratch.pieces(lens);
        let mut tile_memory = TileMemory {
            weights,
            grads,
            slopes: &mut [],
            extras,
        };
        let mut seen = Blocks::default();
        while let Some(run) = tasks.next() {
            for task in run {
                let (task, column_part) = (task / parts.column_parts, task % parts.column_parts);
                let (task, row_part) = (task / parts.row_parts, task % parts.row_parts);
                let (bias_batch, bias_head) = (task / heads, task % heads);
                sums.fill(A::ZERO);
                let first_column = column_part * PART;
                let (mut left, mut right) = (first_column, (first_column + PART).min(columns));
                if columns == 1 {
                    (left, right) = (0, sizes.keys);
                }
                let blocks = spread(row_part, rows, ctx.blocks());
                for batch in spread(bias_batch, batches, sizes.batch) {
                    for head in spread(bias_head, heads, sizes.heads) {
                        for start in blocks.clone() {
                            let block = &seen.get(ctx, batch, start, 1, width)[0];
                            let (mut from, end) =
                                (block.range.0.max(left), block.range.1.min(right));
                            if from >= end {
                                continue;
                            }
                            let prepared = call::<S, _>(Prepare {
                                ctx,
                                saved,
                                block,
                                at: (batch, head),
                                factor: A::ONE,
                                through_cap: false,
                                memory: PrepareMemory {
                                    query: &mut *query,
                                    grad: &mut *grad,
                                    lines: &mut *lines,
                                },
                            });
                            let kv_head = ctx.kv_head(head);
                            while from < end {
                                let to = end.min(from + KEYS);
                                let key_rows =
                                    ctx.key
                                        .rows(batch, kv_head, from, to - from, sizes.d_k, keys);
                                let value_rows = ctx.value.rows(
                                    batch,
                                    kv_head,
                                    from,
                                    to - from,
                                    sizes.d_v,
                                    values,
                                );
                                for tile in 0..block.tiles {
                                    let (first, end) = block.visit(tile, from, to);
                                    let place = Place {
                                        batch,
                                        head,
                                        tile,
                                        from: first,
                                        to: end,
                                    };
                                    if first == end
                                        || call::<S, _>(Gradient {
                                            ctx,
                                            block,
                                            prepared: &prepared,
                                            place,
                                            keys: key_rows.skip(first - from),
                                            values: value_rows.skip(first - from),
                                            first_row: 0,
                                            memory: &mut tile_memory,
                                        }) == Seen::Nothing
                                    {
                                        continue;
                                    }
                                    for key in first..end {
                                        let column = if columns == 1 { 0 } else { key - left };
                                        let lanes = width.min(block.rows - tile * width);
                                        let from = &tile_memory.grads
                                            [(key - first) * ROW + tile * width..][..lanes];
                                        for (lane, &x) in from.iter().enumerate() {
                                            let row =
                                                if rows == 1 { 0 } else { tile * width + lane };
                                            sums[row * part_columns + column] += x;
                                        }
                                    }
                                }
                                from = to;
                            }
                        }
                    }
                }
                for row in 0..part_rows.min(rows - row_part * BLOCK) {
                    let used = part_columns.min(columns - first_column);
                    // SAFETY: each task has a part of the bias of its own.
                    unsafe {
                        target.write_from(
                            (bias_batch, bias_head, row_part * BLOCK + row, first_column),
                            &sums[row * part_columns..][..used],
                        );
                    }
                }
            }
        }
    }
}
