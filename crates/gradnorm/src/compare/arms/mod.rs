//! Several runs an arm, paired with those of another.

mod csv;
mod pairs;
mod table;

use std::fmt::{self, Display};
use std::path::Path;

use serde::Serialize;

use super::{Compare, Estimate, Format, Note, align, series};
use crate::{LogError, RunLog, json};

/// Runs that are alike but for what they are paired by, usually their seed.
#[derive(Debug, Clone)]
pub struct Arm {
    /// What it is called.
    pub name: String,
    /// Its runs.
    pub runs: Vec<RunLog>,
}

impl Arm {
    /// Reads the runs of an arm from their directories.
    ///
    /// # Errors
    ///
    /// Those of [`RunLog::read`].
    pub fn read(
        name: impl Into<String>,
        dirs: impl IntoIterator<Item = impl AsRef<Path>>,
    ) -> Result<Self, LogError> {
        Ok(Self {
            name: name.into(),
            runs: dirs
                .into_iter()
                .map(RunLog::read)
                .collect::<Result<_, _>>()?,
        })
    }
}

impl Compare {
    /// Pairs runs by this field of their configs, a dotted path; `seed` if nothing is said.
    pub fn pair_by(mut self, field: impl Into<String>) -> Self {
        self.pair_by = field.into();
        self
    }

    /// Compares arms with the first of them, run by run: each with that run of the first arm that
    /// has the same seed.
    ///
    /// Whatever a seed does to both runs of a pair cancels in their difference, so a few pairs show
    /// what as many separate runs would not. Runs are left out and noted as [`of`](Self::of) does,
    /// and if they have no seed, share it with another run of their arm, or find no partner.
    ///
    /// # Example
    ///
    /// ```
    /// use gradnorm::{Arm, Compare, Format, RunWriter};
    /// use serde_json::json;
    ///
    /// # let parent = tempfile::tempdir()?;
    /// let dir = |rate: &str, seed: u64| parent.path().join(format!("{rate}-{seed}"));
    /// for (rate, loss) in [("slow", 4.0), ("fast", 2.0)] {
    ///     for seed in 0..3 {
    ///         let mut run = RunWriter::create(dir(rate, seed), &json!({"seed": seed}))?;
    ///         run.append(&json!({"step": 0, "loss": loss + 0.5 * seed as f64}))?;
    ///     }
    /// }
    ///
    /// let comparison = Compare::new().of_arms(&[
    ///     Arm::read("slow", (0..3).map(|seed| dir("slow", seed)))?,
    ///     Arm::read("fast", (0..3).map(|seed| dir("fast", seed)))?,
    /// ]);
    /// let row = &comparison.against[0].quantities[0].rows[0];
    /// assert_eq!((row.paired.reference, row.paired.arm), (4.5, 2.5));
    /// assert_eq!(row.paired.difference.interval, Some([-2.0, -2.0]));
    /// println!("{}", comparison.render(Format::Table));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of_arms(&self, arms: &[Arm]) -> ArmComparison {
        let mut notes = Vec::new();
        let logs: Vec<RunLog> = arms.iter().flat_map(|arm| arm.runs.clone()).collect();
        let series = series::comparable(&logs, &mut notes);
        let names = align::expected_names(&series, &self.quantities, &self.thresholds, &mut notes);
        let arms = pairs::runs_by_arm(arms, &series, &self.pair_by, &mut notes);
        let against = match arms.split_first() {
            Some((reference, others)) => others
                .iter()
                .map(|arm| pairs::against(reference, arm, self, &names, &mut notes))
                .collect(),
            None => Vec::new(),
        };
        ArmComparison {
            arms: arms.iter().map(|arm| arm.name.to_string()).collect(),
            pair_by: self.pair_by.clone(),
            notes,
            against,
        }
    }
}

