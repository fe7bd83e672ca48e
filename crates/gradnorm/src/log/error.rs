//! What can be wrong with a run's directory, its log or a record.

use std::fmt::{self, Display};
use std::io;
use std::path::PathBuf;

use super::SCHEMA_VERSION;

/// Why a run could not be written or read; every message begins with the path.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The operating system refused.
    #[error("{path}: cannot {action}: {source}")]
    Io {
        /// What the operation was on.
        path: PathBuf,
        /// What was to be done, as in "cannot create".
        action: &'static str,
        /// What the operating system says.
        source: io::Error,
    },
    /// A new run was to be put where a run is already.
    #[error("{path}: already holds a run; choose another directory, or resume the run")]
    Occupied {
        /// The directory.
        path: PathBuf,
    },
    /// A directory holds no run.
    #[error("{path}: holds no run: it has no {file}")]
    NotARun {
        /// The directory.
        path: PathBuf,
        /// The file that is not there.
        file: &'static str,
    },
    /// Another writer has the run open.
    #[error("{path}: another writer has this run open")]
    Busy {
        /// The directory.
        path: PathBuf,
    },
    /// A config was to be written that has no place in `config.json`, or such a file was read.
    #[error("{path}: not a config: {why}")]
    BadConfig {
        /// The config's file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A record was to be written that is none; nothing was written.
    #[error("{path}: record not written: {why}")]
    BadRecord {
        /// The log's file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A line of a log is not a record.
    #[error("{0}")]
    BadLine(BadLine),
    /// A log was written by a newer version of this crate.
    #[error(
        "{path}: line {line}: written in schema {found}; this version of gradnorm reads schemas up \
         to {SCHEMA_VERSION}"
    )]
    NewerSchema {
        /// The log's file.
        path: PathBuf,
        /// The line's number, from 1.
        line: usize,
        /// The line's schema.
        found: u64,
    },
}

/// A line of a log that is not a record.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BadLine {
    /// The log's file.
    pub path: PathBuf,
    /// The line's number, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub why: String,
    /// Whether it is the last line and lacks its end: the writer was killed in the middle of it, or
    /// is still at work.
    pub torn: bool,
}

impl Display for BadLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let torn = if self.torn { "half-written: " } else { "" };
        let (path, line, why) = (self.path.display(), self.line, &self.why);
        write!(f, "{path}: line {line}: {torn}{why}")
    }
}
