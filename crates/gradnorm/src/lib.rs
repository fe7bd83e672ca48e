//! Gradient norms of any Burn model: measure, clip, record, read back, compare.
//!
//! - [`GradientNorms`]: the L2 norm of every parameter's gradient, by path, in one transfer.
//! - [`clip_global_norm`]: all gradients scaled together to a bound on their common norm.
//! - [`RunWriter`] and [`RunLog`]: a directory for each run, with its config and one line of JSON a
//!   record.
//! - [`Compare`]: the quantities of several runs side by side, or of several runs an arm in pairs,
//!   with intervals.
//! - `tensorboard`, a module behind the feature of that name: logs as TensorBoard's event files.
//! - `GradientNormMetric` (feature `metrics`): the norms in burn-train's dashboard and log files.
//!
//! Norms are L2 norms of the gradients of one step, before clipping, in the units of the loss per
//! unit of the parameter.
//!
//! # Example
//!
//! A layer trained for three steps with clipping, its gradient norms logged, and the log compared
//! with that of a second run.
//!
//! ```
//! use burn::module::Module;
//! use burn::nn::{Linear, LinearConfig};
//! use burn::optim::{GradientsParams, Optimizer, SgdConfig};
//! use burn::tensor::{Device, Tensor};
//! use gradnorm::{Compare, Format, GradientNorms, RunLog, RunWriter, Threshold, clip_global_norm};
//! use serde::Serialize;
//! use std::error::Error;
//! use std::path::Path;
//!
//! #[derive(Module, Debug)]
//! struct Model {
//!     hidden: Linear,
//!     output: Linear,
//! }
//!
//! impl Model {
//!     fn loss(&self, x: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
//!         let y = self.output.forward(self.hidden.forward(x).tanh());
//!         (y - target).square().mean()
//!     }
//! }
//!
//! #[derive(Serialize)]
//! struct Config {
//!     task: &'static str,
//!     lr: f64,
//! }
//!
//! /// One line of the log. Only `step` is required.
//! #[derive(Serialize)]
//! struct Record {
//!     step: u64,
//!     loss: f32,
//!     grad_norm: Norms,
//! }
//!
//! #[derive(Serialize)]
//! struct Norms {
//!     all: f64,
//!     weights: Option<f64>,
//!     params: GradientNorms,
//! }
//!
//! fn train(dir: &Path, config: &Config) -> Result<(), Box<dyn Error>> {
//!     let device = Device::default().autodiff();
//!     let mut model = Model {
//!         hidden: LinearConfig::new(2, 8).init(&device),
//!         output: LinearConfig::new(8, 1).init(&device),
//!     };
//!     let mut optimizer = SgdConfig::new().init();
//!     let x = Tensor::<2>::from_floats([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], &device);
//!     let target = Tensor::<2>::from_floats([[1.0], [1.0], [0.0]], &device);
//!
//!     let mut run = RunWriter::create(dir, config)?;
//!     for step in 0..3 {
//!         let loss = model.loss(x.clone(), target.clone());
//!         let mut grads = GradientsParams::from_grads(loss.backward(), &model);
//!         let norms = clip_global_norm(&model, &mut grads, 1.0)?.norms;
//!         run.append(&Record {
//!             step,
//!             loss: loss.into_scalar(),
//!             grad_norm: Norms {
//!                 all: norms.global(),
//!                 weights: norms.matching("**.weight"),
//!                 params: norms,
//!             },
//!         })?;
//!         model = optimizer.step(config.lr, model, grads);
//!     }
//!     Ok(())
//! }
//!
//! # fn main() -> Result<(), Box<dyn Error>> {
//! # let parent = tempfile::tempdir()?;
//! # let (slow, fast) = (parent.path().join("slow"), parent.path().join("fast"));
//! train(&slow, &Config { task: "sums", lr: 0.01 })?;
//! train(&fast, &Config { task: "sums", lr: 0.1 })?;
//!
//! let (slow, fast) = (RunLog::read(&slow)?, RunLog::read(&fast)?);
//! assert_eq!(slow.lines().len(), 3);
//! assert!(slow.lines()[0].number("grad_norm.params.hidden.weight").is_some());
//!
//! let comparison = Compare::new()
//!     .quantity("loss")
//!     .quantity("grad_norm.*")
//!     .first_step(Threshold::at_most("loss", 0.5).mean_over(2))
//!     .of(&[slow, fast]);
//! println!("{}", comparison.render(Format::Table));
//! # assert_eq!(comparison.runs, ["slow", "fast"]);
//! # assert_eq!(comparison.quantities.len(), 3);
//! # assert!(comparison.notes.is_empty());
//! # Ok(())
//! # }
//! ```

mod clip;
mod compare;
mod float;
mod json;
mod log;
#[cfg(feature = "metrics")]
mod metrics;
mod norms;
mod pattern;
#[cfg(feature = "tensorboard")]
pub mod tensorboard;

pub use clip::{Clipped, NonFiniteNorm, clip_global_norm};
pub use compare::{
    Against, Arm, ArmComparison, Compare, Comparison, Estimate, FirstStep, Format, Note, Pair,
    Paired, PairedFirstStep, PairedQuantity, PairedRow, Quantity, Reason, Row, Threshold,
    UnknownFormat,
};
pub use float::deserialize_float;
pub use log::{BadLine, LogError, LogLine, RunLog, RunWriter, SCHEMA_VERSION};
#[cfg(feature = "metrics")]
pub use metrics::{GradientNormInput, GradientNormMetric};
pub use norms::GradientNorms;
pub use pattern::PathPattern;
