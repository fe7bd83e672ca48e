//! Writing a run.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::append::LineAppender;
use super::value::{self, check_record};
use super::{CONFIG_FILE, LogError, METRICS_FILE, SCHEMA_FIELD, SCHEMA_VERSION};
use crate::json;

/// What is to become `config.json`.
const CONFIG_DRAFT: &str = ".config.json.tmp";

/// Writes the log of one run: `config.json` once, then a line of `metrics.jsonl` for each record.
///
/// Each record is one JSON object on one line, with the fields as they serialize and a field
/// `schema` before them. It is handed to the operating system whole, in one write, before
/// [`append`](Self::append) returns: a process that is killed loses at most the line it was
/// writing. (A machine that loses power can lose what came after the last [`sync`](Self::sync).)
/// NaN and infinity, which JSON lacks, are written as the strings `"NaN"`, `"inf"` and `"-inf"`, and
/// read back as numbers by [`RunLog`](crate::RunLog).
///
/// # Example
///
/// ```
/// use gradnorm::{RunLog, RunWriter};
/// use serde_json::json;
///
/// # let parent = tempfile::tempdir()?;
/// # let dir = parent.path().join("run");
/// let mut run = RunWriter::create(&dir, &json!({"task": "sums", "lr": 0.001}))?;
/// run.append(&json!({"step": 0, "loss": 2.5}))?;
/// run.append(&json!({"step": 1, "loss": f64::NAN}))?;
///
/// let metrics = std::fs::read_to_string(dir.join("metrics.jsonl"))?;
/// assert_eq!(metrics.lines().next(), Some(r#"{"schema":1,"step":0,"loss":2.5}"#));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RunWriter {
    dir: PathBuf,
    metrics: PathBuf,
    lines: LineAppender<File>,
}

impl RunWriter {
    /// Starts a run in a directory, which is made if it is not there and may hold other files.
    ///
    /// The config is any value that serializes to a JSON object, such as a Burn `Config`; it is
    /// written as it is, without a schema field. `config.json` is never there half-written: it is
    /// written beside its place, brought to the disk and then renamed.
    ///
    /// # Errors
    ///
    /// [`LogError::Occupied`] if the directory holds a run, which stays as it is;
    /// [`LogError::Busy`] if another writer is at work there; [`LogError::BadConfig`] if the config
    /// is no JSON object; [`LogError::Io`] for what the operating system refuses.
    pub fn create(
        dir: impl AsRef<Path>,
        config: &(impl Serialize + ?Sized),
    ) -> Result<Self, LogError> {
        let dir = dir.as_ref();
        let config_path = dir.join(CONFIG_FILE);
        let config = config_text(config).map_err(|why| LogError::BadConfig {
            path: config_path.clone(),
            why,
        })?;
        fs::create_dir_all(dir).map_err(|e| io_error(dir, "create", e))?;
        // Asked before the log is opened, so that a refused directory gains no file.
        if exists(&config_path)? {
            return Err(LogError::Occupied { path: dir.into() });
        }
        let (run, len) = Self::open(dir)?;
        // Asked again with the log locked: only one of two processes that start here together
        // gets to write a config. An empty log alone is what a process leaves that was killed
        // right here; it is no run.
        if len > 0 || exists(&config_path)? {
            return Err(LogError::Occupied { path: dir.into() });
        }
        write_config(dir, &config_path, &config)?;
        Ok(run)
    }

    /// Whether a directory has nothing in it, or only what a process leaves that was killed in the
    /// middle of [`create`](Self::create), before there was a run.
    ///
    /// # Errors
    ///
    /// [`LogError::Io`] if the directory cannot be read.
    pub fn is_vacant(dir: impl AsRef<Path>) -> Result<bool, LogError> {
        let dir = dir.as_ref();
        let remains = |entry: io::Result<fs::DirEntry>| -> io::Result<bool> {
            let entry = entry?;
            let name = entry.file_name();
            let empty_log = name == METRICS_FILE && entry.metadata()?.len() == 0;
            Ok(empty_log || name == CONFIG_DRAFT)
        };
        fs::read_dir(dir)
            .and_then(|mut entries| {
                entries.try_fold(true, |so_far, entry| Ok(so_far && remains(entry)?))
            })
            .map_err(|e| io_error(dir, "read", e))
    }

