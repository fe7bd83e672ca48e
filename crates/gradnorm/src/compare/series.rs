//! Logs turned from lines into quantities over steps.

use std::collections::{BTreeMap, HashMap};

use indexmap::IndexMap;

use super::{Note, Reason};
use crate::RunLog;

/// What every line has and no run is compared by.
const NOT_QUANTITIES: [&str; 2] = ["schema", "step"];
const TASK_FIELD: &str = "task";

/// One run: each of its quantities by step, in the order in which the log first has them.
pub(super) struct Series {
    /// Its place among the logs given.
    pub(super) place: usize,
    pub(super) name: String,
    pub(super) quantities: IndexMap<String, BTreeMap<u64, f64>>,
}

impl Series {
    pub(super) fn note(&self, reason: Reason) -> Note {
        Note {
            run: self.name.clone(),
            reason,
        }
    }

    fn new(place: usize, name: String, log: &RunLog) -> Self {
        let mut quantities: IndexMap<String, BTreeMap<u64, f64>> = IndexMap::new();
        for line in log.lines() {
            line.for_each_number(|path, value| match quantities.get_mut(path) {
                Some(by_step) => {
                    by_step.insert(line.step(), value);
                }
                None => {
                    let by_step = BTreeMap::from([(line.step(), value)]);
                    quantities.insert(path.to_string(), by_step);
                }
            });
        }
        quantities.retain(|name, _| !NOT_QUANTITIES.contains(&name.as_str()));
        Self {
            place,
            name,
            quantities,
        }
    }
}

/// The runs that can be compared with the first of them; notes say why the others cannot.
pub(super) fn comparable(logs: &[RunLog], notes: &mut Vec<Note>) -> Vec<Series> {
    let mut reference: Option<(&RunLog, String)> = None;
    let mut comparable = Vec::new();
    for (place, (log, name)) in logs.iter().zip(names(logs)).enumerate() {
        if !log.bad_lines().is_empty() {
            notes.push(Note {
                run: name.clone(),
                reason: Reason::BadLines(log.bad_lines().iter().map(|line| line.line).collect()),
            });
        }
        if let Some(reason) = obstacle(log, reference.as_ref()) {
            notes.push(Note { run: name, reason });
            continue;
        }
        reference.get_or_insert_with(|| (log, name.clone()));
        comparable.push(Series::new(place, name, log));
    }
    comparable
}

fn obstacle(log: &RunLog, reference: Option<&(&RunLog, String)>) -> Option<Reason> {
    if log.lines().is_empty() {
        return Some(Reason::NoLines);
    }
    let (reference, reference_name) = reference?;
    let tasks = (
        log.config().get(TASK_FIELD),
        reference.config().get(TASK_FIELD),
    );
    if let (Some(task), Some(reference_task)) = tasks
        && task != reference_task
    {
        return Some(Reason::OtherTask {
            task: task.to_string(),
            reference: reference_name.clone(),
            reference_task: reference_task.to_string(),
        });
    }
    let steps: std::collections::HashSet<u64> =
        reference.lines().iter().map(|line| line.step()).collect();
    let shares_a_step = log.lines().iter().any(|line| steps.contains(&line.step()));
    (!shares_a_step).then(|| Reason::NoCommonStep {
        reference: reference_name.clone(),
    })
}

/// A name for each run that no other run has: the shortest of the directory's last part, the whole
/// directory, and, for a directory given twice, that with a number.
fn names(logs: &[RunLog]) -> Vec<String> {
    let whole: Vec<String> = logs
        .iter()
        .map(|log| log.dir().display().to_string())
        .collect();
    let last: Vec<String> = logs
        .iter()
        .zip(&whole)
        .map(|(log, whole)| match log.dir().file_name() {
            Some(name) => name.to_string_lossy().into_owned(),
            None => whole.clone(),
        })
        .collect();
    let count = |names: &[String], name: &String| names.iter().filter(|n| *n == name).count();
    let mut given = HashMap::new();
    let mut names = Vec::new();
    for (last_part, dir) in last.iter().zip(&whole) {
        if count(&last, last_part) == 1 {
            names.push(last_part.clone());
            continue;
        }
        let times = given.entry(dir).or_insert(0);
        *times += 1;
        names.push(match *times {
            1 => dir.clone(),
            n => format!("{dir} ({n})"),
        });
    }
    names
}
