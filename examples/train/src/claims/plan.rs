//! What is measured: widths, seeds and steps of the quick mode and of the full one.

use serde::Serialize;

use super::runs::{Arm, Training};
use super::scores::Draw;
use crate::backend::Backend;
use crate::config::{RunConfig, Stop};

/// How much is measured; both modes run the same code.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// `quick` or `full`.
    pub(super) mode: &'static str,
    /// The seeds of everything random.
    pub(super) seeds: Vec<u64>,
    /// The widths of the queries and keys that are drawn; 64 and 512 among them, which claim 9 names.
    pub(super) drawn_widths: Vec<usize>,
    /// The deviations of the entries at which the variance is measured too.
    pub(super) sigmas: Vec<f64>,
    /// How many sets of 32 queries and 32 keys a draw has.
    pub(super) sets: usize,
    /// The widths of the heads that are trained.
    pub(super) d_k: Vec<usize>,
    /// How many steps those runs take.
    pub(super) steps: u64,
    /// The width at which learning rates are swept.
    pub(super) rate_d_k: Vec<usize>,
    /// The learning rates.
    pub(super) rates: Vec<f64>,
    /// The most steps of a run of the sweep; it ends when it has learned the task.
    pub(super) rate_steps: u64,
    /// The width of a head in deeper stacks and with more heads.
    pub(super) stack_d_k: usize,
    /// The stacks: layers and heads.
    pub(super) stacks: Vec<(usize, usize)>,
    /// The seeds of their runs.
    pub(super) stack_seeds: Vec<u64>,
    /// The most steps of their runs; they end when they have learned the task.
    pub(super) stack_steps: u64,
    /// What computes.
    pub(super) backend: Backend,
}

impl Plan {
    /// Within three minutes on two cores: fewer seeds, widths and steps.
    pub fn quick(backend: Backend) -> Self {
        Self {
            mode: "quick",
            seeds: (0..3).collect(),
            sets: 64,
            d_k: vec![64, 256],
            steps: 400,
            rate_d_k: vec![128],
            rates: vec![3e-4, 1e-3, 3e-3, 1e-2, 3e-2],
            rate_steps: 300,
            stack_d_k: 32,
            stacks: vec![(1, 1), (2, 1), (1, 4), (2, 4)],
            stack_seeds: (0..3).collect(),
            stack_steps: 500,
            ..Self::full(backend)
        }
    }

    /// Within thirty minutes on two cores.
    pub fn full(backend: Backend) -> Self {
        Self {
            mode: "full",
            seeds: (0..6).collect(),
            drawn_widths: vec![4, 16, 64, 256, 512],
            sigmas: vec![0.5, 1.0, 2.0],
            sets: 128,
            d_k: vec![32, 64, 128, 256],
            steps: 600,
            rate_d_k: vec![64, 256],
            rates: vec![1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2],
            rate_steps: 600,
            stack_d_k: 64,
            stacks: vec![(1, 1), (2, 1), (4, 1), (1, 4), (2, 4), (4, 4)],
            stack_seeds: (0..3).collect(),
            stack_steps: 400,
            backend,
        }
    }

    /// The draws of random queries and keys.
    pub(super) fn draws(&self) -> Vec<Draw> {
        let mut draws = Vec::new();
        for &seed in &self.seeds {
            for &sigma in &self.sigmas {
                for &d in &self.drawn_widths {
                    draws.push(self.draw(d, sigma, seed));
                }
            }
        }
        draws
    }

    pub(super) fn draw(&self, d: usize, sigma: f64, seed: u64) -> Draw {
        Draw {
            d,
            sigma,
            sets: self.sets,
            seed,
            backend: self.backend,
        }
    }

