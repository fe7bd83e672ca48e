//! Rows turned into lanes and back.

use crate::block::Block;
use crate::erased::{Rows, Source, Sums, Target};
use crate::micro::width;
use crate::real::{Real, lanes};
use crate::transpose::{SIDE, Square};
use macerator::Simd;

/// Writes rows of a block times `factor` as lanes: tile after tile, `dim` rows of `width` lanes each.
///
/// Lanes without a row, and rows that see nothing, become zero: whatever the memory holds, it goes no further.
#[inline(always)]
pub(crate) fn rows_to_lanes<S: Simd, A: Real>(
    source: &Source<'_, A>,
    (batch, head): (usize, usize),
    block: &Block,
    dim: usize,
    factor: A,
    packed: &mut [A],
    line: &mut [A],
) {
    let width = width::<S, A>();
    for tile in 0..block.tiles {
        let packed = &mut packed[tile * dim * width..(tile + 1) * dim * width];
        let rows = tile * width..((tile + 1) * width).min(block.rows);
        // At once: a lane's elements lie apart.
        if rows.len() < width || !block.all_live {
            packed.fill(A::ZERO);
        }
        let mut lane = 0;
        while lane < rows.len() {
            let row = rows.start + lane;
            if lane + SIDE <= rows.len()
                && block.live[row..row + SIDE] == [true; SIDE]
                && let Some(rows) = source.direct(batch, head, block.start + row, SIDE)
            {
                squares_to_lanes::<S, A>(rows, dim, factor, packed, lane);
                lane += SIDE;
                continue;
            }
            if block.live[row] {
                let rows = source.rows(batch, head, block.start + row, 1, dim, line);
                for (lanes, &x) in packed.chunks_exact_mut(width).zip(rows.data) {
                    lanes[lane] = x * factor;
                }
            }
            lane += 1;
        }
    }
}

/// Eight rows times `factor` into lanes `lane..`.
#[inline(always)]
pub(crate) fn squares_to_lanes<S: Simd, A: Real>(
    rows: Rows<'_, A>,
    dim: usize,
    factor: A,
    packed: &mut [A],
    lane: usize,
) {
    let width = width::<S, A>();
    let whole = dim - dim % SIDE;
    let mut square = Square::new();
    for column in (0..whole).step_by(SIDE) {
        square.read(&rows.data[column..], rows.pitch);
        square.scale(factor);
        A::transpose::<S>(&mut square);
        square.write(&mut packed[column * width + lane..], width);
    }
    for column in whole..dim {
        for r in 0..SIDE {
            packed[column * width + lane + r] = rows.data[r * rows.pitch + column] * factor;
        }
    }
}

/// Writes lanes back as rows, each times its row's factor. Rows that see nothing become zero.
///
/// # Safety
///
/// Nothing else may use the block's rows of `target` meanwhile.
#[inline(always)]
pub(crate) unsafe fn lanes_to_rows<S: Simd, A: Real>(
    target: &Target<'_, A>,
    (batch, head): (usize, usize),
    block: &Block,
    dim: usize,
    factors: &[A],
    packed: &[A],
    line: &mut [A],
) {
    if dim == 0 {
        return;
    }
    let width = width::<S, A>();
    // SAFETY: the caller promises that the block's rows are its own, and no others are touched.
    let mut rows = unsafe { Sums::of(target, batch, head) };
    let mut row = 0;
    while row < block.rows {
        let packed = &packed[row / width * dim * width..][..dim * width];
        let at = (batch, head, block.start + row);
        if row % width + SIDE <= width
            && let Some(factors) = factors[..block.rows]
                .get(row..)
                .and_then(|f| f.first_chunk())
            && block.live[row..row + SIDE] == [true; SIDE]
            && let Some(rows) = &mut rows
        {
            lanes_to_squares::<S, A>(rows, at.2, dim, factors, packed, row % width);
            row += SIDE;
            continue;
        }
        let lane = row % width;
        let value = |column: usize| match block.live[row] {
            true => packed[column * width + lane] * factors[row],
            false => A::ZERO,
        };
        // SAFETY: as above.
        match unsafe { target.room(at.0, at.1, at.2) } {
            Some(to) => {
                for (column, to) in to.iter_mut().enumerate() {
                    to.write(value(column));
                }
            }
            None => {
                for (column, to) in line[..dim].iter_mut().enumerate() {
                    *to = value(column);
                }
                // SAFETY: as above.
                unsafe { target.write(at.0, at.1, at.2, &line[..dim]) };
            }
        }
        row += 1;
    }
}

/// Lanes `lane..` into eight rows from `row` on.
#[inline(always)]
fn lanes_to_squares<S: Simd, A: Real>(
    rows: &mut Sums<'_, A>,
    row: usize,
    dim: usize,
    factors: &[A; SIDE],
    packed: &[A],
    lane: usize,
) {
    let width = width::<S, A>();
    let whole = dim - dim % SIDE;
    let mut square = Square::new();
    for column in (0..whole).step_by(SIDE) {
        square.read(&packed[column * width + lane..], width);
        square.scale_columns(factors);
        A::transpose::<S>(&mut square);
        rows.write_square(row, column, &square);
    }
    for r in 0..SIDE {
        let to = &mut rows.room(row + r)[whole..dim];
        for (to, lanes) in to
            .iter_mut()
            .zip(packed[whole * width..].chunks_exact(width))
        {
            to.write(lanes[lane + r] * factors[r]);
        }
    }
}

/// Copies rows of a block with zeros up to a whole number of vectors, and for rows that see nothing.
#[inline(always)]
pub(crate) fn pad_rows<S: Simd, A: Real>(
    source: &Source<'_, A>,
    (batch, head): (usize, usize),
    block: &Block,
    dim: usize,
    to: &mut [A],
) {
    if dim == 0 {
        return;
    }
    let padded = dim.next_multiple_of(lanes::<S, A>());
    for (row, to) in to.chunks_exact_mut(padded).take(block.rows).enumerate() {
        to.fill(A::ZERO);
        if block.live[row] {
            source.read(batch, head, block.start + row, 0, &mut to[..dim]);
        }
    }
}
