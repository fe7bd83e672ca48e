//! Reading a run.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::value::{self, Refusal};
use super::writer::io_error;
use super::{BadLine, CONFIG_FILE, LogError, METRICS_FILE};

/// A run's config and log, as read from its directory.
///
/// Reading opens files for reading only: a log is never repaired or rewritten, and may be one that
/// a writer is still appending to. A line without a `schema` field is read as one of the first
/// schema, so any program can write such a log; `step`, a whole number, is all that a line needs.
///
/// # Example
///
/// ```
/// use gradnorm::RunLog;
///
/// # let parent = tempfile::tempdir()?;
/// # let dir = parent.path();
/// std::fs::write(dir.join("config.json"), r#"{"task": "sums"}"#)?;
/// std::fs::write(
///     dir.join("metrics.jsonl"),
///     concat!(
///         r#"{"step": 0, "loss": 2.5, "grad_norm": {"query": 0.25}}"#, "\n",
///         r#"{"step": 1, "loss": "inf"}"#, "\n",
///         r#"{"step": 2, "lo"#,
///     ),
/// )?;
///
/// let log = RunLog::read(dir)?;
/// assert_eq!(log.config()["task"], "sums");
/// assert_eq!(log.lines()[0].number("grad_norm.query"), Some(0.25));
/// assert_eq!(log.lines()[1].number("loss"), Some(f64::INFINITY));
/// assert_eq!(log.torn_line().unwrap().line, 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct RunLog {
    dir: PathBuf,
    config: Map<String, Value>,
    lines: Vec<LogLine>,
    bad_lines: Vec<BadLine>,
}

/// One record of a log.
#[derive(Debug, Clone)]
pub struct LogLine {
    line: usize,
    step: u64,
    fields: Map<String, Value>,
}

impl RunLog {
    /// Reads the run in a directory.
    ///
    /// Lines that are not records are listed in [`bad_lines`](Self::bad_lines) and do not keep the
    /// others from being read: a run that was killed and resumed has such a line in its middle.
    /// Where no bad line may pass, follow with [`all_good`](Self::all_good).
    ///
    /// # Errors
    ///
    /// [`LogError::NotARun`] if one of the two files is not there; [`LogError::BadConfig`] if
    /// `config.json` is no JSON object; [`LogError::NewerSchema`] if a line was written in a schema
    /// that this version does not know; [`LogError::Io`] for what the operating system refuses.
    pub fn read(dir: impl AsRef<Path>) -> Result<Self, LogError> {
        let dir = dir.as_ref();
        let config = Self::read_config(dir)?;
        let (mut lines, mut bad_lines) = (Vec::new(), Vec::new());
        Self::scan(dir, |line| match line {
            Ok(line) => lines.push(line),
            Err(line) => bad_lines.push(line),
        })?;
        Ok(Self {
            dir: dir.into(),
            config,
            lines,
            bad_lines,
        })
    }

    /// Reads the fields of `config.json` alone.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn read_config(dir: impl AsRef<Path>) -> Result<Map<String, Value>, LogError> {
        let dir = dir.as_ref();
        let path = dir.join(CONFIG_FILE);
        let text = fs::read_to_string(&path).map_err(|e| not_there(dir, CONFIG_FILE, e))?;
        value::parse_object(&text).map_err(|why| LogError::BadConfig { path, why })
    }

    /// Calls `each` with one line of a log after the other, of which only that one is kept in
    /// memory: for logs that are too long to be [`read`](Self::read).
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    ///
    /// # Example
    ///
    /// ```
    /// use gradnorm::RunLog;
    ///
    /// # let parent = tempfile::tempdir()?;
    /// # let dir = parent.path();
    /// std::fs::write(dir.join("metrics.jsonl"), "{\"step\": 7}\n{\"step\": 8}\n{\"st")?;
    ///
    /// let mut steps = Vec::new();
    /// RunLog::scan(dir, |line| steps.push(line.map(|line| line.step()).ok()))?;
    /// assert_eq!(steps, [Some(7), Some(8), None]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scan(
        dir: impl AsRef<Path>,
        mut each: impl FnMut(Result<LogLine, BadLine>),
    ) -> Result<(), LogError> {
        let dir = dir.as_ref();
        let path = dir.join(METRICS_FILE);
        let file = File::open(&path).map_err(|e| not_there(dir, METRICS_FILE, e))?;
        let mut file = BufReader::new(file);
        let mut bytes = Vec::new();
        for line in 1.. {
            bytes.clear();
            let read = file
                .read_until(b'\n', &mut bytes)
                .map_err(|e| io_error(&path, "read", e))?;
            if read == 0 {
                break;
            }
            if bytes.trim_ascii().is_empty() {
                continue;
            }
            match value::parse_line(bytes.trim_ascii_end()) {
                Ok(record) => each(Ok(LogLine {
                    line,
                    step: record.step,
                    fields: record.fields,
                })),
                Err(Refusal::NewerSchema(found)) => {
                    return Err(LogError::NewerSchema { path, line, found });
                }
                Err(Refusal::Bad(why)) => each(Err(BadLine {
                    path: path.clone(),
                    line,
                    why,
                    torn: !bytes.ends_with(b"\n"),
                })),
            }
        }
        Ok(())
    }

    /// The run's directory, as it was given.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The fields of `config.json`.
    pub fn config(&self) -> &Map<String, Value> {
        &self.config
    }

    /// The records, in the order of the file.
    pub fn lines(&self) -> &[LogLine] {
        &self.lines
    }

    /// The lines that are not records, a half-written last one included.
    pub fn bad_lines(&self) -> &[BadLine] {
        &self.bad_lines
    }

    /// The last line, if it is half-written.
    pub fn torn_line(&self) -> Option<&BadLine> {
        self.bad_lines.last().filter(|line| line.torn)
    }

    /// This log, if it has no bad line but perhaps a half-written last one.
    ///
    /// # Errors
    ///
    /// [`LogError::BadLine`] with the first of the bad lines.
    pub fn all_good(self) -> Result<Self, LogError> {
        match self.bad_lines.iter().find(|line| !line.torn) {
            Some(line) => Err(LogError::BadLine(line.clone())),
            None => Ok(self),
        }
    }
}

impl LogLine {
    /// The number of the line in its file, from 1.
    pub fn line(&self) -> usize {
        self.line
    }

    /// The step that the record is of.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// All fields, `schema` and `step` included.
    pub fn fields(&self) -> &Map<String, Value> {
        &self.fields
    }

    /// The number at a dotted path, such as `grad_norm.query` or `attention.0.score_grad.p50`.
    ///
    /// The strings `"NaN"`, `"inf"` and `"-inf"` are numbers. `None` if there is no number.
    pub fn number(&self, path: &str) -> Option<f64> {
        value::find(&self.fields, path).and_then(value::number)
    }

    /// Calls `each` with the dotted path and value of every number in the record.
    ///
    /// # Example
    ///
    /// ```
    /// # use gradnorm::LogLine;
    /// fn print(line: &LogLine) {
    ///     line.for_each_number(|path, value| println!("{path} = {value}"));
    /// }
    /// ```
    pub fn for_each_number(&self, mut each: impl FnMut(&str, f64)) {
        value::for_each_number(&self.fields, &mut each);
    }
}

fn not_there(dir: &Path, file: &'static str, error: io::Error) -> LogError {
    if error.kind() == io::ErrorKind::NotFound {
        LogError::NotARun {
            path: dir.into(),
            file,
        }
    } else {
        io_error(&dir.join(file), "read", error)
    }
}
