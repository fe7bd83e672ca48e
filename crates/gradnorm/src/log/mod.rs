//! Run logs: one directory a run, with `config.json` and `metrics.jsonl`.

mod append;
mod error;
mod reader;
mod value;
mod writer;

pub use error::{BadLine, LogError};
pub use reader::{LogLine, RunLog};
pub(crate) use value::find;
pub use writer::RunWriter;
#[cfg(feature = "tensorboard")]
pub(crate) use writer::io_error;

/// The version of the log format that this crate writes, and the newest that it reads.
pub const SCHEMA_VERSION: u64 = 1;

pub(crate) const CONFIG_FILE: &str = "config.json";
const METRICS_FILE: &str = "metrics.jsonl";
pub(crate) const SCHEMA_FIELD: &str = "schema";
pub(crate) const STEP_FIELD: &str = "step";
