//! Products of whole matrices: blocks of both are packed, and a result is added to once in so many steps.
//!
//! Goto and van de Geijn, *Anatomy of high-performance matrix multiplication*,
//! <https://doi.org/10.1145/1356052.1356053>.

use crate::erased::Shared;
use crate::factors::{Factor, Left, pack_right};
use crate::isa::Isa;
use crate::micro::{NV, Strips, strips, tile, width};
use crate::parallel::{self, Tasks};
use crate::real::{Real, V, lanes, load, store, store_new};
use crate::scratch::Scratch;
use macerator::{Simd, WithSimd};
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// Bytes of a panel of the right matrix: half of a first-level cache.
const PANEL: usize = 16 << 10;

/// The most steps of a panel. They are summed before the result is touched, and sums of sums round less.
const STEPS: usize = 256;

/// The largest block of the result. What it takes of both matrices in f32 is three quarters of a second-level cache of
/// 1 MiB; in f64 it has half the columns.
const ROWS: usize = 192;
const COLUMNS: usize = 512;

/// The most of the right matrix, in bytes without padding, that a thread keeps packed for all its blocks of the same
/// columns.
const KEPT: usize = 1 << 20;

/// Floating point operations of a task that is not divided further: some 50 microseconds of one core. Fewer rows than
/// [`FEW`] count as so many, as they wait for the right matrix.
const TASK: f64 = 4e6;

/// Blocks that are not divided further.
const FEWEST_ROWS: usize = 48;
const FEWEST_COLUMNS: usize = 64;

/// Vectors along a single row: its sums are as many as hide the latency of an addition.
const WIDE: usize = 8;

/// Lanes of the widest vectors.
const MAX_LANES: usize = 16;

/// So few rows do not pay for packing what they are multiplied with.
const FEW: usize = 12;

/// `out = left * right + bias`, all rows of `out` one after another.
pub struct Product<'a, A: Real> {
    pub(crate) isa: Isa,
    pub(crate) rows: usize,
    pub(crate) depth: usize,
    pub(crate) columns: usize,
    pub(crate) left: Factor<'a, A>,
    pub(crate) right: Factor<'a, A>,
    pub(crate) bias: Option<&'a [A]>,
    /// Nothing of it is read before it is written.
    pub(crate) out: Shared<'a, A>,
}

/// A part of the result.
#[derive(Clone, Copy)]
struct Block {
    row: usize,
    rows: usize,
    column: usize,
    columns: usize,
}

/// Computes a product. No sum depends on the blocks, nor on the number of threads.
pub(crate) fn run<A: Real>(product: &Product<'_, A>) {
    if product.rows == 0 || product.columns == 0 {
        return;
    }
    let [rows, columns] = product.block();
    let tasks = product.rows.div_ceil(rows) * product.columns.div_ceil(columns);
    parallel::run(tasks, product.flops(rows, columns), |tasks| {
        product.isa.dispatch(Worker {
            product,
            rows,
            columns,
            tasks,
        });
    });
}

impl<A: Real> Product<'_, A> {
    fn flops(&self, rows: usize, columns: usize) -> f64 {
        2.0 * rows.max(FEW) as f64 * columns as f64 * self.depth as f64
    }

    /// Whether all steps of so many columns are packed only once a thread. Blocks of few rows are then as good as large
    /// ones, and share the work more evenly.
    fn keeps(&self, columns: usize) -> bool {
        let many = self.rows >= self.depth.max(ROWS);
        many && columns.saturating_mul(self.depth * size_of::<A>()) <= KEPT
    }

    /// Rows and columns of a block: even parts, and if they are worth it some for each thread.
    fn block(&self) -> [usize; 2] {
        let all = self.flops(self.rows, self.columns);
        let mut down = self.rows.div_ceil(ROWS);
        let mut across = self
            .columns
            .div_ceil(COLUMNS * size_of::<f32>() / size_of::<A>());
        // Whole tiles and panels.
        let block = |down, across| {
            [
                self.rows.div_ceil(down).next_multiple_of(6),
                self.columns.div_ceil(across).next_multiple_of(32),
            ]
        };
        let kept = self.keeps(block(down, across)[1]);
        let parts = if kept { 8 } else { 3 };
        let wanted = match parallel::worth(all) {
            1 => 1,
            threads => (parts * threads).min((all / TASK) as usize),
        };
        loop {
            let [rows, columns] = block(down, across);
            let tasks = self.rows.div_ceil(rows) * self.columns.div_ceil(columns);
            if tasks >= wanted || (rows <= FEWEST_ROWS && columns <= FEWEST_COLUMNS) {
                return [rows.min(self.rows), columns.min(self.columns)];
            }
            let wide = columns > rows && !kept;
            match columns > FEWEST_COLUMNS && (wide || rows <= FEWEST_ROWS) {
                true => across += 1,
                false => down += 1,
            }
        }
    }
}

