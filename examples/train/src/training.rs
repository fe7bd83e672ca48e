//! The training loop.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use burn::nn::loss::CrossEntropyLoss;
use burn::optim::GradientsParams;
use burn::tensor::{Device, Gradients, Tensor};
use gradnorm::{GradientNorms, RunWriter};
use layers::{AttentionStatistics, Probe};

use crate::config::{RunConfig, Stop};
use crate::data::{Batch, Samples};
use crate::model::Model;
use crate::record::{GradNorm, Record, statistics};
use crate::{Error, MEASURED_SAMPLES};

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Run {
    /// What was run.
    pub config: RunConfig,
    /// The logged steps.
    pub records: Vec<Record>,
    /// The first step at which the mean accuracy of the last batches was that of [`Stop`].
    pub learned_at: Option<u64>,
    /// How many steps were taken.
    pub steps: u64,
    /// How long the loop took.
    pub took: Duration,
}

/// Trains in a directory, which gets `config.json` and, step by step, `metrics.jsonl`.
///
/// `watch` is called after each step.
///
/// # Errors
///
/// What [`RunConfig::check`] refuses, and whatever the log cannot do, a run being in the directory
/// already included.
pub fn train_in(
    dir: &Path,
    config: &RunConfig,
    device: &Device,
    mut watch: impl FnMut(&Progress),
) -> Result<Run, Error> {
    let config = config.clone().check()?;
    let mut log = RunWriter::create(dir, &config.description())?;
    train(&config, device, |progress| {
        if let Some(record) = progress.record {
            log.append(record)?;
        }
        watch(progress);
        Ok(())
    })
}

/// Where a run is.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The step just taken.
    pub step: u64,
    /// The mean accuracy of the last batches.
    pub accuracy: f64,
    /// The model after the step.
    pub model: &'a Model,
    /// What is logged of the step, if it is.
    pub record: Option<&'a Record>,
}

/// Trains, and calls `each` after every step, with the step's record where it has one.
///
/// Equal configs give equal records, bit for bit, on the CPU backends. Neither logging nor probing
/// changes what is computed.
///
/// # Errors
///
/// Those that `each` gives.
pub fn train(
    config: &RunConfig,
    device: &Device,
    mut each: impl FnMut(&Progress) -> Result<(), Error>,
) -> Result<Run, Error> {
    let started = Instant::now();
    let mut model = config
        .model()
        .try_init(config.init, config.seed, device)
        .map_err(|why| Error::Argument {
            argument: "scale",
            value: config.scale.to_string(),
            why: why.to_string(),
        })?;
    let mut optimizer = config.optimizer();
    let mut samples = Samples::training(config.seed);
    let mut learning = Learning::new(config.stop.unwrap_or_default());
    let mut records = Vec::new();
    let mut step = 0;
    while step < config.steps && !(config.stop.is_some() && learning.is_over(step)) {
        let drawn: Vec<_> = samples.by_ref().take(config.batch).collect();
        let batch = Batch::new(&drawn, device);
        let logged = step % config.log_every == 0;
        let probed = logged && step % config.probe_every == 0;

        let pass = Pass::of(&model, &batch, probed && step > 0);
        let (loss, accuracy) = (pass.loss(), pass.accuracy(&batch));
        learning.add(step, accuracy);
        if logged {
            records.push(Record {
                step,
                loss,
                accuracy,
                scale: config.scale,
                d_k: config.d_k,
                seed: config.seed,
                grad_norm: GradNorm::from(GradientNorms::of(&model, &pass.gradients)),
                attention: match (probed, step) {
                    (false, _) => None,
                    (true, 0) => Some(measure(&model, config.seed, device)),
                    (true, _) => Some(pass.attention()),
                },
            });
        }
        let gradients = GradientsParams::from_grads(pass.gradients, &model);
        model = optimizer.step(config.lr(), model, gradients);

        each(&Progress {
            step,
            accuracy: learning.mean(),
            model: &model,
            record: records.last().filter(|_| logged),
        })?;
        step += 1;
    }
    Ok(Run {
        config: config.clone(),
        records,
        learned_at: learning.learned_at,
        steps: step,
        took: started.elapsed(),
    })
}

