//! What a run needs to go on after an interruption.
//!
//! A checkpoint is the folder `checkpoint-STEP` in the run's: `model.bpk` and `optimizer.bpk` as
//! Burn records them, and `position.json` with the rest. It is made under another name and then
//! renamed, so it is there as a whole or not at all; the one before it goes after that.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use burn::module::Module;
use burn::optim::OptimizerRecord;
use burn::store::{ModuleRecord, RecordError};
use burn::tensor::Device;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::config::RunConfig;
use crate::model::Model;
use crate::training::State;

const PREFIX: &str = "checkpoint-";
const UNFINISHED: &str = "checkpoint.partial";
const MODEL: &str = "model.bpk";
const OPTIMIZER: &str = "optimizer.bpk";
const POSITION: &str = "position.json";

/// The state of a run after some of its steps, on disk.
///
/// # Example
///
/// ```
/// use train::{Checkpoint, RunConfig, start_in};
///
/// # let parent = tempfile::tempdir().unwrap();
/// # let dir = parent.path().join("run");
/// let config = RunConfig { d_k: 4, steps: 3, batch: 8, ..RunConfig::default() };
/// let device = config.backend.device()?;
/// start_in(&dir, &config, &device, 2, |_| ())?;
///
/// let last = Checkpoint::latest(&dir)?.unwrap();
/// assert_eq!(last.step(), 3);
/// let trained = last.model(&config, &device)?;
/// assert_eq!(trained.answer.weight.dims(), [4, 32]);
/// # Ok::<(), train::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    step: u64,
    path: PathBuf,
}

/// `position.json`.
#[derive(Serialize, Deserialize)]
struct Position {
    step: u64,
    /// How many words of the batches' random sequence were drawn.
    drawn: u64,
    /// The accuracy of the last batches.
    accuracy: VecDeque<f64>,
    learned_at: Option<u64>,
}

impl Checkpoint {
    /// The last one of the run in a directory, if there is any.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the directory cannot be read.
    pub fn latest(dir: &Path) -> Result<Option<Self>, Error> {
        Ok(all(dir)?.pop())
    }

    /// How many steps had been taken.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The model after those steps; `config` is the run's.
    ///
    /// # Errors
    ///
    /// [`Error::Checkpoint`] if the file is no record of that model; [`Error::Io`] if it cannot be
    /// read.
    pub fn model(&self, config: &RunConfig, device: &Device) -> Result<Model, Error> {
        self.load_model(State::start(config, device)?.model)
    }

    /// All that the steps to come depend on.
    pub(crate) fn state(&self, config: &RunConfig, device: &Device) -> Result<State, Error> {
        let position = self.position()?;
        let mut state = State::start(config, device)?;
        state.step = position.step;
        state.model = self.load_model(state.model)?;

        let record = self.read(OPTIMIZER)?;
        let record = OptimizerRecord::from_bytes(record).map_err(self.refuse(OPTIMIZER))?;
        let recorded = record.len();
        state.optimizer = state.optimizer.load_record(record);
        // Burn leaves out what it cannot make a state of, and would start that anew.
        let loaded = state.optimizer.to_record().len();
        if loaded != recorded {
            let why = format!("{loaded} of its {recorded} tensors are an optimizer's state");
            return Err(self.refuse(OPTIMIZER)(why));
        }

        state.samples = state.samples.at(position.drawn.into());
        state.learning.last = position.accuracy;
        state.learning.learned_at = position.learned_at;
        Ok(state)
    }

    fn load_model(&self, model: Model) -> Result<Model, Error> {
        let record = ModuleRecord::from_bytes(self.read(MODEL)?);
        let loaded = record.and_then(|record| model.try_load_record(record));
        loaded.map_err(self.refuse(MODEL))
    }

    fn position(&self) -> Result<Position, Error> {
        let text = self.read(POSITION)?;
        let position: Position = serde_json::from_slice(&text).map_err(self.refuse(POSITION))?;
        if position.step != self.step {
            let why = format!("it is of step {}", position.step);
            return Err(self.refuse(POSITION)(why));
        }
        Ok(position)
    }