/// One thread's share.
struct Worker<'a, 'p, A: Real> {
    product: &'a Product<'p, A>,
    rows: usize,
    columns: usize,
    tasks: &'a Tasks,
}

impl<A: Real> WithSimd for Worker<'_, '_, A> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self) {
        let Self {
            product,
            rows,
            columns,
            tasks,
        } = self;
        let most = STEPS.min(PANEL / size_of::<A>() / width::<S, A>());
        let steps = product.depth.min(most);
        let keeps = product.keeps(columns);
        let panel = columns.next_multiple_of(width::<S, A>());
        let lens = [
            rows * steps,
            panel * if keeps { product.depth } else { steps },
            steps,
            columns,
        ];
        let mut scratch = Scratch::new(&lens);
        let [left, right, line, zeros] = scratch.pieces(lens);
        let mut memory = Memory {
            left,
            right,
            line,
            zeros,
        };
        let down = product.rows.div_ceil(rows);
        let mut kept = None;
        while let Some(run) = tasks.next() {
            for task in run {
                let (row, column) = (task % down * rows, task / down * columns);
                let block = Block {
                    row,
                    rows: rows.min(product.rows - row),
                    column,
                    columns: columns.min(product.columns - column),
                };
                let packed = kept == Some(column);
                // Once also if there is no step: the result is then the bias.
                for first in (0..product.depth.max(1)).step_by(most) {
                    let steps = (first, most.min(product.depth - first));
                    let keep = keeps.then_some(Keep {
                        start: panel * first,
                        packed,
                    });
                    add_steps::<S, A>(product, block, steps, &mut memory, keep);
                }
                kept = keeps.then_some(column);
            }
        }
    }
}

/// The panels of some steps of the right matrix, which are to stay in memory.
#[derive(Clone, Copy)]
struct Keep {
    start: usize,
    /// Whether they are there already.
    packed: bool,
}

/// A worker's memory.
struct Memory<'s, A> {
    /// Some rows of the left matrix.
    left: &'s mut [A],
    /// Panels of the right one.
    right: &'s mut [A],
    line: &'s mut [A],
    zeros: &'s [A],
}

/// Adds the products of some steps to a block of the result; overwrites it if they are the first.
#[inline(always)]
fn add_steps<S: Simd, A: Real>(
    product: &Product<'_, A>,
    block: Block,
    (first, steps): (usize, usize),
    memory: &mut Memory<'_, A>,
    keep: Option<Keep>,
) {
    let width = width::<S, A>();
    let bias = match product.bias {
        Some(bias) => &bias[block.column..],
        None => memory.zeros,
    };
    let right = &mut memory.right[keep.map_or(0, |keep| keep.start)..];
    let rows = (block.row, block.rows);
    let left = Left::pack(&product.left, rows, (first, steps), memory.left);
    let Block {
        column, columns, ..
    } = block;
    let direct = match block.rows <= FEW && !left.by_steps && keep.is_none() {
        true => product.right.direct((first, steps), (column, columns)),
        false => None,
    };
    // Whole panels where they lie.
    let whole = direct.map_or(0, |_| columns - columns % width);
    if !keep.is_some_and(|keep| keep.packed) {
        pack_right::<S, A>(
            &product.right,
            (first, steps),
            (column + whole, columns - whole),
            right,
            memory.line,
        );
    }
    let panel = |at: usize, width: usize| {
        let (right, pitch) = match direct {
            Some(lines) if at < whole => (&lines.data[at..], Some(lines.pitch)),
            _ => (&right[(at - whole) * steps..], None),
        };
        let columns = width.min(columns - at);
        Panel {
            out: &product.out,
            left,
            right,
            pitch,
            steps,
            start: block.row * product.columns + column + at,
            across: product.columns,
            columns,
            bias: &bias[at..][..columns],
            fresh: first == 0,
            simd: PhantomData::<S>,
        }
    };
    let mut at = 0;
    if block.rows < 4 {
        let width = WIDE * lanes::<S, A>();
        while at + width <= whole {
            let panel = panel(at, width);
            for row in 0..block.rows {
                panel.multiply::<1, WIDE>(row);
            }
            at += width;
        }
    }
    for at in (at..columns).step_by(width) {
        strips(block.rows, false, &mut panel(at, width));
    }
}

