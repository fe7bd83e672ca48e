//! Scores of random queries and keys, and what a softmax makes of them: no training.

use burn::tensor::{Device, Tensor, TensorData};
use layers::{
    AttentionInput, AttentionStatistics, Probe, Scale, ScaledDotProductAttentionConfig, Stage,
};
use rand::rngs::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::store::{finite, ratio};
use crate::Backend;
use crate::random::{Stream, generator, normals};

/// How many keys a query sees, and how many queries share them.
pub(super) const KEYS: usize = 32;

/// The constant factor that is right at width 64.
pub(super) const CONSTANT: Scale = Scale::Fixed(0.125);

/// The factors that are measured on the same draws.
pub(super) const SCALES: [Scale; 4] = [Scale::Unscaled, Scale::InvSqrtDim, Scale::InvDim, CONSTANT];

/// The share of a normal distribution within three standard deviations.
const WITHIN_THREE: f64 = 0.9973;

/// Draws of queries, keys and values with independent entries.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Draw {
    /// The width of query and key.
    pub d: usize,
    /// The standard deviation of their entries.
    pub sigma: f64,
    /// How many sets of 32 queries and 32 keys there are.
    pub sets: usize,
    pub seed: u64,
    /// What computes.
    pub backend: Backend,
}

/// What one draw gives, by scale, in the order of [`SCALES`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Scores {
    pub by_scale: Vec<ScoresAt>,
}

/// The scores under one factor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ScoresAt {
    /// The standard deviation of the scores.
    #[serde(deserialize_with = "finite")]
    pub std: f64,
    /// What 99.73 % of the scores are not larger than in size: three deviations, were they normal.
    #[serde(deserialize_with = "finite")]
    pub large: f64,
    /// The mean over the queries of the largest weight.
    #[serde(deserialize_with = "finite")]
    pub max_weight: f64,
    /// The mean over the queries of the entropy, as a share of `ln 32`.
    #[serde(deserialize_with = "finite")]
    pub entropy: f64,
    /// The L2 norm of the gradient at one query's scores: its mean and quantiles over the queries.
    pub gradient: Gradient,
    /// The share of queries whose gradient is at least that of the median query under
    /// `1 / sqrt(d)`.
    #[serde(deserialize_with = "finite")]
    pub kept: f64,
}

/// How the score gradients of the queries are distributed.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Gradient {
    #[serde(deserialize_with = "finite")]
    pub mean: f64,
    #[serde(deserialize_with = "finite")]
    pub p10: f64,
    #[serde(deserialize_with = "finite")]
    pub p50: f64,
    #[serde(deserialize_with = "finite")]
    pub p90: f64,
    #[serde(deserialize_with = "finite")]
    pub p99: f64,
}

impl Scores {
    /// What was measured under a factor; one of [`SCALES`].
    pub fn at(&self, scale: Scale) -> &ScoresAt {
        let place = SCALES.iter().position(|measured| *measured == scale);
        &self.by_scale[place.expect("one of the scales that are measured")]
    }
}

impl Draw {
    /// Measures the draw with the layers.
    ///
    /// The gradient that comes to a query's output is a random direction of length 1 and values
    /// have unit variance, so that each weight's gradient is drawn from N(0, 1).
    pub fn measure(&self, device: &Device) -> Scores {
        let mut generator = generator(self.seed, Stream::Claims);
        let query = self
            .tensor(&mut generator, self.sigma, device)
            .require_grad();
        let key = self.tensor(&mut generator, self.sigma, device);
        let value = self.tensor(&mut generator, 1.0, device);
        let direction = self.tensor(&mut generator, 1.0, device);
        let length = direction.clone().powi_scalar(2).sum_dim(3).sqrt();
        let arriving = direction / length;

        let mut gradients = Vec::new();
        let mut by_scale: Vec<ScoresAt> = SCALES
            .iter()
            .map(|&scale| {
                let attention = ScaledDotProductAttentionConfig::new()
                    .with_scale(scale)
                    .init(device);
                let probe = Probe::new();
                let input = AttentionInput::new(query.clone(), key.clone(), value.clone());
                let output = attention.forward(input.clone().probe(&probe));
                (output * arriving.clone()).sum().backward();
                let rows = probe.take().expect("the backward pass has been made");
                let of_rows = AttentionStatistics::of(&rows).expect("a draw has queries");

                let scores = attention.scores(input, Stage::Scaled).inner().into_data();
                let sizes: Vec<f64> = scores.iter::<f64>().map(f64::abs).collect();
                let norms = rows.iter().filter_map(|row| row.score_gradient);
                let norms = sorted(norms.collect());
                let at = ScoresAt {
                    std: of_rows.score_std,
                    large: quantile(&sorted(sizes), WITHIN_THREE),
                    max_weight: of_rows.max_weight,
                    entropy: of_rows.entropy,
                    gradient: Gradient {
                        mean: norms.iter().sum::<f64>() / norms.len() as f64,
                        p10: quantile(&norms, 0.1),
                        p50: quantile(&norms, 0.5),
                        p90: quantile(&norms, 0.9),
                        p99: quantile(&norms, 0.99),
                    },
                    kept: 0.0,
                };
                gradients.push(norms);
                at
            })
            .collect();
        let scaled = SCALES.iter().position(|scale| *scale == Scale::InvSqrtDim);
        let typical = by_scale[scaled.expect("it is measured")].gradient.p50;
        for (at, norms) in by_scale.iter_mut().zip(&gradients) {
            at.kept = ratio(
                norms.iter().filter(|norm| **norm >= typical).count(),
                norms.len(),
            );
        }
        Scores { by_scale }
    }

