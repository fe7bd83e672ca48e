//! What one run is made of.

use std::path::Path;

use burn::optim::{AdamConfig, ModuleOptimizer, SgdConfig};
use clap::ValueEnum;
use gradnorm::{LogError, RunLog};
use layers::Scale;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::backend::Backend;
use crate::data::TASK;
use crate::model::{Init, ModelConfig};
use crate::{Error, MEASURED_SAMPLES};

/// Everything that decides what a run does; its `config.json`.
///
/// # Example
///
/// ```
/// use train::RunConfig;
///
/// let config = RunConfig { d_k: 64, seed: 3, ..RunConfig::default() };
/// assert_eq!(config.check().unwrap().lr(), 1e-3);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunConfig {
    /// The factor on the scores.
    #[serde(serialize_with = "by_name", deserialize_with = "from_name")]
    pub scale: Scale,
    /// The width of one head.
    pub d_k: usize,
    /// The number of heads.
    pub heads: usize,
    /// The number of attention blocks.
    pub layers: usize,
    /// What the weights, the batches and the measured samples are drawn from.
    pub seed: u64,
    /// How the model starts.
    pub init: Init,
    /// The most steps that are taken.
    pub steps: u64,
    /// Whether and when a run ends before that.
    pub stop: Option<Stop>,
    /// The number of samples in a step.
    pub batch: usize,
    /// What turns gradients into steps.
    pub optimizer: OptimizerKind,
    /// The learning rate; `None` for the optimizer's default.
    pub lr: Option<f64>,
    /// What computes.
    pub backend: Backend,
    /// A step is logged if this divides it.
    pub log_every: u64,
    /// A logged step has attention statistics if this divides it.
    pub probe_every: u64,
}

/// Ends a run that has learned its task.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stop {
    /// The accuracy that counts as learned, as a mean over `window` batches.
    pub accuracy: f64,
    /// How many batches that mean is over.
    pub window: usize,
    /// How many steps are taken after that.
    pub then: u64,
}

/// The optimizers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum OptimizerKind {
    /// [Adam](https://arxiv.org/abs/1412.6980) with that paper's constants.
    Adam,
    /// Plain gradient descent, without momentum.
    Sgd,
}

impl Default for RunConfig {
    fn default() -> Self {
        Self {
            scale: Scale::InvSqrtDim,
            d_k: 256,
            heads: 1,
            layers: 1,
            seed: 0,
            init: Init::Unit,
            steps: 600,
            stop: None,
            batch: 64,
            optimizer: OptimizerKind::Adam,
            lr: None,
            backend: Backend::default(),
            log_every: 1,
            probe_every: 1,
        }
    }
}

/// Accuracy 0.9 over 20 batches, as the comparison counts it.
impl Default for Stop {
    fn default() -> Self {
        Self {
            accuracy: 0.9,
            window: 20,
            then: 20,
        }
    }
}

/// The most that a model, and a batch through it, may need: 2^26 numbers a tensor.
const MOST_NUMBERS: usize = 1 << 26;

impl RunConfig {
    /// The model's part.
    pub fn model(&self) -> ModelConfig {
        ModelConfig::new(self.d_k)
            .with_heads(self.heads)
            .with_layers(self.layers)
            .with_scale(self.scale)
    }

    /// The learning rate.
    pub fn lr(&self) -> f64 {
        self.lr.unwrap_or(match self.optimizer {
            OptimizerKind::Adam => 1e-3,
            OptimizerKind::Sgd => 0.1,
        })
    }

    /// The optimizer at its start.
    pub fn optimizer(&self) -> ModuleOptimizer {
        match self.optimizer {
            // Burn's default epsilon is 1e-5, which many of these gradients are smaller than.
            OptimizerKind::Adam => AdamConfig::new().with_epsilon(1e-8).init(),
            OptimizerKind::Sgd => SgdConfig::new().init(),
        }
    }

