//! Training runs, summed up into curves.

use burn::module::Module;
use burn::tensor::Device;
use layers::{AttentionStatistics, Scale};
use serde::{Deserialize, Serialize};

use super::store::finite;
use crate::Error;
use crate::config::{RunConfig, Stop};
use crate::data::{Batch, Sample, Samples};
use crate::model::{Init, Model};
use crate::record::Record;
use crate::training::train;

/// The last steps that a run's final numbers are means over.
const FINAL_STEPS: u64 = 100;

/// A way to scale, or to do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Arm {
    Scaled,
    Unscaled,
    /// Unscaled, with query and key weights so small that raw scores start with deviation 1.
    SmallInit,
}

impl Arm {
    pub const ALL: [Self; 3] = [Self::Scaled, Self::Unscaled, Self::SmallInit];

    pub fn name(self) -> &'static str {
        match self {
            Self::Scaled => "scaled by 1/√d_k",
            Self::Unscaled => "unscaled",
            Self::SmallInit => "unscaled, small start",
        }
    }

    pub fn scale(self) -> Scale {
        match self {
            Self::Scaled => Scale::InvSqrtDim,
            Self::Unscaled | Self::SmallInit => Scale::Unscaled,
        }
    }

    pub fn init(self) -> Init {
        match self {
            Self::Scaled | Self::Unscaled => Init::Unit,
            Self::SmallInit => Init::UnitScores,
        }
    }
}

/// A run, and the updates after which a sample's attention weights are kept.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Training {
    pub config: RunConfig,
    pub weights_after: Vec<u64>,
}

/// What a run came to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Curve {
    /// How many steps were taken.
    pub steps: u64,
    /// The first step at which the mean accuracy of the last 20 batches was 50 %.
    pub half_at: Option<u64>,
    /// The same of 90 %.
    pub learned_at: Option<u64>,
    /// The mean accuracy of the last 20 batches.
    #[serde(deserialize_with = "finite")]
    pub final_accuracy: f64,
    /// The mean loss of the logged steps among the last 100.
    #[serde(deserialize_with = "finite")]
    pub final_loss: f64,
    /// The logged steps.
    pub points: Vec<Point>,
    /// A sample's attention weights over training.
    pub weights: Vec<SampleWeights>,
}

/// One logged step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Point {
    pub step: u64,
    #[serde(deserialize_with = "finite")]
    pub loss: f64,
    /// The mean accuracy of the last 20 batches.
    #[serde(deserialize_with = "finite")]
    pub accuracy: f64,
    /// The gradient norm of the query projections.
    #[serde(deserialize_with = "finite")]
    pub query_norm: f64,
    /// The gradient norm of the key projections.
    #[serde(deserialize_with = "finite")]
    pub key_norm: f64,
    /// By layer; empty where the step was not probed.
    pub layers: Vec<Layer>,
}

/// What one layer's softmax did.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Layer {
    #[serde(deserialize_with = "finite")]
    pub score_std: f64,
    #[serde(deserialize_with = "finite")]
    pub max_weight: f64,
    #[serde(deserialize_with = "finite")]
    pub entropy: f64,
    /// The score gradient's quantiles over the queries.
    #[serde(deserialize_with = "finite")]
    pub p10: f64,
    #[serde(deserialize_with = "finite")]
    pub p50: f64,
    #[serde(deserialize_with = "finite")]
    pub p90: f64,
    #[serde(deserialize_with = "finite")]
    pub mean: f64,
}

/// The weights that one sample's question gives to its pairs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct SampleWeights {
    /// How many updates came before.
    pub after: u64,
    /// By pair.
    pub weights: Vec<Option<f64>>,
}

impl Curve {
    /// The logged step 0.
    pub fn start(&self) -> &Point {
        self.points.first().expect("step 0 is always logged")
    }
}

impl Training {
    /// Trains.
    ///
    /// # Errors
    ///
    /// What [`train`] refuses.
    pub fn run(&self, device: &Device) -> Result<Curve, Error> {
        let stop = self.config.stop.unwrap_or_default();
        let mut reached = Reached::new(stop);
        let mut accuracies = Vec::new();
        let sample = sample(self.config.seed);
        let mut weights = Vec::new();
        if self.weights_after.contains(&0) {
            let model = self.config.model();
            let model = model.try_init(self.config.init, self.config.seed, device);
            let model = model.expect("the run's own model");
            weights.push(SampleWeights::of(&model, &sample, 0, device));
        }
        let run = train(&self.config, device, |progress| {
            reached.add(progress.step, progress.accuracy);
            if progress.record.is_some() {
                accuracies.push(progress.accuracy);
            }
            let updates = progress.step + 1;
            if self.weights_after.contains(&updates) {
                weights.push(SampleWeights::of(progress.model, &sample, updates, device));
            }
            Ok(())
        })?;
        let last = run.records.iter().rev();
        let last = last.take_while(|record| record.step + FINAL_STEPS >= run.steps);
        let losses: Vec<f64> = last.map(|record| record.loss).collect();
        let points = run.records.iter().zip(&accuracies);
        Ok(Curve {
            steps: run.steps,
            half_at: reached.half,
            learned_at: reached.learned,
            final_accuracy: reached.last,
            final_loss: losses.iter().sum::<f64>() / losses.len() as f64,
            points: points
                .map(|(record, accuracy)| Point::of(record, *accuracy))
                .collect(),
            weights,
        })
    }
}

