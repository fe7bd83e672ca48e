//! The training loop.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use burn::nn::loss::CrossEntropyLoss;
use burn::optim::{GradientsParams, ModuleOptimizer};
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
    /// The logged steps; of a run with checkpoints, which may be long, the last of them alone.
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
/// `watch` is called after each step. There are no checkpoints; see [`start_in`](crate::start_in)
/// for a run that is to survive an interruption.
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
    let run = train(&config, device, |progress| {
        if let Some(record) = progress.record {
            log.append(record)?;
        }
        watch(progress);
        Ok(())
    })?;
    log.sync()?;
    Ok(run)
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
    let start = State::start(config, device)?;
    let mut records = Vec::new();
    let run = go_on(start, config, device, |_, progress| {
        records.extend(progress.record.cloned());
        each(progress)
    })?;
    Ok(Run { records, ..run })
}

/// A run between two steps: all that the steps to come depend on, beside its config.
///
/// Burn's random generators are no part of it: they are used for initial weights alone.
pub(crate) struct State {
    /// How many steps were taken.
    pub step: u64,
    pub model: Model,
    pub optimizer: ModuleOptimizer,
    pub samples: Samples,
    pub learning: Learning,
}

impl State {
    pub fn start(config: &RunConfig, device: &Device) -> Result<Self, Error> {
        let model = config.model();
        let model = model
            .try_init(config.init, config.seed, device)
            .map_err(|why| Error::Argument {
                argument: "scale",
                value: config.scale.to_string(),
                why: why.to_string(),
            })?;
        Ok(Self {
            step: 0,
            model,
            optimizer: config.optimizer(),
            samples: Samples::training(config.seed),
            learning: Learning::new(config.stop.unwrap_or_default()),
        })
    }

    /// Whether no step is to be taken any more.
    pub fn is_over(&self, config: &RunConfig) -> bool {
        self.learning.is_over(self.step, config)
    }
}

/// Takes the steps that are left, and calls `each` after every one of them; only the last record is
/// kept.
pub(crate) fn go_on(
    mut state: State,
    config: &RunConfig,
    device: &Device,
    mut each: impl FnMut(&State, &Progress) -> Result<(), Error>,
) -> Result<Run, Error> {
    let started = Instant::now();
    let mut last = None;
    while !state.is_over(config) {
        let step = state.step;
        let drawn: Vec<_> = state.samples.by_ref().take(config.batch).collect();
        let batch = Batch::new(&drawn, device);
        let logged = step.is_multiple_of(config.log_every);
        let probed = logged && step.is_multiple_of(config.probe_every);

        let pass = Pass::of(&state.model, &batch, probed && step > 0);
        let (loss, accuracy) = (pass.loss(), pass.accuracy(&batch));
        state.learning.add(step, accuracy);
        if logged {
            last = Some(Record {
                step,
                loss,
                accuracy,
                scale: config.scale,
                d_k: config.d_k,
                seed: config.seed,
                grad_norm: GradNorm::from(GradientNorms::of(&state.model, &pass.gradients)),
                attention: match (probed, step) {
                    (false, _) => None,
                    (true, 0) => Some(measure(&state.model, config.seed, device)),
                    (true, _) => Some(pass.attention()),
                },
            });
        }
        let gradients = GradientsParams::from_grads(pass.gradients, &state.model);
        state.model = state.optimizer.step(config.lr(), state.model, gradients);
        state.step += 1;

        let progress = Progress {
            step,
            accuracy: state.learning.mean(),
            model: &state.model,
            record: last.as_ref().filter(|_| logged),
        };
        each(&state, &progress)?;
    }
    Ok(Run {
        config: config.clone(),
        records: last.into_iter().collect(),
        learned_at: state.learning.learned_at,
        steps: state.step,
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
pub(crate) struct Learning {
    stop: Stop,
    /// The accuracy of the last batches, at most as many as the mean is over.
    pub last: VecDeque<f64>,
    pub learned_at: Option<u64>,
}

impl Learning {
    pub fn new(stop: Stop) -> Self {
        Self {
            stop,
            last: VecDeque::with_capacity(stop.window),
            learned_at: None,
        }
    }

    pub fn add(&mut self, step: u64, accuracy: f64) {
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

    /// Whether `step` is not to be taken any more.
    pub fn is_over(&self, step: u64, config: &RunConfig) -> bool {
        let learned = |at| step > at + self.stop.then;
        step >= config.steps || config.stop.is_some() && self.learned_at.is_some_and(learned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_learned_at_the_last_batch_of_the_first_good_mean() {
        let stop = Stop {
            accuracy: 0.9,
            window: 2,
            then: 3,
        };
        let config = RunConfig {
            stop: Some(stop),
            ..RunConfig::default()
        };
        let mut learning = Learning::new(stop);
        for (step, accuracy) in [(0, 1.0), (1, 0.7), (2, 0.9), (3, 0.9), (4, 0.0)] {
            learning.add(step, accuracy);
        }
        assert_eq!(learning.learned_at, Some(3));
        assert!(!learning.is_over(6, &config));
        assert!(learning.is_over(7, &config));
        assert!(!learning.is_over(7, &RunConfig::default()));
    }
}
