//! Run logs as TensorBoard's event files.
//!
//! An event file is a sequence of records, each with the checksums that the TFRecord format asks
//! for, and each holding one message: the `Event` of TensorBoard's `event.proto`, of which the
//! fields that scalars need are declared here.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use indexmap::IndexMap;
use prost::Message;

use crate::log::{CONFIG_FILE, SCHEMA_FIELD, STEP_FIELD, io_error};
use crate::{LogError, RunLog};

/// TensorBoard takes a file for its own if its name has `tfevents` in it.
const FILE: &str = "events.out.tfevents.gradnorm";
const DRAFT: &str = ".gradnorm.partial";
/// What the first event of a file says of its format.
const FILE_VERSION: &str = "brain.Event:2";

#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
}

#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Scalar>,
}

#[derive(Clone, PartialEq, Message)]
struct Scalar {
    #[prost(string, tag = "1")]
    tag: String,
    // Optional, so that a 0 is written too.
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
}

/// Writes the quantities of a log to an event file in a directory, and gives the file's path.
///
/// Each number of the log's lines is a scalar at the line's step, to the precision of an `f32`. Its
/// tag is its path with a slash for the first dot, so that TensorBoard shows `grad_norm/query` and
/// `grad_norm/all` under one heading. If a log has a step several times, the last line counts.
/// A log does not know the time of day: all events have that of the run's start.
///
/// The directory is made if it is not there; its name is what TensorBoard calls the run. A file
/// written before is replaced in one move, so that a log that has grown can be written again while
/// TensorBoard runs.
///
/// # Errors
///
/// [`LogError::Io`] for what the operating system refuses.
///
/// # Example
///
/// ```
/// use gradnorm::{RunLog, RunWriter, tensorboard};
/// use serde_json::json;
///
/// # let parent = tempfile::tempdir()?;
/// # let (dir, board) = (parent.path().join("run"), parent.path().join("board"));
/// let mut run = RunWriter::create(&dir, &json!({}))?;
/// run.append(&json!({"step": 0, "loss": 2.5}))?;
///
/// let file = tensorboard::write(&RunLog::read(&dir)?, board.join("run"))?;
/// assert!(file.ends_with("run/events.out.tfevents.gradnorm"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn write(log: &RunLog, dir: impl AsRef<Path>) -> Result<PathBuf, LogError> {
    let dir = dir.as_ref();
    let config = log.dir().join(CONFIG_FILE);
    let started = fs::metadata(&config)
        .and_then(|config| config.modified())
        .map_err(|e| io_error(&config, "read", e))?;
    fs::create_dir_all(dir).map_err(|e| io_error(dir, "create", e))?;
    let (path, draft) = (dir.join(FILE), dir.join(DRAFT));
    write_events(&draft, log, seconds(started)).map_err(|e| io_error(&draft, "write", e))?;
    fs::rename(&draft, &path).map_err(|e| io_error(&path, "create", e))?;
    Ok(path)
}

fn write_events(path: &Path, log: &RunLog, wall_time: f64) -> io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    let version = Event {
        wall_time,
        file_version: Some(FILE_VERSION.to_string()),
        ..Event::default()
    };
    write_record(&mut out, &version.encode_to_vec())?;
    for (step, scalars) in by_step(log) {
        let scalar = |(tag, value): (String, f64)| Scalar {
            tag,
            simple_value: Some(value as f32),
        };
        let event = Event {
            wall_time,
            step: step.try_into().unwrap_or(i64::MAX),
            summary: Some(Summary {
                value: scalars.into_iter().map(scalar).collect(),
            }),
            ..Event::default()
        };
        write_record(&mut out, &event.encode_to_vec())?;
    }
    out.into_inner()?.sync_all()
}

/// The numbers of each step by their tags, in the order of the log.
fn by_step(log: &RunLog) -> BTreeMap<u64, IndexMap<String, f64>> {
    let mut steps: BTreeMap<u64, IndexMap<String, f64>> = BTreeMap::new();
    for line in log.lines() {
        let scalars = steps.entry(line.step()).or_default();
        line.for_each_number(|path, value| {
            if ![SCHEMA_FIELD, STEP_FIELD].contains(&path) {
                scalars.insert(path.replacen('.', "/", 1), value);
            }
        });
    }
    steps
}

