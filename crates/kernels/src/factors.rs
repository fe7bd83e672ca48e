//! The two matrices of a [product](crate::product), a block at a time where tiles read it best.

use crate::erased::{Rows, Source};
use crate::micro::{NV, Strips, strips, width};
use crate::pack::squares_to_lanes;
use crate::real::{Real, lanes, load, store};
use crate::transpose::SIDE;
use macerator::Simd;

/// Some steps of some rows of the left matrix.
#[derive(Clone, Copy)]
pub(crate) struct Left<'a, A> {
    pub(crate) data: &'a [A],
    /// Elements from one row to the next.
    pub(crate) pitch: usize,
    /// Whether strips of rows lie step after step, as [`PackStrips`] leaves them, not row after row.
    pub(crate) by_steps: bool,
}

impl<'a, A: Real> Left<'a, A> {
    #[inline(always)]
    pub(crate) fn pack(
        left: &Source<'a, A>,
        (row, rows): (usize, usize),
        (first, steps): (usize, usize),
        packed: &'a mut [A],
    ) -> Self {
        let by_steps = left.turned().columns(row, rows);
        if rows > 1
            && left.strides()[3] != 1
            && let Some(lines) = by_steps.direct(0, 0, first, steps)
        {
            let mut pack = PackStrips {
                lines,
                steps,
                packed,
            };
            strips(rows, false, &mut pack);
            return Self {
                data: packed,
                pitch: steps,
                by_steps: true,
            };
        }
        let left = left.columns(first, steps);
        let rows = left.near_rows(0, 0, row, rows, steps, packed);
        Self {
            data: rows.data,
            pitch: rows.pitch,
            by_steps: false,
        }
    }
}

/// Packs what lies step after step: for each strip of rows its part of every step.
struct PackStrips<'a, 's, A> {
    lines: Rows<'a, A>,
    steps: usize,
    packed: &'s mut [A],
}

impl<A: Real> Strips for PackStrips<'_, '_, A> {
    #[inline(always)]
    fn strip<const R: usize>(&mut self, row: usize) {
        let to = &mut self.packed[row * self.steps..][..R * self.steps];
        for (k, to) in to.chunks_exact_mut(R).enumerate() {
            to.copy_from_slice(&self.lines.data[k * self.lines.pitch + row..][..R]);
        }
    }
}

/// Packs steps of columns of the right matrix panel after panel, `width` elements a step. Columns that are not there
/// are zero.
#[inline(always)]
pub(crate) fn pack_right<S: Simd, A: Real>(
    right: &Source<'_, A>,
    (first, steps): (usize, usize),
    (column, columns): (usize, usize),
    packed: &mut [A],
    line: &mut [A],
) {
    let width = width::<S, A>();
    if let Some(rows) = right.columns(column, columns).direct(0, 0, first, steps) {
        // A few steps at a time: neither the rows read nor the panels written then fight for places in the cache.
        for start in (0..steps).step_by(SIDE) {
            for at in (0..columns).step_by(width) {
                let used = width.min(columns - at);
                let end = steps.min(start + SIDE);
                let to = &mut packed[at * steps..][start * width..end * width];
                for (k, to) in (start..end).zip(to.chunks_exact_mut(width)) {
                    let from = &rows.data[k * rows.pitch + at..][..used];
                    if used == width {
                        for n in 0..NV {
                            let at = n * lanes::<S, A>();
                            store(to, at, load::<S, A>(from, at));
                        }
                    } else {
                        to[..used].copy_from_slice(from);
                        to[used..].fill(A::ZERO);
                    }
                }
            }
        }
        return;
    }
    let by_columns = right.turned().columns(first, steps);
    for at in (0..columns).step_by(width) {
        let packed = &mut packed[at * steps..][..width * steps];
        let used = width.min(columns - at);
        let mut lane = 0;
        while lane < width {
            if lane + SIDE <= used
                && let Some(rows) = by_columns.direct(0, 0, column + at + lane, SIDE)
            {
                squares_to_lanes::<S, A>(rows, steps, A::ONE, packed, lane);
                lane += SIDE;
                continue;
            }
            let line = &mut line[..steps];
            if lane < used {
                by_columns.read(0, 0, column + at + lane, 0, line);
            } else {
                line.fill(A::ZERO);
            }
            for (to, &x) in packed.chunks_exact_mut(width).zip(&*line) {
                to[lane] = x;
            }
            lane += 1;
        }
    }
}