/// The sample whose attention weights are shown: the first of those that no run trains on.
pub(super) fn sample(seed: u64) -> Sample {
    let mut samples = Samples::measurement(seed);
    samples.next().expect("samples do not end")
}

impl SampleWeights {
    /// Of a model with one layer and one head.
    fn of(model: &Model, sample: &Sample, after: u64, device: &Device) -> Self {
        let model = model.valid();
        let batch = Batch::new(std::slice::from_ref(sample), &device.clone().inner());
        let weights = model.weights(&batch).remove(0).into_data();
        let finite = |weight: f64| weight.is_finite().then_some(weight);
        Self {
            after,
            weights: weights.iter::<f64>().map(finite).collect(),
        }
    }
}

impl Point {
    fn of(record: &Record, accuracy: f64) -> Self {
        let layers = record.attention.iter().flatten();
        Self {
            step: record.step,
            loss: record.loss,
            accuracy,
            query_norm: record.grad_norm.query.unwrap_or(f64::NAN),
            key_norm: record.grad_norm.key.unwrap_or(f64::NAN),
            layers: layers.map(Layer::of).collect(),
        }
    }
}

impl Layer {
    fn of(statistics: &AttentionStatistics) -> Self {
        let gradient = statistics.score_grad.expect("a backward pass was probed");
        Self {
            score_std: statistics.score_std,
            max_weight: statistics.max_weight,
            entropy: statistics.entropy,
            p10: gradient.p10,
            p50: gradient.p50,
            p90: gradient.p90,
            mean: gradient.mean,
        }
    }
}

/// When the mean accuracy of a whole window came to 50 % and to that of [`Stop`].
struct Reached {
    stop: Stop,
    half: Option<u64>,
    learned: Option<u64>,
    last: f64,
}

impl Reached {
    fn new(stop: Stop) -> Self {
        Self {
            stop,
            half: None,
            learned: None,
            last: f64::NAN,
        }
    }

    /// `accuracy` is the mean of the last batches, of which there may be few at first.
    fn add(&mut self, step: u64, accuracy: f64) {
        self.last = accuracy;
        if step + 1 < self.stop.window as u64 {
            return;
        }
        for (reached, at_least) in [
            (&mut self.half, 0.5),
            (&mut self.learned, self.stop.accuracy),
        ] {
            if reached.is_none() && accuracy >= at_least {
                *reached = Some(step);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Backend;
    use crate::data::PAIRS;

    fn training(arm: Arm) -> Training {
        Training {
            config: RunConfig {
                d_k: 16,
                scale: arm.scale(),
                init: arm.init(),
                steps: 8,
                batch: 8,
                log_every: 2,
                ..RunConfig::default()
            },
            weights_after: vec![0, 4, 8],
        }
    }

    #[test]
    fn a_curve_has_the_logged_steps_and_the_weights_that_were_asked_for() {
        let device = Backend::default().device().unwrap();
        let curve = training(Arm::Scaled).run(&device).unwrap();
        assert_eq!(curve.steps, 8);
        let steps: Vec<u64> = curve.points.iter().map(|point| point.step).collect();
        assert_eq!(steps, [0, 2, 4, 6]);
        let mean = curve.points.iter().map(|point| point.loss).sum::<f64>() / 4.0;
        assert!((curve.final_loss - mean).abs() < 1e-12);
        assert_eq!(curve.learned_at, None);
        let after: Vec<u64> = curve.weights.iter().map(|at| at.after).collect();
        assert_eq!(after, [0, 4, 8]);
        for at in &curve.weights {
            assert_eq!(at.weights.len(), PAIRS);
            let sum: f64 = at.weights.iter().flatten().sum();
            assert!((sum - 1.0).abs() < 1e-5, "{sum}");
        }
    }

    #[test]
    fn small_weights_give_raw_scores_the_deviation_of_scaled_ones() {
        let device = Backend::default().device().unwrap();
        let std = |arm| {
            let curve = training(arm).run(&device).unwrap();
            curve.start().layers[0].score_std
        };
        let (scaled, small) = (std(Arm::Scaled), std(Arm::SmallInit));
        assert!((scaled - 1.0).abs() < 0.2, "{scaled}");
        assert!((small / scaled - 1.0).abs() < 1e-4, "{small} and {scaled}");
        assert!((std(Arm::Unscaled) / scaled - 4.0).abs() < 1e-3);
    }

    #[test]
    fn a_level_is_reached_at_the_end_of_the_first_whole_window() {
        let mut reached = Reached::new(Stop {
            accuracy: 0.9,
            window: 3,
            then: 0,
        });
        for (step, accuracy) in [(0, 1.0), (1, 1.0), (2, 0.6), (3, 0.4), (4, 0.9)] {
            reached.add(step, accuracy);
        }
        assert_eq!(reached.half, Some(2));
        assert_eq!(reached.learned, Some(4));
        assert_eq!(reached.last, 0.9);
    }
}
