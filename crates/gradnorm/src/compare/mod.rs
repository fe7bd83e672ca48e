//! Several runs side by side.

mod align;
mod arms;
mod csv;
mod estimate;
mod note;
mod series;
mod table;
mod threshold;

use std::fmt::{self, Display};
use std::str::FromStr;

use serde::Serialize;

use crate::{PathPattern, RunLog, json};
use series::Series;

pub use arms::{
    Against, Arm, ArmComparison, Pair, Paired, PairedFirstStep, PairedQuantity, PairedRow,
};
pub use estimate::Estimate;
pub use note::{Note, Reason};
pub use threshold::{FirstStep, Threshold};

/// What to compare of several runs; begin with [`Compare::new`], end with [`of`](Self::of), or
/// with [`of_arms`](Self::of_arms) where there are several runs of each kind.
///
/// # Example
///
/// ```
/// use gradnorm::{Compare, Format, RunLog, RunWriter, Threshold};
/// use serde_json::json;
///
/// # let parent = tempfile::tempdir()?;
/// # let (scaled, unscaled) = (parent.path().join("scaled"), parent.path().join("unscaled"));
/// for (dir, rate) in [(&scaled, 0.25), (&unscaled, 0.125)] {
///     let mut run = RunWriter::create(dir, &json!({"task": "recall"}))?;
///     for step in 0..8 {
///         run.append(&json!({"step": step, "accuracy": rate * f64::from(step)}))?;
///     }
/// }
///
/// let comparison = Compare::new()
///     .quantity("accuracy")
///     .first_step(Threshold::at_least("accuracy", 0.5))
///     .of(&[RunLog::read(&scaled)?, RunLog::read(&unscaled)?]);
///
/// assert_eq!(comparison.quantities[0].rows[2].values, [Some(0.5), Some(0.25)]);
/// assert_eq!(comparison.quantities[0].rows[2].ratios, [Some(1.0), Some(0.5)]);
/// assert_eq!(comparison.first_steps[0].steps, [Some(2), Some(4)]);
/// println!("{}", comparison.render(Format::Table));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Compare {
    quantities: Vec<PathPattern>,
    thresholds: Vec<Threshold>,
    pair_by: String,
}

impl Default for Compare {
    fn default() -> Self {
        Self::new()
    }
}

impl Compare {
    /// Compares all quantities and looks for no threshold.
    pub fn new() -> Self {
        Self {
            quantities: Vec::new(),
            thresholds: Vec::new(),
            pair_by: "seed".to_string(),
        }
    }

    /// Compares these quantities, and no others but those of further calls.
    ///
    /// A quantity is a number of a log's lines, named by its dotted path; the pattern `grad_norm.*`
    /// takes `grad_norm.query` and `grad_norm.all`. A name without a wildcard must be there: runs
    /// that lack it are noted.
    pub fn quantity(mut self, pattern: impl Into<PathPattern>) -> Self {
        self.quantities.push(pattern.into());
        self
    }

    /// Looks for the first step at which a quantity reaches a threshold, in each run.
    pub fn first_step(mut self, threshold: Threshold) -> Self {
        self.thresholds.push(threshold);
        self
    }

    /// Compares runs with the first of them.
    ///
    /// Runs without lines, runs of another `task` (a field of the config; runs that state none are
    /// taken for the same) and runs that share no step with the first are left out of everything
    /// and noted. If a log has a step several times, the last line counts.
    pub fn of(&self, logs: &[RunLog]) -> Comparison {
        let mut notes = Vec::new();
        let series = series::comparable(logs, &mut notes);
        let quantities = align::align(&series, &self.quantities, &self.thresholds, &mut notes);
        let first_steps = self
            .thresholds
            .iter()
            .flat_map(|threshold| threshold.first_steps(&series.iter().collect::<Vec<_>>()))
            .collect();
        Comparison {
            runs: series.into_iter().map(|run| run.name).collect(),
            notes,
            quantities,
            first_steps,
        }
    }
}

/// Runs side by side: the quantities of each at common steps, and when each reached a threshold.
///
/// Lists that have an entry for each run have them in the order of [`runs`](Self::runs).
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Comparison {
    /// The runs compared, by the last part of their directories or, where that does not tell them
    /// apart, the whole. The first is the one that ratios refer to.
    pub runs: Vec<String>,
    /// What could not be compared, and why.
    pub notes: Vec<Note>,
    /// The quantities that the first run shares with another, in the order of the logs.
    pub quantities: Vec<Quantity>,
    /// For each threshold, when the runs reached it.
    pub first_steps: Vec<FirstStep>,
}

/// One quantity at the steps that the first run and at least one other have it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Quantity {
    /// Its dotted path in a log's line.
    pub name: String,
    /// Its values, by ascending step.
    pub rows: Vec<Row>,
}

/// One quantity at one step.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Row {
    /// The step.
    pub step: u64,
    /// Each run's value; `None` for a run that does not have it at this step.
    pub values: Vec<Option<f64>>,
    /// Each run's value divided by the first run's; infinite or NaN where that is 0.
    pub ratios: Vec<Option<f64>>,
}

impl Row {
    fn new(step: u64, values: Vec<Option<f64>>) -> Self {
        let ratios = ratios(&values);
        Self {
            step,
            values,
            ratios,
        }
    }
}

fn ratios(values: &[Option<f64>]) -> Vec<Option<f64>> {
    values
        .iter()
        .map(|value| Some((*value)? / values[0]?))
        .collect()
}

/// How to write a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// For people: columns, a few rows of each quantity, and the notes.
    Table,
    /// Everything that a [`Comparison`] holds, as one JSON object.
    Json,
    /// One line for each number: `quantity,step,run,value,ratio`.
    Csv,
}

/// Reads `table`, `json` or `csv`.
impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "table" => Ok(Self::Table),
            "json" => Ok(Self::Json),
            "csv" => Ok(Self::Csv),
            _ => Err(UnknownFormat(name.to_string())),
        }
    }
}

/// A name that is none of the formats'.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no format; there are table, json and csv")]
pub struct UnknownFormat(String);

impl Comparison {
    /// The comparison as text, with a newline at its end.
    ///
    /// - [`Format::Table`]: at most ten rows of each quantity, evenly spread from the first common
    ///   step to the last; a quantity that never changes in any run takes one row.
    /// - [`Format::Json`]: the fields of [`Comparison`]. Missing values are `null`; NaN and infinity
    ///   are the strings `"NaN"`, `"inf"` and `"-inf"`.
    /// - [`Format::Csv`]: every value. The first steps follow as quantities named
    ///   `first step of accuracy >= 0.9`, with no `step`; a threshold never reached leaves `value`
    ///   empty. Notes have no place in it: print [`notes`](Self::notes) elsewhere.
    pub fn render(&self, format: Format) -> String {
        match format {
            Format::Table => self.to_string(),
            Format::Json => {
                json::to_pretty(self).expect("a comparison has string keys only, so it is JSON")
            }
            Format::Csv => csv::write(self),
        }
    }
}

/// As [`Format::Table`].
impl Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        table::write(self, f)
    }
}
