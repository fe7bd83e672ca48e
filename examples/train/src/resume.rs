//! Runs that survive an interruption.

use std::path::Path;

use burn::tensor::Device;
use gradnorm::{RunLog, RunWriter};
use serde_json::{Map, Value};

use crate::Error;
use crate::checkpoint::{self, Checkpoint};
use crate::config::RunConfig;
use crate::training::{Learning, Progress, Run, State, go_on};

/// What [`resume_in`] came to.
#[derive(Clone, Debug)]
pub enum Resumed {
    /// The run had taken all of its steps, and was left as it is.
    Finished {
        /// How many those are.
        steps: u64,
    },
    /// The run went on to its end.
    WentOn {
        /// The step it went on with.
        from: u64,
        /// What came of it.
        run: Run,
    },
}

/// Trains as [`train_in`](crate::train_in) does, with a [`Checkpoint`] in the directory after every
/// `checkpoint_every` steps, or none if that is 0, and one at the end.
///
/// # Errors
///
/// As [`train_in`](crate::train_in); [`Error::StaleCheckpoint`] if the directory has the checkpoint
/// of another run; [`Error::Io`] if a checkpoint cannot be written.
pub fn start_in(
    dir: &Path,
    config: &RunConfig,
    device: &Device,
    checkpoint_every: u64,
    watch: impl FnMut(&Progress),
) -> Result<Run, Error> {
    let config = config.clone().check()?;
    let state = State::start(&config, device)?;
    if let Some(path) = checkpoint::stale_in(dir)? {
        return Err(Error::StaleCheckpoint(path));
    }
    let log = RunWriter::create(dir, &config.description())?;
    train_logged(state, log, &config, device, checkpoint_every, watch)
}

/// Goes on with the run in a directory from its last [`Checkpoint`], or from the beginning if it has
/// none yet; its log is then that of a run that was never interrupted, byte for byte on the CPU
/// backends.
///
/// `config` is the run's, but may have more steps. Lines of the log that the checkpoint does not
/// cover are taken away and made again.
///
/// # Errors
///
/// [`Error::Argument`] if the run is of another config, [`Error::NotOurs`] if another version made
/// it; [`Error::Uncovered`] if its log lacks lines of steps before the checkpoint;
/// [`Error::Checkpoint`] if that cannot be loaded; [`Error::Log`] if the directory holds no run, or
/// one that is being written; [`Error::Io`] for what the operating system refuses.
pub fn resume_in(
    dir: &Path,
    config: &RunConfig,
    device: &Device,
    checkpoint_every: u64,
    watch: impl FnMut(&Progress),
) -> Result<Resumed, Error> {
    let config = config.clone().check()?;
    let mut log = RunWriter::resume(dir)?;
    let longer = continues(&config, &RunLog::read_config(dir)?, dir)?;
    let (state, finished) = match Checkpoint::latest(dir)? {
        Some(checkpoint) => {
            covers(dir, &config, &checkpoint)?;
            let state = checkpoint.state(&config, device)?;
            let finished = state.is_over(&config).then_some(state.step);
            (state, finished)
        }
        None => (State::start(&config, device)?, complete(dir, &config)?),
    };
    if let Some(steps) = finished {
        return Ok(Resumed::Finished { steps });
    }
    if longer {
        log.replace_config(&config.description())?;
    }
    log.cut_back(state.step)?;
    let from = state.step;
    let run = train_logged(state, log, &config, device, checkpoint_every, watch)?;
    Ok(Resumed::WentOn { from, run })
}

fn train_logged(
    state: State,
    mut log: RunWriter,
    config: &RunConfig,
    device: &Device,
    checkpoint_every: u64,
    mut watch: impl FnMut(&Progress),
) -> Result<Run, Error> {
    go_on(state, config, device, |state, progress| {
        if let Some(record) = progress.record {
            log.append(record)?;
        }
        watch(progress);
        // Never, if that is 0: a step was taken.
        let due = state.step.is_multiple_of(checkpoint_every);
        if due || state.is_over(config) {
            // First what a checkpoint covers, then the checkpoint.
            log.sync()?;
            checkpoint::write(log.dir(), state)?;
        }
        Ok(())
    })
}

