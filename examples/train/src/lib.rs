//! Trains one small attention model with and without the `1 / sqrt(d_k)`, and shows what the
//! gradients did.

mod backend;
pub mod cli;
mod comparison;
mod config;
mod data;
mod error;
mod figures;
mod model;
mod plot;
mod progress;
mod random;
mod record;
mod report;
mod summary;
mod training;

pub use backend::Backend;
pub use comparison::{Comparison, folder};
pub use config::{OptimizerKind, RunConfig, Stop};
pub use data::{Batch, KEYS, PAIRS, Sample, Samples, TASK, TOKENS, VALUES};
pub use error::Error;
pub use figures::{Variance, Weights, figures, variances, weights};
pub use model::{Block, Init, Model, ModelConfig};
pub use plot::draw;
pub use record::{GradNorm, Record};
pub use report::{findings, table};
pub use summary::{Measured, Quantity, Row, Spread, rows};
pub use training::{Progress, Run, loss, measure, train, train_in};

/// How many samples the attention statistics of step 0 are taken on: the median over a batch of 64
/// is too noisy.
pub const MEASURED_SAMPLES: usize = 1024;
