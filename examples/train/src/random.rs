//! Everything random of a run, drawn on the host, so that every backend starts equal.

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

/// The sequences of random numbers of one seed; none depends on how much of another is used.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stream {
    /// The initial weights.
    Weights = 0,
    /// The batches that a run trains on.
    Batches = 1,
    /// The samples of the measurement at step 0.
    Measurement = 2,
    /// What the worked numbers are drawn from.
    Figures = 3,
    /// Queries and keys that no model makes.
    Claims = 4,
}

/// ChaCha with 8 rounds: the same numbers on every platform.
pub(crate) fn generator(seed: u64, stream: Stream) -> ChaCha8Rng {
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    generator.set_stream(stream as u64);
    generator
}

/// Draws from N(0, `std`²), by the ziggurat method (`rand_distr::StandardNormal`).
pub(crate) fn normals(generator: &mut ChaCha8Rng, std: f64, count: usize) -> Vec<f64> {
    let draws = StandardNormal.sample_iter(generator);
    draws.take(count).map(|x: f64| x * std).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_one_seed_differ_and_each_is_repeatable() {
        let draw = |seed, stream| normals(&mut generator(seed, stream), 1.0, 4);
        assert_eq!(draw(5, Stream::Weights), draw(5, Stream::Weights));
        assert_ne!(draw(5, Stream::Weights), draw(5, Stream::Batches));
        assert_ne!(draw(5, Stream::Weights), draw(6, Stream::Weights));
    }

    #[test]
    fn normals_have_the_variance_asked_for() {
        let draws = normals(&mut generator(0, Stream::Weights), 3.0, 100_000);
        let variance = draws.iter().map(|x| x * x).sum::<f64>() / draws.len() as f64;
        // The standard error of a variance from n normals is its sqrt(2 / n): 0.04.
        assert!((variance - 9.0).abs() < 0.2, "{variance}");
    }
}
