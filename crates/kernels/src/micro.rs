//! The register tile that every product of the kernels is made of.

use crate::real::{Real, V, lanes, load, mul_add, splat, store};
use macerator::Simd;

/// Vectors along a tile. Two leave the 16 registers of AVX2 and SSE room for four rows; Arm has 32 short ones.
pub(crate) const NV: usize = if cfg!(target_arch = "aarch64") { 4 } else { 2 };

/// Rows of a tile. With two vectors that is 12 independent sums, more than the 8 that hide the latency of an addition and
/// all that 16 registers have room for: on AVX2 a quarter faster than four rows.
pub(crate) const MR: usize = 6;

/// Rows of a smaller tile for what is left.
pub(crate) const LESS: usize = 4;

/// How many of the rows left the next tile takes: `MR`, `LESS` or 1. Even numbers from 4 on need no tile of 1.
#[inline(always)]
pub(crate) fn next_rows(left: usize) -> usize {
    match left {
        8 | 9 => LESS,
        MR.. => MR,
        LESS.. => LESS,
        _ => 1,
    }
}

/// Queries that run along one tile.
#[inline(always)]
pub(crate) fn width<S: Simd, A: Real>() -> usize {
    NV * lanes::<S, A>()
}

/// `R` rows of `N` vectors of sums of products: of `a[r * row + k * step]` with `b[k * pitch + ..]` over `k < depth`.
///
/// The sums start at zero, whatever they are added to later: that keeps the error of long sums small.
#[inline(always)]
pub(crate) fn tile<S: Simd, A: Real, const R: usize, const N: usize>(
    a: &[A],
    row: usize,
    step: usize,
    b: &[A],
    pitch: usize,
    depth: usize,
) -> [[V<S, A>; N]; R] {
    let zero = splat::<S, A>(A::ZERO);
    let mut sums = [[zero; N]; R];
    if depth == 0 {
        return sums;
    }
    let lanes = lanes::<S, A>();
    let last = depth - 1;
    assert!(
        (R - 1)
            .saturating_mul(row)
            .saturating_add(last.saturating_mul(step))
            < a.len()
    );
    assert!(last.saturating_mul(pitch).saturating_add(N * lanes) <= b.len());
    for k in 0..depth {
        let mut vectors = [zero; N];
        for n in 0..N {
            // SAFETY: `k <= last` and `n < N`, so the second assertion covers the vector.
            vectors[n] = unsafe { A::vload_unaligned(b.as_ptr().add(k * pitch + n * lanes)) };
        }
        for r in 0..R {
            // SAFETY: `r < R` and `k <= last`, so the first assertion covers the element.
            let factor = splat::<S, A>(unsafe { *a.get_unchecked(r * row + k * step) });
            for n in 0..N {
                sums[r][n] = mul_add(factor, vectors[n], sums[r][n]);
            }
        }
    }
    sums
}

/// What becomes of the sums of `R` rows of `NV` vectors.
///
/// A trait, not a closure: only a method can be marked to be inlined, and one that is not loses the vector
/// instructions.
pub(crate) trait Take<S: Simd, A: Real> {
    fn take<const R: usize>(&mut self, row: usize, sums: &[[V<S, A>; NV]; R]);
}

/// The products of `rows` rows of `a` (each `depth` long, `pitch` apart) with the columns of `b` (`depth` rows of `width`).
///
/// A row may be handed to `take` twice: a last tile that would be shorter is moved back.
#[inline(always)]
pub(crate) fn dots<S: Simd, A: Real>(
    a: &[A],
    pitch: usize,
    rows: usize,
    b: &[A],
    depth: usize,
    take: &mut impl Take<S, A>,
) {
    let width = width::<S, A>();
    let mut row = 0;
    while row < rows {
        match next_rows(rows - row) {
            MR => {
                let sums = tile::<S, A, MR, NV>(&a[row * pitch..], pitch, 1, b, width, depth);
                take.take(row, &sums);
                row += MR;
            }
            1 if rows < LESS => {
                let sums = tile::<S, A, 1, NV>(&a[row * pitch..], 0, 1, b, width, depth);
                take.take(row, &sums);
                row += 1;
            }
            _ => {
                row = row.min(rows - LESS);
                let sums = tile::<S, A, LESS, NV>(&a[row * pitch..], pitch, 1, b, width, depth);
                take.take(row, &sums);
                row += LESS;
            }
        }
    }
}

/// Adds to `sums` (`columns` rows of `width`) the products of `a` transposed (`depth` rows of `columns`, `pitch` apart)
/// with `b` (`depth` rows of `width`, `b_pitch` apart); overwrites if `fresh`.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub(crate) fn accumulate<S: Simd, A: Real>(
    a: &[A],
    pitch: usize,
    columns: usize,
    b: &[A],
    b_pitch: usize,
    depth: usize,
    sums: &mut [A],
    fresh: bool,
) {
    let mut column = 0;
    while column < columns {
        let a = &a[column..];
        let rows = next_rows(columns - column);
        match rows {
            MR => {
                let tile = tile::<S, A, MR, NV>(a, 1, pitch, b, b_pitch, depth);
                add_rows(sums, column, &tile, fresh);
            }
            LESS => {
                let tile = tile::<S, A, LESS, NV>(a, 1, pitch, b, b_pitch, depth);
                add_rows(sums, column, &tile, fresh);
            }
            _ => {
                let tile = tile::<S, A, 1, NV>(a, 0, pitch, b, b_pitch, depth);
                add_rows(sums, column, &tile, fresh);
            }
        }
        column += rows;
    }
}

#[inline(always)]
fn add_rows<S: Simd, A: Real, const R: usize>(
    sums: &mut [A],
    row: usize,
    tile: &[[V<S, A>; NV]; R],
    fresh: bool,
) {
    let (width, lanes) = (width::<S, A>(), lanes::<S, A>());
    let sums = &mut sums[row * width..(row + R) * width];
    for r in 0..R {
        for n in 0..NV {
            let at = r * width + n * lanes;
            let sum = if fresh {
                tile[r][n]
            } else {
                load::<S, A>(sums, at) + tile[r][n]
            };
            store(sums, at, sum);
        }
    }
}
