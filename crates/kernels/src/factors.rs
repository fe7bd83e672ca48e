//! The two matrices of a [product](crate::product), a block at a time where tiles read it best.

use crate::View;
use crate::erased::{Rows, Source};
use crate::micro::{NV, Strips, strips, width};
use crate::pack::squares_to_lanes;
use crate::real::{Real, lanes, load, store};
use crate::transpose::SIDE;
use macerator::Simd;

/// A matrix made of the rows of all samples, one after another.
#[derive(Clone, Copy)]
pub(crate) struct Factor<'a, A> {
    source: Source<'a, A>,
    /// Rows of a sample, if the samples do not lie evenly: else they are one.
    length: Option<usize>,
    /// Columns are to be read for rows.
    turned: bool,
}

/// Rows that are next to each other in one sample.
struct Part {
    /// How many rows of the other parts come before.
    at: usize,
    sample: usize,
    row: usize,
    rows: usize,
}

impl<'a, A: Real> Factor<'a, A> {
    pub(crate) fn new(view: &View<'a, A>, turned: bool) -> Self {
        let (source, length) = match view.joined() {
            Some(joined) => (Source::new(&joined), None),
            None => (Source::new(view), Some(view.shape()[2])),
        };
        // By strides where that is possible.
        let turns = turned && length.is_none();
        Self {
            source: if turns { source.turned() } else { source },
            length,
            turned: turned && !turns,
        }
    }

    /// The samples of some rows, before they are turned.
    #[inline(always)]
    fn parts(&self, first: usize, rows: usize) -> Parts {
        Parts {
            length: self.length.unwrap_or(usize::MAX),
            next: first,
            first,
            end: first + rows,
        }
    }

    /// Some columns of some rows where they lie, if they are adjacent, and the rows evenly apart.
    #[inline(always)]
    pub(crate) fn direct(
        &self,
        (row, rows): (usize, usize),
        (column, columns): (usize, usize),
    ) -> Option<Rows<'a, A>> {
        match self.length {
            Some(_) => None,
            None => self.source.columns(column, columns).direct(0, 0, row, rows),
        }
    }
}

struct Parts {
    length: usize,
    first: usize,
    next: usize,
    end: usize,
}

impl Iterator for Parts {
    type Item = Part;

    #[inline(always)]
    fn next(&mut self) -> Option<Part> {
        let (sample, row) = (self.next / self.length, self.next % self.length);
        let rows = (self.length - row).min(self.end - self.next);
        let at = self.next - self.first;
        self.next += rows;
        (rows > 0).then_some(Part {
            at,
            sample,
            row,
            rows,
        })
    }
}

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
        left: &Factor<'a, A>,
        (row, rows): (usize, usize),
        (first, steps): (usize, usize),
        packed: &'a mut [A],
    ) -> Self {
        let source = &left.source;
        if left.length.is_some() && !left.turned {
            for part in left.parts(row, rows) {
                let to = packed[part.at * steps..].chunks_exact_mut(steps.max(1));
                for (r, to) in (part.row..part.row + part.rows).zip(to) {
                    source.read(part.sample, 0, r, first, to);
                }
            }
            return Self {
                data: packed,
                pitch: steps,
                by_steps: false,
            };
        }
        // What lies step after step, if that is how it is read best.
        let lines = if left.turned {
            Some(source.columns(row, rows))
        } else if rows > 1 && source.strides()[3] != 1 {
            let lines = source.turned().columns(row, rows);
            lines.direct(0, 0, first, steps).map(|_| lines)
        } else {
            None
        };
        if let Some(lines) = lines {
            for part in left.parts(first, steps) {
                let mut pack = PackStrips {
                    lines,
                    direct: lines.direct(part.sample, 0, part.row, part.rows),
                    steps,
                    part,
                    packed,
                };
                strips(rows, false, &mut pack);
            }
            return Self {
                data: packed,
                pitch: steps,
                by_steps: true,
            };
        }
        let rows = source
            .columns(first, steps)
            .near_rows(0, 0, row, rows, steps, packed);
        Self {
            data: rows.data,
            pitch: rows.pitch,
            by_steps: false,
        }
    }
}

/// Packs what lies step after step: for each strip of rows its part of every step.
struct PackStrips<'a, 's, A> {
    lines: Source<'a, A>,
    /// Those of the part, if they can be read where they lie.
    direct: Option<Rows<'a, A>>,
    steps: usize,
    part: Part,
    packed: &'s mut [A],
}

impl<A: Real> Strips for PackStrips<'_, '_, A> {
    #[inline(always)]
    fn strip<const R: usize>(&mut self, row: usize) {
        let Part {
            at,
            sample,
            row: first,
            rows,
        } = self.part;
        let to = &mut self.packed[row * self.steps..][at * R..(at + rows) * R];
        let places = to.chunks_exact_mut(R).enumerate();
        match self.direct {
            Some(lines) => {
                for (k, to) in places {
                    to.copy_from_slice(&lines.data[k * lines.pitch + row..][..R]);
                }
            }
            None => {
                for (k, to) in places {
                    self.lines.read(sample, 0, first + k, row, to);
                }
            }
        }
    }
}

/// Packs steps of columns of the right matrix panel after panel, `width` elements a step. Columns that are not there
/// are zero.
#[inline(always)]
pub(crate) fn pack_right<S: Simd, A: Real>(
    right: &Factor<'_, A>,
    (first, steps): (usize, usize),
    (column, columns): (usize, usize),
    packed: &mut [A],
    line: &mut [A],
) {
    let by_steps = right.source.columns(column, columns);
    if right.length.is_some() || by_steps.direct(0, 0, first, steps).is_some() {
        for part in right.parts(first, steps) {
            pack_steps::<S, A>(&by_steps, part, steps, packed);
        }
        return;
    }
    let width = width::<S, A>();
    let by_columns = right.source.turned().columns(first, steps);
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

/// Packs the steps of one sample.
#[inline(always)]
fn pack_steps<S: Simd, A: Real>(right: &Source<'_, A>, part: Part, steps: usize, packed: &mut [A]) {
    let width = width::<S, A>();
    let columns = right.shape()[3];
    let direct = right.direct(part.sample, 0, part.row, part.rows);
    // A few steps at a time: neither the rows read nor the panels written then fight for places in the cache.
    for start in (0..part.rows).step_by(SIDE) {
        let end = part.rows.min(start + SIDE);
        for at in (0..columns).step_by(width) {
            let used = width.min(columns - at);
            let to = &mut packed[at * steps..][(part.at + start) * width..(part.at + end) * width];
            let places = (start..end).zip(to.chunks_exact_mut(width));
            match direct {
                Some(rows) if used == width => {
                    for (k, to) in places {
                        let from = &rows.data[k * rows.pitch + at..][..width];
                        for n in 0..NV {
                            let at = n * lanes::<S, A>();
                            store(to, at, load::<S, A>(from, at));
                        }
                    }
                }
                _ => {
                    for (k, to) in places {
                        right.read(part.sample, 0, part.row + k, at, &mut to[..used]);
                        to[used..].fill(A::ZERO);
                    }
                }
            }
        }
    }
}