    /// Goes on with a run: what is appended comes after what is there, which is not touched.
    ///
    /// If the last line is half-written, the next one starts on a new line; the reader reports the
    /// fragment as a bad line. A loop that goes back to a checkpoint takes away what it will log
    /// again with [`cut_back`](Self::cut_back); if it does not, comparisons take the later line of
    /// a step.
    ///
    /// # Errors
    ///
    /// [`LogError::NotARun`] if the directory has no `config.json`; [`LogError::Busy`] if another
    /// writer is at work there; [`LogError::Io`] for what the operating system refuses.
    ///
    /// # Example
    ///
    /// ```
    /// use gradnorm::{RunLog, RunWriter};
    /// use serde_json::json;
    ///
    /// # let parent = tempfile::tempdir()?;
    /// # let dir = parent.path().join("run");
    /// let mut run = RunWriter::create(&dir, &json!({}))?;
    /// run.append(&json!({"step": 0}))?;
    /// drop(run);
    ///
    /// let mut run = RunWriter::resume(&dir)?;
    /// run.append(&json!({"step": 1}))?;
    /// assert_eq!(RunLog::read(&dir)?.lines().len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn resume(dir: impl AsRef<Path>) -> Result<Self, LogError> {
        let dir = dir.as_ref();
        if !exists(&dir.join(CONFIG_FILE))? {
            return Err(LogError::NotARun {
                path: dir.into(),
                file: CONFIG_FILE,
            });
        }
        Ok(Self::open(dir)?.0)
    }

    /// Appends one record: any value that serializes to a JSON object with a whole number `step`.
    ///
    /// # Errors
    ///
    /// [`LogError::BadRecord`] if the value is not such an object or has a field `schema`, in which
    /// case nothing is written; [`LogError::Io`] if the write fails. What a failed write (a full
    /// disk) has left of its line is taken away again where that can be done; in any case, the next
    /// record is put on a line of its own.
    pub fn append(&mut self, record: &(impl Serialize + ?Sized)) -> Result<(), LogError> {
        let line = record_line(record).map_err(|why| LogError::BadRecord {
            path: self.metrics.clone(),
            why,
        })?;
        self.lines
            .append(&line)
            .map_err(|e| io_error(&self.metrics, "append to", e))
    }

    /// Goes back to before a step: takes away the first record of `step` or a later one, and
    /// everything after it; a half-written last line too.
    ///
    /// For a loop that goes on from a checkpoint and will log those steps again. The bytes of the
    /// lines before stay as they are.
    ///
    /// # Errors
    ///
    /// [`LogError::Io`] for what the operating system refuses.
    ///
    /// # Example
    ///
    /// ```
    /// use gradnorm::{RunLog, RunWriter};
    /// use serde_json::json;
    ///
    /// # let parent = tempfile::tempdir()?;
    /// # let dir = parent.path().join("run");
    /// let mut run = RunWriter::create(&dir, &json!({}))?;
    /// for step in 0..5 {
    ///     run.append(&json!({"step": step}))?;
    /// }
    /// run.cut_back(3)?;
    /// run.append(&json!({"step": 3, "again": true}))?;
    /// assert_eq!(RunLog::read(&dir)?.lines().len(), 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cut_back(&mut self, step: u64) -> Result<(), LogError> {
        let file = self.lines.get_mut();
        let (len, mid_line) =
            whole_before(file, step).map_err(|e| io_error(&self.metrics, "read", e))?;
        self.lines
            .cut(len, mid_line)
            .map_err(|e| io_error(&self.metrics, "shorten", e))
    }

    /// Returns when everything appended so far is on the disk, and survives a loss of power.
    ///
    /// # Errors
    ///
    /// [`LogError::Io`] if the disk cannot take it; some file systems only say so here.
    pub fn sync(&mut self) -> Result<(), LogError> {
        let file = self.lines.get_mut();
        file.sync_data()
            .map_err(|e| io_error(&self.metrics, "bring to the disk", e))
    }

    /// Puts another config in the place of the run's, in one move: for a run that is to go on
    /// longer than was planned.
    ///
    /// # Errors
    ///
    /// [`LogError::BadConfig`] if the config is no JSON object; [`LogError::Io`] for what the
    /// operating system refuses. The config that is there stays.
    pub fn replace_config(&mut self, config: &(impl Serialize + ?Sized)) -> Result<(), LogError> {
        let path = self.dir.join(CONFIG_FILE);
        match config_text(config) {
            Ok(text) => write_config(&self.dir, &path, &text),
            Err(why) => Err(LogError::BadConfig { path, why }),
        }
    }

    /// The run's directory, as it was given.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Opens the log for appending, for this writer alone, and gives its length.
    fn open(dir: &Path) -> Result<(Self, u64), LogError> {
        let metrics = dir.join(METRICS_FILE);
        let fail = |action| {
            let metrics = metrics.clone();
            move |e| io_error(&metrics, action, e)
        };
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(&metrics)
            .map_err(fail("open"))?;
        match file.try_lock() {
            Ok(()) => (),
            Err(TryLockError::WouldBlock) => return Err(LogError::Busy { path: dir.into() }),
            // Some network file systems have no locks. There, two writers are the user's to avoid.
            Err(TryLockError::Error(e)) if e.kind() == io::ErrorKind::Unsupported => (),
            Err(TryLockError::Error(e)) => return Err(fail("lock")(e)),
        }
        let len = file.seek(SeekFrom::End(0)).map_err(fail("read"))?;
        let mid_line = len > 0 && last_byte(&mut file).map_err(fail("read"))? != b'\n';
        let run = Self {
            dir: dir.into(),
            metrics: metrics.clone(),
            lines: LineAppender::new(file, mid_line),
        };
        Ok((run, len))
    }
}

