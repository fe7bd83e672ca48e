//! What can go wrong for a user.

use std::io;
use std::path::{Path, PathBuf};

use crate::backend::Backend;

/// Why the program stops; every message names the argument or the path at fault.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument has a value that makes no run.
    #[error("--{argument} {value}: {why}")]
    Argument {
        /// The argument, without its dashes.
        argument: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it.
        why: String,
    },
    /// The backend is not part of this build.
    #[error(
        "--backend {0}: not part of this build; build with the feature, as in \
         `cargo run --release -p train --features {0}`"
    )]
    NotBuilt(Backend),
    /// The backend is part of this build, but no device answers.
    #[error("--backend {backend}: no device of it can be used here: {why}")]
    NoDevice {
        /// The backend.
        backend: Backend,
        /// What it says.
        why: String,
    },
    /// The folder for the results holds something already.
    #[error("--out {}: not empty; choose a folder that is new or empty", .0.display())]
    NotEmpty(PathBuf),
    /// A run was to start where the checkpoint of another one is.
    #[error("{}: another run's; remove it, or choose another folder", .0.display())]
    StaleCheckpoint(PathBuf),
    /// A checkpoint cannot be loaded, or is of another run.
    #[error("{}: cannot go on from this checkpoint: {why}", path.display())]
    Checkpoint {
        /// The file of the checkpoint at fault.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A run was to be resumed that another version or program made.
    #[error("{}: its {name} is {stored}, but this program's is {own}", dir.display())]
    NotOurs {
        /// The run.
        dir: PathBuf,
        /// A field of its `config.json`.
        name: String,
        /// What that holds.
        stored: String,
        /// What it would have to hold.
        own: String,
    },
    /// A log has not the lines that its run's checkpoint goes on from.
    #[error(
        "{}: the log has no line of step {step} in its place, though {} goes on after it; to make \
         the run again from its beginning, remove the checkpoint", dir.display(), checkpoint.display())]
    Uncovered {
        /// The run.
        dir: PathBuf,
        /// The first step without its line.
        step: u64,
        /// The checkpoint.
        checkpoint: PathBuf,
    },
    /// There are fewer than two runs that can be compared.
    #[error("nothing to compare: of {given} runs, {comparable} can be compared with the first")]
    NothingToCompare {
        /// How many runs were given.
        given: usize,
        /// How many of them are left, the first included.
        comparable: usize,
    },
    /// A run was given more than once.
    #[error("{}: given twice", .0.display())]
    GivenTwice(PathBuf),
    /// No arm has a run that can be paired with one of the first.
    #[error("nothing to compare: no two runs of different arms have the same {0}")]
    NoPairs(String),
    /// The operating system refused.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// What the operation was on.
        path: PathBuf,
        /// What was to be done, as in "cannot create".
        action: &'static str,
        /// What the operating system says.
        source: io::Error,
    },
    /// A run's log could not be written or read.
    #[error(transparent)]
    Log(#[from] gradnorm::LogError),
    /// A plot could not be drawn.
    #[error("{}: cannot draw: {why}", path.display())]
    Plot {
        /// The plot's file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}

impl Error {
    /// For `map_err`: what the operating system refused to do with a path.
    pub(crate) fn io(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            path: path.into(),
            action,
            source,
        }
    }
}