/// The fields of `config.json` that arguments give, with the arguments' names.
const ARGUMENTS: [(&str, &str); 13] = [
    ("scale", "scale"),
    ("d_k", "d-k"),
    ("heads", "heads"),
    ("layers", "layers"),
    ("seed", "seed"),
    ("init", "init"),
    ("steps", "steps"),
    ("batch", "batch"),
    ("optimizer", "optimizer"),
    ("lr", "lr"),
    ("backend", "backend"),
    ("log_every", "log-every"),
    ("probe_every", "probe-every"),
];

/// Refuses a config that is not the one of a run, but for more steps; says whether it has those.
fn continues(config: &RunConfig, stored: &Map<String, Value>, dir: &Path) -> Result<bool, Error> {
    let asked = config.fields();
    let refused = |name: &str, rule| contradiction(name, &asked, stored, dir, rule);
    let names = asked.keys().chain(stored.keys());
    for name in names.filter(|name| *name != "steps") {
        if asked.get(name) != stored.get(name) {
            return Err(refused(name, "a run goes on as it was started"));
        }
    }
    match stored.get("steps").and_then(Value::as_u64) {
        Some(steps) if steps <= config.steps => Ok(steps < config.steps),
        _ => Err(refused("steps", "steps can only be raised")),
    }
}

fn contradiction(
    name: &str,
    asked: &Map<String, Value>,
    stored: &Map<String, Value>,
    dir: &Path,
    rule: &str,
) -> Error {
    let text = |fields: &Map<String, Value>| match fields.get(name) {
        None | Some(Value::Null) => "none".to_string(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    let (stored, asked) = (text(stored), text(asked));
    match ARGUMENTS.iter().find(|(field, _)| *field == name) {
        Some((_, argument)) => Error::Argument {
            argument,
            value: asked,
            why: format!("the run in {} has {stored}, and {rule}", dir.display()),
        },
        None => Error::NotOurs {
            dir: dir.into(),
            name: name.to_string(),
            stored,
            own: asked,
        },
    }
}

/// Refuses a log that lacks a line of a step before the checkpoint, or has others there.
fn covers(dir: &Path, config: &RunConfig, checkpoint: &Checkpoint) -> Result<(), Error> {
    let mut steps = (0..checkpoint.step()).step_by(config.log_every as usize);
    let mut next = steps.next();
    let mut place = 0;
    let mut in_place = true;
    RunLog::scan(dir, |line| {
        place += 1;
        if in_place && next.is_some() {
            in_place = line.is_ok_and(|line| Some(line.step()) == next && line.line() == place);
            if in_place {
                next = steps.next();
            }
        }
    })?;
    match next {
        None => Ok(()),
        Some(step) => Err(Error::Uncovered {
            dir: dir.into(),
            step,
            checkpoint: checkpoint.path().into(),
        }),
    }
}

/// How many steps a run without a checkpoint has taken whose log shows that it is finished, every
/// step being logged; `None` for any other run.
///
/// Where not every step is logged, the log does not tell a finished run from one that was stopped
/// after its last line: the run is then made again, with the same lines.
fn complete(dir: &Path, config: &RunConfig) -> Result<Option<u64>, Error> {
    if config.log_every != 1 {
        return Ok(None);
    }
    let mut learning = Learning::new(config.stop.unwrap_or_default());
    let mut next = 0;
    let mut in_place = true;
    RunLog::scan(dir, |line| {
        let accuracy = line.as_ref().ok().and_then(|line| line.number("accuracy"));
        match (line, accuracy) {
            (Ok(line), Some(accuracy)) if line.step() == next => learning.add(next, accuracy),
            _ => in_place = false,
        }
        next += 1;
    })?;
    Ok((in_place && learning.is_over(next, config)).then_some(next))
}