/// Arms side by side, each paired with the first.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct ArmComparison {
    /// The names of the arms; the first is the one that the others are compared with.
    pub arms: Vec<String>,
    /// The field of their configs that runs are paired by.
    pub pair_by: String,
    /// What could not be compared, and why.
    pub notes: Vec<Note>,
    /// The other arms against the first, in their order.
    pub against: Vec<Against>,
}

/// An arm against the first.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Against {
    /// The arm's name.
    pub arm: String,
    /// The first arm's name.
    pub reference: String,
    /// Its runs with their partners.
    pub pairs: Vec<Pair>,
    /// The fields of the configs, at the top, in which the runs of a pair differ.
    pub differ_in: Vec<String>,
    /// The quantities that both runs of at least one pair have, in the order of the logs.
    pub quantities: Vec<PairedQuantity>,
    /// For each threshold, when the runs reached it.
    pub first_steps: Vec<PairedFirstStep>,
}

/// Two runs of one seed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Pair {
    /// What they share, as JSON: the seed.
    pub key: String,
    /// The run of the first arm.
    pub reference: String,
    /// The other arm's.
    pub run: String,
}

/// One quantity at the steps that both runs of at least one pair have it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PairedQuantity {
    /// Its dotted path in a log's line.
    pub name: String,
    /// By ascending step.
    pub rows: Vec<PairedRow>,
}

/// One quantity at one step.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PairedRow {
    /// The step.
    pub step: u64,
    /// What the pairs have there.
    #[serde(flatten)]
    pub paired: Paired,
}

/// What pairs of runs have of one quantity.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Paired {
    /// How many pairs have it.
    pub pairs: usize,
    /// The mean over their runs in the first arm.
    pub reference: f64,
    /// The mean over their runs in the other arm.
    pub arm: f64,
    /// Of the other arm's value less the first arm's, pair by pair.
    pub difference: Estimate,
    /// Of the other arm's value divided by the first arm's; `None` unless all of these are positive
    /// and finite.
    pub ratio: Option<Estimate>,
}

/// When the runs of two arms reached a threshold.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PairedFirstStep {
    /// The threshold, as in `accuracy >= 0.9`.
    pub threshold: String,
    /// How many values the mean is of; 1 for single values.
    pub window: usize,
    /// Each pair's step in the first arm; `None` if it is never reached.
    pub reference: Vec<Option<u64>>,
    /// Each pair's step in the other arm.
    pub arm: Vec<Option<u64>>,
    /// Of these; `None` if it is never reached in one of the runs, without which a mean would
    /// flatter.
    pub paired: Option<Paired>,
}

/// `accuracy >= 0.9`, or `accuracy >= 0.9 (mean of 20)`.
impl Display for PairedFirstStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.window {
            1 => write!(f, "{}", self.threshold),
            window => write!(f, "{} (mean of {window})", self.threshold),
        }
    }
}

impl ArmComparison {
    /// Whether no arm has a run with a partner in the first.
    pub fn is_empty(&self) -> bool {
        self.against.iter().all(|against| against.pairs.is_empty())
    }

    /// The comparison as text, with a newline at its end.
    ///
    /// - [`Format::Table`]: for each arm, at most ten rows of each quantity, as
    ///   [`Comparison::render`](crate::Comparison::render) has them.
    /// - [`Format::Json`]: the fields of [`ArmComparison`]. Missing values are `null`; NaN and
    ///   infinity are the strings `"NaN"`, `"inf"` and `"-inf"`.
    /// - [`Format::Csv`]: every row, with the columns `quantity`, `step`, `arm`, `reference`,
    ///   `pairs`, `reference_mean`, `arm_mean`, then `mean`, `median`, `low` and `high` of the
    ///   `difference` and of the `ratio`. The first steps follow as quantities named
    ///   `first step of accuracy >= 0.9`, with no `step`; one that is not reached in every run has
    ///   its number of pairs and nothing else. Notes have no place in it: print
    ///   [`notes`](Self::notes) elsewhere.
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
impl Display for ArmComparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        table::write(self, f)
    }
}
