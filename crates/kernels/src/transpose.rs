//! Squares of 8 by 8 turned over: rows into lanes and back.

use crate::real::Real;
use macerator::Simd;

/// Side of a square.
pub(crate) const SIDE: usize = 8;

/// A square, row after row.
#[derive(Clone, Copy)]
#[repr(align(32))]
pub struct Square<A>([A; SIDE * SIDE]);

impl<A: Real> Square<A> {
    pub(crate) fn new() -> Self {
        Self([A::ZERO; SIDE * SIDE])
    }

    /// Reads rows that start `pitch` apart.
    #[inline(always)]
    pub(crate) fn read(&mut self, from: &[A], pitch: usize) {
        assert!(pitch.saturating_mul(SIDE - 1).saturating_add(SIDE) <= from.len());
        for row in 0..SIDE {
            // SAFETY: the assertion covers the last row, and so all of them; a square's rows are `SIDE` apart.
            unsafe {
                let to = self.0.as_mut_ptr().add(row * SIDE);
                to.copy_from_nonoverlapping(from.as_ptr().add(row * pitch), SIDE);
            }
        }
    }

    /// Writes rows that start `pitch` apart.
    #[inline(always)]
    pub(crate) fn write(&self, to: &mut [A], pitch: usize) {
        assert!(pitch.saturating_mul(SIDE - 1).saturating_add(SIDE) <= to.len());
        for row in 0..SIDE {
            // SAFETY: as in `read`.
            unsafe {
                let from = self.0.as_ptr().add(row * SIDE);
                to.as_mut_ptr()
                    .add(row * pitch)
                    .copy_from_nonoverlapping(from, SIDE);
            }
        }
    }

    #[inline(always)]
    pub(crate) fn row_mut(&mut self, row: usize) -> &mut [A] {
        &mut self.0[row * SIDE..(row + 1) * SIDE]
    }

    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> &[A] {
        &self.0[row * SIDE..(row + 1) * SIDE]
    }

    /// Multiplies every element.
    #[inline(always)]
    pub(crate) fn scale(&mut self, factor: A) {
        for x in &mut self.0 {
            *x *= factor;
        }
    }

    /// Multiplies each column by a factor of its own.
    #[inline(always)]
    pub(crate) fn scale_columns(&mut self, factors: &[A; SIDE]) {
        for row in self.0.chunks_exact_mut(SIDE) {
            for (x, &factor) in row.iter_mut().zip(factors) {
                *x *= factor;
            }
        }
    }

    /// The square element by element.
    #[inline(always)]
    fn transpose_plainly(&mut self) {
        for row in 0..SIDE {
            for column in 0..row {
                self.0.swap(row * SIDE + column, column * SIDE + row);
            }
        }
    }
}

impl Square<f64> {
    #[inline(always)]
    #[allow(clippy::extra_unused_type_parameters)] // called as the other type's is
    pub(crate) fn transpose<S: Simd>(&mut self) {
        self.transpose_plainly();
    }
}

impl Square<f32> {
    /// The square in registers where there are instructions for it.
    ///
    /// The portable vectors have no shuffles, and by elements this takes 3 to 8 % of a pass over short rows.
    #[inline(always)]
    pub(crate) fn transpose<S: Simd>(&mut self) {
        #[cfg(target_arch = "x86_64")]
        if S::lanes32() >= SIDE {
            // SAFETY: on this architecture only AVX2 and AVX-512 have 8 lanes and more, and code generic over `S` runs
            // only where `S` has been found.
            unsafe { transpose_avx(&mut self.0) };
            return;
        }
        self.transpose_plainly();
    }
}

#[cfg(target_arch = "x86_64")]
/// # Safety
///
/// The processor must have AVX. (Not a target feature of the function: it is to be inlined into code that has it, and one
/// that has could not be.)
#[inline(always)]
unsafe fn transpose_avx(square: &mut [f32; SIDE * SIDE]) {
    use std::arch::x86_64::*;
    // SAFETY: the caller has AVX; each vector that is loaded or stored is a row of the square.
    unsafe {
        let mut rows = [_mm256_setzero_ps(); SIDE];
        for i in 0..SIDE {
            rows[i] = _mm256_loadu_ps(square.as_ptr().add(i * SIDE));
        }
        // Pairs of rows, then pairs of pairs, then halves.
        let mut pairs = rows;
        for i in 0..SIDE / 2 {
            pairs[2 * i] = _mm256_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
            pairs[2 * i + 1] = _mm256_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
        }
        let mut fours = rows;
        for i in 0..SIDE / 4 {
            for half in 0..2 {
                let (a, b) = (pairs[4 * i + half], pairs[4 * i + 2 + half]);
                fours[4 * i + 2 * half] = _mm256_shuffle_ps::<0b01_00_01_00>(a, b);
                fours[4 * i + 2 * half + 1] = _mm256_shuffle_ps::<0b11_10_11_10>(a, b);
            }
        }
        for i in 0..SIDE / 2 {
            rows[i] = _mm256_permute2f128_ps::<0x20>(fours[i], fours[i + 4]);
            rows[i + 4] = _mm256_permute2f128_ps::<0x31>(fours[i], fours[i + 4]);
        }
        for i in 0..SIDE {
            _mm256_storeu_ps(square.as_mut_ptr().add(i * SIDE), rows[i]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use macerator::WithSimd;

    struct Turn<'a>(&'a mut Square<f32>);

    impl WithSimd for Turn<'_> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self) {
            self.0.transpose::<S>();
        }
    }

    #[test]
    fn every_instruction_set_turns_a_square_over() {
        for isa in Isa::available() {
            let mut square = Square(std::array::from_fn(|i| i as f32));
            isa.dispatch(Turn(&mut square));
            let right = std::array::from_fn(|i| (i % SIDE * SIDE + i / SIDE) as f32);
            assert_eq!(square.0, right, "{isa:?}");
        }
    }
}