fn seconds(time: SystemTime) -> f64 {
    let since = time.duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

/// A record: its length, that length's checksum, its bytes, and their checksum.
fn write_record(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    let len = (bytes.len() as u64).to_le_bytes();
    out.write_all(&len)?;
    out.write_all(&masked_checksum(&len).to_le_bytes())?;
    out.write_all(bytes)?;
    out.write_all(&masked_checksum(bytes).to_le_bytes())
}

/// CRC-32C, rotated and shifted as TFRecord does, because records may hold checksums themselves.
fn masked_checksum(bytes: &[u8]) -> u32 {
    let checksum = crc32c::crc32c(bytes);
    checksum.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RunWriter;
    use serde_json::json;

    /// The events of a file, with its checksums verified.
    fn read(path: &Path) -> Vec<Event> {
        let bytes = fs::read(path).unwrap();
        let mut rest = bytes.as_slice();
        let mut take = |len: usize| {
            let (taken, left) = rest.split_at(len);
            rest = left;
            (taken, left.is_empty())
        };
        let mut events = Vec::new();
        loop {
            let (len, _) = take(8);
            assert_eq!(take(4).0, masked_checksum(len).to_le_bytes());
            let (event, _) = take(u64::from_le_bytes(len.try_into().unwrap()) as usize);
            let (checksum, end) = take(4);
            assert_eq!(checksum, masked_checksum(event).to_le_bytes());
            events.push(Event::decode(event).unwrap());
            if end {
                return events;
            }
        }
    }

    fn scalars(event: &Event) -> Vec<(&str, f32)> {
        let summary = event.summary.as_ref().unwrap();
        let scalars = summary.value.iter();
        scalars
            .map(|scalar| (scalar.tag.as_str(), scalar.simple_value.unwrap()))
            .collect()
    }

    #[test]
    fn checksums_are_castagnoli_s_masked() {
        // The check value of CRC-32C is 0xe3069283; rotated right by 15 bits it is 0x2507c60d.
        assert_eq!(
            masked_checksum(b"123456789"),
            0x2507_c60d_u32.wrapping_add(0xa282_ead8)
        );
    }

    #[test]
    fn every_number_of_a_log_is_a_scalar_of_its_step_once() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("run");
        let mut run = RunWriter::create(&dir, &json!({})).unwrap();
        run.append(
            &json!({"step": 0, "loss": 0.0, "grad_norm": {"all": 0.1, "params": {"a.b": 3}}}),
        )
        .unwrap();
        run.append(&json!({"step": 4, "loss": 9, "old": 1}))
            .unwrap();
        run.append(&json!({"step": 2, "name": "x", "attention": [{"p50": 1}]}))
            .unwrap();
        run.append(&json!({"step": 4, "loss": 1e300})).unwrap();

        let path = write(&RunLog::read(&dir).unwrap(), parent.path().join("board")).unwrap();
        let events = read(&path);
        assert_eq!(events[0].file_version.as_deref(), Some("brain.Event:2"));
        let steps: Vec<i64> = events[1..].iter().map(|event| event.step).collect();
        assert_eq!(steps, [0, 2, 4]);
        assert_eq!(
            scalars(&events[1]),
            [
                ("loss", 0.0),
                ("grad_norm/all", 0.1),
                ("grad_norm/params.a.b", 3.0)
            ]
        );
        assert_eq!(scalars(&events[2]), [("attention/0.p50", 1.0)]);
        assert_eq!(scalars(&events[3]), [("loss", f32::INFINITY), ("old", 1.0)]);
    }

    #[test]
    fn a_log_that_has_grown_replaces_its_file_and_begins_with_the_same_bytes() {
        let parent = tempfile::tempdir().unwrap();
        let (dir, board) = (parent.path().join("run"), parent.path().join("board"));
        let mut run = RunWriter::create(&dir, &json!({})).unwrap();
        let written = || fs::read(write(&RunLog::read(&dir).unwrap(), &board).unwrap()).unwrap();
        run.append(&json!({"step": 0, "loss": "NaN"})).unwrap();
        let before = written();
        run.append(&json!({"step": 1, "loss": "-inf"})).unwrap();
        let after = written();
        assert!(after.len() > before.len() && after.starts_with(&before));
        let events = read(&board.join(FILE));
        assert!(scalars(&events[1])[0].1.is_nan());
        assert_eq!(scalars(&events[2]), [("loss", f32::NEG_INFINITY)]);
        assert_eq!(fs::read_dir(&board).unwrap().count(), 1);
    }

    #[test]
    fn a_place_that_cannot_be_written_to_is_named() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("run");
        drop(RunWriter::create(&dir, &json!({})).unwrap());
        let log = RunLog::read(&dir).unwrap();
        let below_a_file = dir.join("config.json/board");
        assert_eq!(
            write(&log, &below_a_file).unwrap_err().to_string(),
            format!(
                "{}: cannot create: Not a directory (os error 20)",
                below_a_file.display()
            )
        );
    }
}
