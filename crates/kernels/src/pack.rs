//! Rows turned into lanes and back.

use crate::block::Block;
use crate::erased::{Source, Target};
use crate::micro::width;
use crate::real::{Real, lanes};
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
        for lane in 0..width {
            let row = tile * width + lane;
            if row >= block.rows || !block.live[row] {
                for lanes in packed.chunks_exact_mut(width) {
                    lanes[lane] = A::ZERO;
                }
                continue;
            }
            let rows = source.rows(batch, head, block.start + row, 1, dim, line);
            for (lanes, &x) in packed.chunks_exact_mut(width).zip(rows.data) {
                lanes[lane] = x * factor;
            }
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
    for row in 0..block.rows {
        let packed = &packed[row / width * dim * width..][..dim * width];
        // SAFETY: the caller promises that the rows are this block's alone.
        let direct = unsafe { target.row(batch, head, block.start + row) };
        let written = direct.is_some();
        let to = match direct {
            Some(to) => to,
            None => &mut line[..dim],
        };
        if block.live[row] {
            for (to, lanes) in to.iter_mut().zip(packed.chunks_exact(width)) {
                *to = lanes[row % width] * factors[row];
            }
        } else {
            to.fill(A::ZERO);
        }
        if !written {
            // SAFETY: as above.
            unsafe { target.write(batch, head, block.start + row, &line[..dim]) };
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
