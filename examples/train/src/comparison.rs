//! Both arms, several sizes, several seeds.

use std::path::Path;

use burn::tensor::Device;
use layers::Scale;
use serde_json::{Map, Value};

use crate::Error;
use crate::config::RunConfig;
use crate::parallel;
use crate::progress::Display;
use crate::training::{Run, train_in};

/// What is compared: for each size and seed a run with `1 / sqrt(d_k)` and one without, alike in
/// everything else.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// What the runs have in common; its scale, size and seed do not count.
    pub base: RunConfig,
    /// The widths of one head.
    pub d_k: Vec<usize>,
    /// The seeds.
    pub seeds: Vec<u64>,
    /// How many runs go on at the same time.
    pub jobs: usize,
}

impl Comparison {
    /// The runs: all of one seed before those of the next, and the longest first.
    pub fn configs(&self) -> Vec<RunConfig> {
        let mut sizes = self.d_k.clone();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        sizes.dedup();
        let mut configs = Vec::new();
        for &seed in &self.seeds {
            for &d_k in &sizes {
                for scale in [Scale::Unscaled, Scale::InvSqrtDim] {
                    configs.push(RunConfig {
                        scale,
                        d_k,
                        seed,
                        ..self.base.clone()
                    });
                }
            }
        }
        configs
    }

    /// The comparison itself, if all of its runs can be run.
    ///
    /// # Errors
    ///
    /// What [`RunConfig::check`] refuses.
    pub fn check(self) -> Result<Self, Error> {
        for config in self.configs() {
            config.check()?;
        }
        Ok(self)
    }

    /// What the runs have in common: the fields of `config.json` without those that differ.
    pub(crate) fn common(&self) -> Map<String, Value> {
        let config = RunConfig {
            lr: Some(self.base.lr()),
            ..self.base.clone()
        };
        let Ok(Value::Object(mut fields)) = serde_json::to_value(config) else {
            unreachable!("a config is an object with string keys");
        };
        for differing in ["scale", "d_k", "seed"] {
            fields.remove(differing);
        }
        fields
    }

    /// Runs them all, each in a folder of its own in `dir`, in the order of
    /// [`configs`](Self::configs).
    ///
    /// # Errors
    ///
    /// The first that a run gives; those that have begun by then are run to their end.
    pub fn run(&self, dir: &Path, device: &Device) -> Result<Vec<Run>, Error> {
        let configs = self.configs();
        let display = Display::new(&configs, self.jobs);
        let runs = parallel::each(&configs, self.jobs, |config| {
            let bar = display.start(config);
            let run = train_in(&dir.join(folder(config)), config, device, |at| bar.at(at))?;
            display.finish(bar, &run);
            Ok(run)
        });
        display.end();
        runs
    }
}

/// The name of a run's folder, as in `d_k-64_unscaled_seed-0`.
pub fn folder(config: &RunConfig) -> String {
    // A colon is no part of a file's name everywhere.
    let scale = config.scale.to_string().replace(':', "-");
    format!("d_k-{}_{scale}_seed-{}", config.d_k, config.seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_run_has_a_partner_that_differs_in_the_scale_alone() {
        let comparison = Comparison {
            base: RunConfig::default(),
            d_k: vec![32, 64],
            seeds: vec![0, 1],
            jobs: 1,
        };
        let configs = comparison.configs();
        assert_eq!(configs.len(), 8);
        for pair in configs.chunks(2) {
            let as_scaled = RunConfig {
                scale: Scale::InvSqrtDim,
                ..pair[0].clone()
            };
            assert_eq!(pair[0].scale, Scale::Unscaled);
            assert_eq!(pair[1], as_scaled);
        }
        let mut folders: Vec<String> = configs.iter().map(folder).collect();
        folders.dedup();
        assert_eq!(folders.len(), 8);
        assert_eq!(folders[0], "d_k-64_unscaled_seed-0");
    }
}