    /// `[sets, 1, 32, d]`
    fn tensor(&self, generator: &mut ChaCha8Rng, std: f64, device: &Device) -> Tensor<4> {
        let shape = [self.sets, 1, KEYS, self.d];
        let entries = normals(generator, std, shape.iter().product());
        Tensor::from_data(TensorData::new(entries, shape), device)
    }
}

fn sorted(mut numbers: Vec<f64>) -> Vec<f64> {
    numbers.sort_unstable_by(f64::total_cmp);
    numbers
}

/// Of ascending numbers, at least one; between two, on the line through them.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share * (sorted.len() - 1) as f64;
    let (low, high) = (
        sorted[place.floor() as usize],
        sorted[place.ceil() as usize],
    );
    low + (high - low) * place.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measure(d: usize, sigma: f64) -> Scores {
        let draw = Draw {
            d,
            sigma,
            sets: 16,
            seed: 3,
            backend: Backend::default(),
        };
        draw.measure(&Backend::default().device().unwrap())
    }

    #[test]
    fn scores_have_the_deviation_that_theory_gives_under_each_factor() {
        let scores = measure(64, 1.0);
        for (scale, std) in [
            (Scale::Unscaled, 8.0),
            (Scale::InvSqrtDim, 1.0),
            (Scale::InvDim, 0.125),
            (CONSTANT, 1.0),
        ] {
            let at = scores.at(scale);
            assert!((at.std / std - 1.0).abs() < 0.05, "{scale}: {}", at.std);
            assert!(
                (at.large / (3.0 * std) - 1.0).abs() < 0.1,
                "{scale}: {}",
                at.large
            );
        }
        // Entries twice as large, products four times.
        let larger = measure(64, 2.0);
        let std = larger.at(Scale::InvSqrtDim).std;
        assert!((std / 4.0 - 1.0).abs() < 0.05, "{std}");
    }

    #[test]
    fn a_softmax_that_is_nearly_uniform_passes_each_query_the_same_gradient() {
        let scores = measure(64, 0.1);
        let at = scores.at(Scale::InvDim);
        assert!(at.entropy > 0.999);
        // 32 weights of 1/32, each times a deviation of about 1: sqrt(31 / 32^2).
        let expected = 31f64.sqrt() / 32.0;
        assert!(
            (at.gradient.mean / expected - 1.0).abs() < 0.05,
            "{:?}",
            at.gradient
        );
        assert!(at.gradient.p10 > 0.7 * expected && at.gradient.p99 < 1.4 * expected);
    }

    #[test]
    fn half_of_the_scaled_queries_have_at_least_the_median_gradient() {
        let scores = measure(256, 1.0);
        assert!((scores.at(Scale::InvSqrtDim).kept - 0.5).abs() < 0.01);
        assert!(scores.at(Scale::Unscaled).kept < 0.5);
    }

    #[test]
    fn quantiles_lie_between_the_numbers() {
        assert_eq!(quantile(&[1.0, 2.0, 4.0], 0.75), 3.0);
        assert_eq!(quantile(&[7.0], 0.1), 7.0);
    }
}