    fn read(&self, file: &str) -> Result<burn::tensor::Bytes, Error> {
        let path = self.path.join(file);
        let bytes = fs::read(&path).map_err(Error::io(&path, "read"))?;
        Ok(burn::tensor::Bytes::from_bytes_vec(bytes))
    }

    fn refuse<E: ToString>(&self, file: &str) -> impl FnOnce(E) -> Error {
        let path = self.path.join(file);
        move |why| Error::Checkpoint {
            path,
            why: why.to_string(),
        }
    }
}

/// The checkpoint in a directory where no run is yet, if there is one.
pub(crate) fn stale_in(dir: &Path) -> Result<Option<PathBuf>, Error> {
    Ok(match dir.try_exists() {
        Ok(true) => Checkpoint::latest(dir)?.map(|checkpoint| checkpoint.path),
        _ => None,
    })
}

/// Puts a state on the disk as the run's checkpoint, in the place of those before it.
pub(crate) fn write(dir: &Path, state: &State) -> Result<(), Error> {
    let files = [
        (MODEL, model_bytes(state)),
        (OPTIMIZER, state.optimizer.to_record().into_bytes()),
        (POSITION, Ok(position_bytes(state))),
    ];
    let earlier = all(dir)?;
    let unfinished = dir.join(UNFINISHED);
    remove(&unfinished)?;
    fs::create_dir(&unfinished).map_err(Error::io(&unfinished, "create"))?;
    for (name, bytes) in files {
        let path = unfinished.join(name);
        let bytes = bytes.map_err(|why| Error::Checkpoint {
            path: path.clone(),
            why: why.to_string(),
        })?;
        write_through(&path, &bytes).map_err(Error::io(&path, "write"))?;
    }
    let path = dir.join(format!("{PREFIX}{}", state.step));
    let publish = || {
        sync_dir(&unfinished)?;
        fs::rename(&unfinished, &path)?;
        sync_dir(dir)
    };
    publish().map_err(Error::io(&path, "create"))?;
    earlier
        .iter()
        .filter(|checkpoint| checkpoint.step != state.step)
        .try_for_each(|checkpoint| remove(&checkpoint.path))
}

fn model_bytes(state: &State) -> Result<burn::tensor::Bytes, RecordError> {
    state.model.clone().into_record().into_bytes()
}

fn position_bytes(state: &State) -> burn::tensor::Bytes {
    let drawn = state.samples.position();
    let position = Position {
        step: state.step,
        drawn: drawn.try_into().expect("no run draws 2^64 words"),
        accuracy: state.learning.last.clone(),
        learned_at: state.learning.learned_at,
    };
    let text = serde_json::to_vec(&position).expect("the position is plain data");
    burn::tensor::Bytes::from_bytes_vec(text)
}

/// The checkpoints of a directory, by ascending step.
fn all(dir: &Path) -> Result<Vec<Checkpoint>, Error> {
    let fail = || Error::io(dir, "read");
    let mut checkpoints = Vec::new();
    for entry in fs::read_dir(dir).map_err(fail())? {
        let entry = entry.map_err(fail())?;
        let name = entry.file_name();
        let step = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        if let Some(Ok(step)) = step.map(str::parse) {
            let path = entry.path();
            checkpoints.push(Checkpoint { step, path });
        }
    }
    checkpoints.sort_by_key(|checkpoint| checkpoint.step);
    Ok(checkpoints)
}

fn write_through(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Brings what a directory lists to the disk; only Unix can.
fn sync_dir(dir: &Path) -> io::Result<()> {
    #[cfg(unix)]
    File::open(dir)?.sync_all()?;
    #[cfg(not(unix))]
    let _ = dir;
    Ok(())
}

fn remove(dir: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io(dir, "remove")(error))
        }
        _ => Ok(()),
    }
}