/// The attention statistics of a model on [`MEASURED_SAMPLES`] samples that no run of the seed
/// trains on: one entry a layer.
pub fn measure(model: &Model, seed: u64, device: &Device) -> Vec<AttentionStatistics> {
    let samples: Vec<_> = Samples::measurement(seed).take(MEASURED_SAMPLES).collect();
    Pass::of(model, &Batch::new(&samples, device), true).attention()
}

/// A forward and a backward pass.
struct Pass {
    loss: Tensor<1>,
    logits: Tensor<2>,
    gradients: Gradients,
    probes: Vec<Probe>,
    samples: usize,
}

impl Pass {
    fn of(model: &Model, batch: &Batch, probed: bool) -> Self {
        let probes: Vec<Probe> = match probed {
            true => model.blocks.iter().map(|_| Probe::new()).collect(),
            false => Vec::new(),
        };
        let logits = model.forward_with(batch, |layer, input| match probes.get(layer) {
            Some(probe) => input.probe(probe),
            None => input,
        });
        let loss = loss(logits.clone(), batch);
        Self {
            gradients: loss.backward(),
            loss,
            logits,
            probes,
            samples: batch.len(),
        }
    }

    fn loss(&self) -> f64 {
        self.loss.clone().into_scalar()
    }

    fn accuracy(&self, batch: &Batch) -> f64 {
        let answers = self.logits.clone().inner().argmax(1).squeeze_dim::<1>(1);
        let right = answers.equal(batch.answer.clone().inner()).int().sum();
        right.into_scalar::<i64>() as f64 / self.samples as f64
    }

    fn attention(&self) -> Vec<AttentionStatistics> {
        let rows = |probe: &Probe| probe.take().expect("the backward pass has been made");
        let probes = self.probes.iter();
        probes
            .map(|probe| statistics(rows(probe), self.samples))
            .collect()
    }
}

/// The mean over the batch of the cross-entropy of the answers.
pub fn loss(logits: Tensor<2>, batch: &Batch) -> Tensor<1> {
    CrossEntropyLoss::new(None, &logits.device()).forward(logits, batch.answer.clone())
}

/// The running mean of the accuracy, and when it came to that of [`Stop`].
struct Learning {
    stop: Stop,
    last: VecDeque<f64>,
    learned_at: Option<u64>,
}

impl Learning {
    fn new(stop: Stop) -> Self {
        Self {
            stop,
            last: VecDeque::with_capacity(stop.window),
            learned_at: None,
        }
    }

    fn add(&mut self, step: u64, accuracy: f64) {
        if self.last.len() == self.stop.window {
            self.last.pop_front();
        }
        self.last.push_back(accuracy);
        let learned = self.last.len() == self.stop.window && self.mean() >= self.stop.accuracy;
        if learned && self.learned_at.is_none() {
            self.learned_at = Some(step);
        }
    }

    fn mean(&self) -> f64 {
        self.last.iter().sum::<f64>() / self.last.len().max(1) as f64
    }

    /// Whether no step is to be taken any more.
    fn is_over(&self, step: u64) -> bool {
        self.learned_at.is_some_and(|at| step > at + self.stop.then)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_learned_at_the_last_batch_of_the_first_good_mean() {
        let mut learning = Learning::new(Stop {
            accuracy: 0.9,
            window: 2,
            then: 3,
        });
        for (step, accuracy) in [(0, 1.0), (1, 0.7), (2, 0.9), (3, 0.9), (4, 0.0)] {
            learning.add(step, accuracy);
        }
        assert_eq!(learning.learned_at, Some(3));
        assert!(!learning.is_over(6));
        assert!(learning.is_over(7));
    }
}