/// The rows of a block times a panel of the right matrix.
struct Panel<'a, 'p, S, A> {
    left: Left<'a, A>,
    right: &'a [A],
    /// Elements from one step to the next, if the panel is not packed.
    pitch: Option<usize>,
    steps: usize,
    out: &'a Shared<'p, A>,
    /// Where the first row of the result starts.
    start: usize,
    /// From there to the next.
    across: usize,
    columns: usize,
    /// What the first sums are added to.
    bias: &'a [A],
    fresh: bool,
    simd: PhantomData<S>,
}

impl<S: Simd, A: Real> Strips for Panel<'_, '_, S, A> {
    #[inline(always)]
    fn strip<const R: usize>(&mut self, row: usize) {
        self.multiply::<R, NV>(row);
    }
}

impl<S: Simd, A: Real> Panel<'_, '_, S, A> {
    /// `R` rows from `row` on times `N` vectors.
    #[inline(always)]
    fn multiply<const R: usize, const N: usize>(&self, row: usize) {
        let (width, steps, right) = (N * lanes::<S, A>(), self.steps, self.right);
        let left = &self.left.data[row * self.left.pitch..];
        // A single row may be all there is.
        let along = if R == 1 { 0 } else { self.left.pitch };
        // Apart, for the compiler to know distances: otherwise it keeps sums in memory.
        match (self.left.by_steps, self.pitch) {
            (true, _) => {
                let sums = tile::<S, A, R, N>(left, 1, R, right, width, steps);
                self.finish(row, &sums);
            }
            (false, None) => {
                let sums = tile::<S, A, R, N>(left, along, 1, right, width, steps);
                self.finish(row, &sums);
            }
            (false, Some(pitch)) => {
                let sums = tile::<S, A, R, N>(left, along, 1, right, pitch, steps);
                self.finish(row, &sums);
            }
        }
    }

    /// Adds the sums of some rows to the result, or if they are the first to the bias.
    #[inline(always)]
    fn finish<const R: usize, const N: usize>(&self, row: usize, sums: &[[V<S, A>; N]; R]) {
        let lanes = lanes::<S, A>();
        if self.columns == N * lanes {
            for r in 0..R {
                let to = self.to(row + r);
                for n in 0..N {
                    let at = n * lanes;
                    let before = match self.fresh {
                        true => load::<S, A>(self.bias, at),
                        // SAFETY: the first steps have written the block.
                        false => load::<S, A>(unsafe { to.assume_init_ref() }, at),
                    };
                    store_new(to, at, sums[r][n] + before);
                }
            }
            return;
        }
        let mut lane = [A::ZERO; MAX_LANES];
        for r in 0..R {
            let to = self.to(row + r);
            for n in 0..N {
                store(&mut lane, 0, sums[r][n]);
                for (k, &x) in (n * lanes..self.columns).zip(&lane[..lanes]) {
                    let before = match self.fresh {
                        true => self.bias[k],
                        // SAFETY: as above.
                        false => unsafe { to[k].assume_init() },
                    };
                    to[k].write(x + before);
                }
            }
        }
    }

    /// The panel's part of a row of the result.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    fn to(&self, row: usize) -> &mut [MaybeUninit<A>] {
        // SAFETY: each task has a block of its own and takes one row of it at a time.
        unsafe { self.out.room(self.start + row * self.across, self.columns) }
    }
}
