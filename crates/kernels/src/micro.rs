//! The register tile that every product of the kernels is made of.

use crate::real::{Real, V, lanes, load, mul_add, splat, store};
use macerator::Simd;
use std::marker::PhantomData;

/// Vectors along a tile. Two leave the 16 registers of AVX2 and SSE room for six rows; Arm has 32 short ones.
pub(crate) const NV: usize = if cfg!(target_arch = "aarch64") { 4 } else { 2 };

/// The most rows of a tile. With two vectors that is 12 independent sums, more than the 8 that hide the latency of an
/// addition and all that 16 registers have room for: on AVX2 a quarter faster than four rows.
const MR: usize = 6;

/// Rows of the tiles for numbers that are no multiple of 6. Five are nearly as fast; four are for short ones.
const FIVE: usize = 5;
const FOUR: usize = 4;

/// How many of the rows left the next tile takes: as many fives as make the rest a multiple of 6, if there are enough.
#[inline(always)]
fn next_rows(left: usize) -> usize {
    let fives = (MR - left % MR) % MR;
    match left {
        _ if fives == 0 => MR,
        _ if left >= FIVE * fives => FIVE,
        4 | 8 => FOUR,
        7 => MR,
        9 | 13 | 14 | 19 => FIVE,
        _ => 1,
    }
}

/// Work that is done by a few rows at a time.
///
/// A trait, not a closure: only a method can be marked to be inlined, and one that is not loses the vector
/// instructions.
pub(crate) trait Strips {
    /// Does `R` rows from `row` on.
    fn strip<const R: usize>(&mut self, row: usize);
}

/// Does `rows` rows, each once; or, if `again`, some twice rather than one at a time.
#[inline(always)]
pub(crate) fn strips(rows: usize, again: bool, work: &mut impl Strips) {
    let mut row = 0;
    while row < rows {
        match next_rows(rows - row) {
            MR => {
                work.strip::<MR>(row);
                row += MR;
            }
            FIVE => {
                work.strip::<FIVE>(row);
                row += FIVE;
            }
            1 if !again || rows < FOUR => {
                work.strip::<1>(row);
                row += 1;
            }
            _ => {
                row = row.min(rows - FOUR);
                work.strip::<FOUR>(row);
                row += FOUR;
            }
        }
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
    let last = depth - 1;
    assert!(
        (R - 1)
            .saturating_mul(row)
            .saturating_add(last.saturating_mul(step))
            < a.len()
    );
    assert!(
        last.saturating_mul(pitch)
            .saturating_add(N * lanes::<S, A>())
            <= b.len()
    );
    // Several steps a round: what a loop costs besides its arithmetic is felt where a core is shared.
    let whole = depth - depth % STEPS;
    for first in (0..whole).step_by(STEPS) {
        for k in first..first + STEPS {
            // SAFETY: `k <= last`, which the assertions cover.
            unsafe { add_step::<S, A, R, N>(&mut sums, a, row, k * step, b, k * pitch) };
        }
    }
    for k in whole..depth {
        // SAFETY: as above.
        unsafe { add_step::<S, A, R, N>(&mut sums, a, row, k * step, b, k * pitch) };
    }
    sums
}

/// Steps of a round of [`tile`].
const STEPS: usize = 2;

/// Adds the products of `a[from + r * row]` with the vectors at `b[at..]`.
///
/// # Safety
///
/// All of them must lie inside of the slices.
#[inline(always)]
unsafe fn add_step<S: Simd, A: Real, const R: usize, const N: usize>(
    sums: &mut [[V<S, A>; N]; R],
    a: &[A],
    row: usize,
    from: usize,
    b: &[A],
    at: usize,
) {
    let lanes = lanes::<S, A>();
    let mut vectors = [splat::<S, A>(A::ZERO); N];
    for n in 0..N {
        // SAFETY: the caller's promise.
        vectors[n] = unsafe { A::vload_unaligned(b.as_ptr().add(at + n * lanes)) };
    }
    for r in 0..R {
        // SAFETY: the caller's promise.
        let factor = splat::<S, A>(unsafe { *a.get_unchecked(from + r * row) });
        for n in 0..N {
            sums[r][n] = mul_add(factor, vectors[n], sums[r][n]);
        }
    }
}

/// What becomes of the sums of `R` rows of `NV` vectors.
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
    let mut work = Dots {
        a,
        pitch,
        b,
        depth,
        take,
        simd: PhantomData::<S>,
    };
    strips(rows, true, &mut work);
}

struct Dots<'a, S, A, T> {
    a: &'a [A],
    pitch: usize,
    b: &'a [A],
    depth: usize,
    take: &'a mut T,
    simd: PhantomData<S>,
}

impl<S: Simd, A: Real, T: Take<S, A>> Strips for Dots<'_, S, A, T> {
    #[inline(always)]
    fn strip<const R: usize>(&mut self, row: usize) {
        // A single row may be all there is.
        let pitch = if R == 1 { 0 } else { self.pitch };
        let a = &self.a[row * self.pitch..];
        let sums = tile::<S, A, R, NV>(a, pitch, 1, self.b, width::<S, A>(), self.depth);
        self.take.take(row, &sums);
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
    let mut work = Accumulate {
        a,
        pitch,
        b,
        b_pitch,
        depth,
        sums,
        fresh,
        simd: PhantomData::<S>,
    };
    strips(columns, false, &mut work);
}

struct Accumulate<'a, S, A> {
    a: &'a [A],
    pitch: usize,
    b: &'a [A],
    b_pitch: usize,
    depth: usize,
    sums: &'a mut [A],
    fresh: bool,
    simd: PhantomData<S>,
}

impl<S: Simd, A: Real> Strips for Accumulate<'_, S, A> {
    #[inline(always)]
    fn strip<const R: usize>(&mut self, column: usize) {
        let (width, lanes) = (width::<S, A>(), lanes::<S, A>());
        let a = &self.a[column..];
        let tile = tile::<S, A, R, NV>(a, 1, self.pitch, self.b, self.b_pitch, self.depth);
        for r in 0..R {
            for n in 0..NV {
                let at = (column + r) * width + n * lanes;
                add(self.sums, at, tile[r][n], self.fresh);
            }
        }
    }
}

/// Adds a vector to the one at `data[at..]`; overwrites it if `fresh`.
#[inline(always)]
pub(crate) fn add<S: Simd, A: Real>(data: &mut [A], at: usize, value: V<S, A>, fresh: bool) {
    let sum = if fresh {
        value
    } else {
        load::<S, A>(data, at) + value
    };
    store(data, at, sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Count(Vec<usize>);

    impl Strips for Count {
        fn strip<const R: usize>(&mut self, row: usize) {
            for count in &mut self.0[row..row + R] {
                *count += 1;
            }
        }
    }

    #[test]
    fn strips_do_each_row_once_or_if_allowed_again() {
        for rows in 0..100 {
            let mut once = Count(vec![0; rows]);
            strips(rows, false, &mut once);
            assert_eq!(once.0, vec![1; rows]);
            let mut again = Count(vec![0; rows]);
            strips(rows, true, &mut again);
            assert!(again.0.iter().all(|&count| count > 0), "{rows}");
        }
    }

    #[test]
    fn many_rows_need_no_tile_of_less_than_five() {
        struct Shortest(usize);
        impl Strips for Shortest {
            fn strip<const R: usize>(&mut self, _: usize) {
                self.0 = self.0.min(R);
            }
        }
        for rows in 20..100 {
            let mut shortest = Shortest(MR);
            strips(rows, false, &mut shortest);
            assert!(shortest.0 >= FIVE, "{rows}");
        }
    }
}
