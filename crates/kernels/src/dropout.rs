//! Which attention weights dropout drops: a pure function of seed, row and column.
//!
//! Nothing is stored between forward and backward, and the same weights are dropped whatever the tiling, the thread
//! count or the instruction set. The function needs only products and sums below 2^31, shifts, masks and
//! exclusive ors, so that it can be written in 32-bit integer tensor operations that overflow in unknown ways.
//!
//! A Feistel network of six rounds permutes 32 bits as two halves of 16:
//!
//! ```text
//! round k: (l, r) <- (r, l ^ (((r * M[k] + C[k]) >> 7) & 0xFFFF))
//! mix(x):  l = x >> 16, r = x & 0xFFFF, six rounds, (l << 16) | r
//! row = (batch_index * heads + head) * query_len + query, col = key
//! h = mix(mix(row ^ seed[0]) ^ col ^ seed[1])
//! dropped = (h & 0x7FFF_FFFF) < floor(probability * 2^31)
//! ```
//!
//! Six rounds: Luby and Rackoff show that four of a good round function suffice, and this one is a plain
//! multiplication, <https://doi.org/10.1137/0217022>. The constants are odd random numbers kept for the smallest
//! correlations, of 40 sets, between neighbours in a row, in a column and between seeds that differ in one bit.

use crate::problem::Dropout;

/// The rounds' multipliers and summands, all below 2^15, so that `r * M + C` stays below 2^31 for every 16-bit `r`.
pub const ROUNDS: [(u32, u32); 6] = [
    (16_991, 21_876),
    (12_893, 28_222),
    (19_975, 27_525),
    (10_197, 28_722),
    (13_599, 10_175),
    (29_211, 15_463),
];

/// The permutation of 32 bits that both steps use.
///
/// # Example
///
/// ```
/// assert_eq!(kernels::dropout::mix(0), 3_514_037_652);
/// ```
#[inline(always)]
pub fn mix(x: u32) -> u32 {
    let (mut l, mut r) = (x >> 16, x & 0xFFFF);
    for (m, c) in ROUNDS {
        (l, r) = (r, l ^ (((r * m + c) >> 7) & 0xFFFF));
    }
    (l << 16) | r
}

/// Whether the weight of query row `row = (batch_index * heads + head) * query_len + query` for key `col` is dropped.
///
/// The seeds must be below 2^31; of a row only the low 32 bits count.
///
/// # Example
///
/// ```
/// use kernels::dropout::dropped;
///
/// let kept = (0..1000).filter(|&col| !dropped([3, 4], 7, col, 0.25)).count();
/// assert_eq!(kept, 771);
/// assert!((0..1000).all(|col| !dropped([3, 4], 7, col, 0.0)));
/// ```
pub fn dropped(seed: [u32; 2], row: u32, col: u32, probability: f64) -> bool {
    let hash = mix(mix(row ^ seed[0]) ^ col ^ seed[1]);
    (hash & 0x7FFF_FFFF) < threshold(probability)
}

/// Hashes below it are dropped.
#[inline(always)]
pub(crate) fn threshold(probability: f64) -> u32 {
    (probability * 2_147_483_648.0) as u32
}

impl Dropout {
    /// The part of the hash that a row's weights share, the second seed folded in.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> u32 {
        mix(row as u32 ^ self.seed[0]) ^ self.seed[1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(seed: [u32; 2], size: u32, probability: f64) -> Vec<f64> {
        (0..size * size)
            .map(|i| f64::from(u8::from(dropped(seed, i / size, i % size, probability))))
            .map(|bit| (bit - probability) / (probability * (1.0 - probability)).sqrt())
            .collect()
    }

    /// The correlation of two sequences of mean 0 and variance 1, in standard deviations of what chance gives.
    fn correlation(pairs: impl Iterator<Item = (f64, f64)>) -> f64 {
        let (mut sum, mut count) = (0.0, 0.0_f64);
        for (a, b) in pairs {
            sum += a * b;
            count += 1.0;
        }
        (sum / count.sqrt()).abs()
    }

    #[test]
    fn mix_is_a_permutation_on_a_sample() {
        let mut seen: Vec<u32> = (0..100_000).map(mix).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 100_000);
    }

    #[test]
    fn the_rate_is_the_probability_and_neighbours_do_not_correlate() {
        let size = if cfg!(miri) { 16 } else { 512 };
        let n = size as usize;
        for probability in [0.1, 0.5, 0.9] {
            for seed in [[0, 0], [1, 0], [12_345, 678_910], [0x7FFF_FFFF, 5]] {
                let a = mask(seed, size, probability);
                // 4.5 deviations: once in 150,000 for a fair coin, and there are some 200 checks.
                let total: f64 = a.iter().sum();
                assert!((total / n as f64).abs() < 4.5, "rate off for {seed:?}");
                for step in [1, 2, 3, 4, 8, 64] {
                    let along = correlation(
                        a.iter()
                            .enumerate()
                            .filter(|(i, _)| i % n + step < n)
                            .map(|(i, &x)| (x, a[i + step])),
                    );
                    let down = correlation(
                        a.iter()
                            .zip(&a[(step * n).min(a.len())..])
                            .map(|(&x, &y)| (x, y)),
                    );
                    assert!(along < 4.5 && down < 4.5, "{seed:?} {step}: {along} {down}");
                }
                for other in [
                    [seed[0] ^ 1, seed[1]],
                    [seed[0], seed[1] ^ 1],
                    [seed[1], seed[0]],
                ] {
                    if other != seed {
                        let b = mask(other, size, probability);
                        let across = correlation(a.iter().copied().zip(b));
                        assert!(across < 4.5, "{seed:?} and {other:?}: {across}");
                    }
                }
                // Sums of rows and of columns spread as a binomial distribution does.
                for axis in 0..2 {
                    let mut sums = vec![0.0; n];
                    for (i, x) in a.iter().enumerate() {
                        sums[if axis == 0 { i / n } else { i % n }] += x / (n as f64).sqrt();
                    }
                    let chi: f64 = sums.iter().map(|s| s * s).sum();
                    let deviations = (chi - n as f64) / (2.0 * n as f64).sqrt();
                    assert!(deviations.abs() < 4.5, "{seed:?} axis {axis}: {deviations}");
                }
            }
        }
    }
}