fn config_text(config: &(impl Serialize + ?Sized)) -> Result<String, String> {
    let text = json::to_pretty(config).map_err(|e| e.to_string())?;
    if text.starts_with('{') {
        Ok(text)
    } else {
        Err("a config is a JSON object".to_string())
    }
}

fn record_line(record: &(impl Serialize + ?Sized)) -> Result<String, String> {
    let text = json::to_line(record).map_err(|e| e.to_string())?;
    check_record(&text)?;
    // A checked record is an object with at least one field.
    let fields = &text[1..];
    Ok(format!("{{\"{SCHEMA_FIELD}\":{SCHEMA_VERSION},{fields}"))
}

fn write_config(dir: &Path, path: &Path, text: &str) -> Result<(), LogError> {
    let beside = dir.join(CONFIG_DRAFT);
    let write = || {
        let mut file = File::create(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, path)?;
        // The rename itself is on the disk once the directory is; only Unix can sync one.
        #[cfg(unix)]
        File::open(dir)?.sync_all()?;
        Ok(())
    };
    write().map_err(|e| io_error(path, "write", e))
}

/// The length of what comes before the first record of `step` or later, without a half-written last
/// line; and whether the last line of that lacks its end.
fn whole_before(file: &mut File, step: u64) -> io::Result<(u64, bool)> {
    file.seek(SeekFrom::Start(0))?;
    let mut lines = BufReader::new(file);
    let (mut len, mut mid_line) = (0, false);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = lines.read_until(b'\n', &mut line)?;
        let ended = line.ends_with(b"\n");
        let goes = match value::parse_line(line.trim_ascii_end()) {
            Ok(record) => record.step >= step,
            Err(_) => !ended,
        };
        if read == 0 || goes {
            return Ok((len, mid_line));
        }
        len += read as u64;
        mid_line = !ended;
    }
}

fn last_byte(file: &mut File) -> io::Result<u8> {
    let mut byte = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut byte)?;
    Ok(byte[0])
}

fn exists(path: &Path) -> Result<bool, LogError> {
    path.try_exists().map_err(|e| io_error(path, "look for", e))
}

pub(crate) fn io_error(path: &Path, action: &'static str, source: io::Error) -> LogError {
    LogError::Io {
        path: path.into(),
        action,
        source,
    }
}
