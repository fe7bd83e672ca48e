//! Trains one small attention model with and without the `1 / sqrt(d_k)`, and shows what the
//! gradients did.
//!
//! ```text
//! cargo run --release -p train                                  # both arms, plots, a table
//! cargo run --release -p train -- run --scale unscaled          # one run
//! cargo run --release -p train -- run --resume runs/A           # goes on with it
//! cargo run --release -p train -- compare runs/A runs/B         # logs side by side
//! cargo run --release -p train -- tensorboard runs/A --out B    # logs for TensorBoard
//! cargo run --release -p train -- figures                       # worked numbers and theory
//! cargo run --release -p train -- claims                        # each claim, measured and judged
//! ```
//!
//! The task is associative recall: 16 pairs of a key and a value, a question that is one of the
//! keys, and its value as the answer ([`Sample`], [`Batch`]). The model is embeddings, attention
//! and a projection to the answer ([`Model`]). [`train`] is the loop; what it records of a step is
//! a [`Record`], and [`train_in`] writes those to a run's log; [`start_in`] and [`resume_in`] also
//! keep a [`Checkpoint`]. [`Comparison`] runs both arms at
//! several sizes and seeds, [`rows`] makes its table and [`findings`] puts that into words.
//! [`claims`] measures what is claimed of the scale, and reports it.
//!
//! Weights, batches and the measured samples are drawn on the host from the seed (ChaCha with 8
//! rounds; normals by the ziggurat method), so every backend starts equal, both arms start from the
//! same weights, and both see the same batches.
//!
//! # Example
//!
//! ```
//! use train::{RunConfig, train};
//!
//! let config = RunConfig { d_k: 4, steps: 2, batch: 8, ..RunConfig::default() };
//! let device = config.backend.device()?;
//! let run = train(&config, &device, |_| Ok(()))?;
//! let attention = run.records[0].attention.as_ref().unwrap();
//! assert_eq!(run.records.len(), 2);
//! assert!(attention[0].score_grad.unwrap().p50 > 0.0);
//! # Ok::<(), train::Error>(())
//! ```

mod arguments;
mod backend;
mod checkpoint;
pub mod claims;
pub mod cli;
mod comparison;
mod config;
mod data;
mod error;
mod figures;
mod model;
mod parallel;
mod plot;
mod progress;
mod random;
mod record;
mod report;
mod resume;
mod summary;
mod tensorboard;
mod training;

pub use backend::Backend;
pub use checkpoint::Checkpoint;
pub use comparison::{Comparison, folder};
pub use config::{OptimizerKind, RunConfig, Stop};
pub use data::{Batch, KEYS, PAIRS, Sample, Samples, TASK, TOKENS, VALUES};
pub use error::Error;
pub use figures::{Variance, Weights, figures, variances, weights};
pub use model::{Block, Init, Model, ModelConfig};
pub use plot::draw;
pub use record::{GradNorm, Record};
pub use report::{findings, table};
pub use resume::{Resumed, resume_in, start_in};
pub use summary::{Measured, Quantity, Row, Spread, rows};
pub use training::{Progress, Run, loss, measure, train, train_in};

/// How many samples the attention statistics of step 0 are taken on: the median over a batch of 64
/// is too noisy.
pub const MEASURED_SAMPLES: usize = 1024;