    /// The training runs, each once.
    pub(super) fn trainings(&self) -> Vec<Training> {
        let mut all = Vec::new();
        for &seed in &self.seeds {
            for &d_k in &self.d_k {
                all.extend(Arm::ALL.map(|arm| self.training(arm, d_k, seed)));
            }
            for &d_k in &self.rate_d_k {
                for &rate in &self.rates {
                    for arm in [Arm::Scaled, Arm::Unscaled] {
                        all.push(self.at_rate(arm, d_k, rate, seed));
                    }
                }
            }
        }
        for &seed in &self.stack_seeds {
            for &(layers, heads) in &self.stacks {
                for arm in [Arm::Scaled, Arm::Unscaled] {
                    all.push(self.stack(arm, layers, heads, seed));
                }
            }
        }
        // One run may serve two claims.
        let mut once = Vec::new();
        for training in all {
            if !once.contains(&training) {
                once.push(training);
            }
        }
        once
    }

    /// A run of all its steps, whenever the task is learned.
    pub(super) fn training(&self, arm: Arm, d_k: usize, seed: u64) -> Training {
        let largest = self.d_k.iter().max() == Some(&d_k);
        let kept = [0, 10, 20, 30, 50, 100, 200, 300, 400, 500, 600];
        Training {
            config: RunConfig {
                steps: self.steps,
                ..self.config(arm, d_k, seed)
            },
            weights_after: match largest && self.seeds.first() == Some(&seed) {
                true => kept
                    .into_iter()
                    .filter(|after| *after <= self.steps)
                    .collect(),
                false => Vec::new(),
            },
        }
    }

    /// A run at a learning rate, which ends when the task is learned.
    pub(super) fn at_rate(&self, arm: Arm, d_k: usize, rate: f64, seed: u64) -> Training {
        Training {
            config: RunConfig {
                lr: Some(rate),
                steps: self.rate_steps,
                stop: Some(Self::stop()),
                log_every: 10,
                probe_every: 50,
                ..self.config(arm, d_k, seed)
            },
            weights_after: Vec::new(),
        }
    }

    /// A run of a stack, which ends when the task is learned.
    pub(super) fn stack(&self, arm: Arm, layers: usize, heads: usize, seed: u64) -> Training {
        Training {
            config: RunConfig {
                layers,
                heads,
                steps: self.stack_steps,
                stop: Some(Self::stop()),
                log_every: 10,
                probe_every: 50,
                ..self.config(arm, self.stack_d_k, seed)
            },
            weights_after: Vec::new(),
        }
    }

    /// Ends a run at the step at which it has learned.
    fn stop() -> Stop {
        Stop {
            then: 0,
            ..Stop::default()
        }
    }

    fn config(&self, arm: Arm, d_k: usize, seed: u64) -> RunConfig {
        let config = RunConfig {
            scale: arm.scale(),
            init: arm.init(),
            d_k,
            seed,
            backend: self.backend,
            log_every: 5,
            probe_every: 5,
            ..RunConfig::default()
        };
        // Written out, so that a change of the default is another run.
        RunConfig {
            lr: Some(config.lr()),
            ..config
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_run_can_be_run_and_none_is_there_twice() {
        for plan in [
            Plan::quick(Backend::default()),
            Plan::full(Backend::default()),
        ] {
            let trainings = plan.trainings();
            for (place, training) in trainings.iter().enumerate() {
                assert!(training.config.clone().check().is_ok(), "{training:?}");
                assert!(!trainings[..place].contains(training), "{training:?}");
            }
            let draws = plan.draws();
            assert_eq!(draws.len(), plan.seeds.len() * 15);
        }
    }

    #[test]
    fn one_run_an_arm_keeps_a_samples_weights() {
        let plan = Plan::quick(Backend::default());
        let trainings = plan.trainings();
        let kept: Vec<&Training> = trainings
            .iter()
            .filter(|training| !training.weights_after.is_empty())
            .collect();
        assert_eq!(kept.len(), 3);
        for training in kept {
            assert_eq!((training.config.d_k, training.config.seed), (256, 0));
            assert_eq!(training.weights_after.last(), Some(&400));
        }
    }
}