    /// The config itself, if it can be run.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for a size that is 0 or too large to be meant, or a learning rate that
    /// is no positive number.
    pub fn check(self) -> Result<Self, Error> {
        for (argument, value) in [
            ("d-k", self.d_k as u64),
            ("heads", self.heads as u64),
            ("layers", self.layers as u64),
            ("steps", self.steps),
            ("batch", self.batch as u64),
            ("log-every", self.log_every),
            ("probe-every", self.probe_every),
        ] {
            if value == 0 {
                return Err(refused(argument, value, "must be at least 1"));
            }
        }
        let lr = self.lr();
        if !(lr > 0.0 && lr.is_finite()) {
            return Err(refused("lr", lr, "must be a positive number"));
        }
        let width = self.d_k.saturating_mul(self.heads);
        if width.saturating_mul(width) > MOST_NUMBERS {
            let why = format!(
                "with --heads {}, tokens have {width} numbers; the most is {}",
                self.heads,
                MOST_NUMBERS.isqrt()
            );
            return Err(refused("d-k", self.d_k, &why));
        }
        if self.layers > 64 {
            return Err(refused("layers", self.layers, "the most is 64"));
        }
        let most = MOST_NUMBERS / (crate::data::TOKENS * width);
        if self.batch > most {
            let why = format!("the most is {most} with tokens of {width} numbers");
            return Err(refused("batch", self.batch, &why));
        }
        Ok(self)
    }

    /// The config of the run in a directory, as its `config.json` states it.
    ///
    /// # Errors
    ///
    /// [`Error::Log`] if the directory holds no run, or its config is none of this program's.
    pub fn of_run(dir: &Path) -> Result<Self, Error> {
        Self::from_fields(RunLog::read_config(dir)?, dir)
    }

    /// The config that the fields of a directory's `config.json` state.
    pub(crate) fn from_fields(fields: Map<String, Value>, dir: &Path) -> Result<Self, Error> {
        let bad = |why: serde_json::Error| LogError::BadConfig {
            path: dir.join("config.json"),
            why: why.to_string(),
        };
        Ok(serde_json::from_value(Value::Object(fields)).map_err(bad)?)
    }

    /// The fields of `config.json`.
    pub(crate) fn fields(&self) -> Map<String, Value> {
        match serde_json::to_value(self.description()) {
            Ok(Value::Object(fields)) => fields,
            _ => unreachable!("a config is an object with string keys"),
        }
    }

    /// The content of `config.json`.
    pub(crate) fn description(&self) -> impl Serialize {
        #[derive(Serialize)]
        struct Description {
            task: &'static str,
            #[serde(flatten)]
            config: RunConfig,
            d_model: usize,
            factor: f64,
            measured_samples: usize,
            version: &'static str,
        }
        Description {
            task: TASK,
            config: Self {
                lr: Some(self.lr()),
                ..self.clone()
            },
            d_model: self.model().d_model(),
            factor: self.scale.factor(self.d_k),
            measured_samples: MEASURED_SAMPLES,
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}

fn refused(argument: &'static str, value: impl ToString, why: &str) -> Error {
    Error::Argument {
        argument,
        value: value.to_string(),
        why: why.to_string(),
    }
}

/// A scale as a log states it: `inv_sqrt_dim`, `fixed:0.125`.
pub(crate) fn by_name<S: Serializer>(scale: &Scale, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(scale)
}

fn from_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Scale, D::Error> {
    let name = String::deserialize(deserializer)?;
    name.parse().map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(config: RunConfig) -> String {
        config.check().unwrap_err().to_string()
    }

    #[test]
    fn a_config_that_cannot_be_run_is_refused_by_its_argument() {
        let base = RunConfig::default;
        assert_eq!(
            message(RunConfig { batch: 0, ..base() }),
            "--batch 0: must be at least 1"
        );
        assert_eq!(
            message(RunConfig {
                lr: Some(-1.0),
                ..base()
            }),
            "--lr -1: must be a positive number"
        );
        assert_eq!(
            message(RunConfig {
                d_k: usize::MAX,
                heads: 2,
                ..base()
            }),
            "--d-k 18446744073709551615: with --heads 2, tokens have 18446744073709551615 numbers; \
             the most is 8192"
        );
        assert_eq!(
            message(RunConfig {
                batch: 1 << 20,
                ..base()
            }),
            "--batch 1048576: the most is 15420 with tokens of 256 numbers"
        );
    }

    #[test]
    fn the_config_file_names_the_task_the_scale_and_the_learning_rate_in_force() {
        let config = RunConfig {
            scale: Scale::Fixed(0.125),
            ..RunConfig::default()
        };
        let json = serde_json::to_value(config.description()).unwrap();
        assert_eq!(json["task"], "associative_recall");
        assert_eq!(json["scale"], "fixed:0.125");
        assert_eq!(json["factor"], 0.125);
        assert_eq!(json["lr"], 1e-3);
        assert_eq!(json["backend"], Backend::default().to_string());
    }
}
