//! What could not be compared, and why.

use std::fmt::{self, Display};

use serde::ser::{Serialize, SerializeStruct, Serializer};

/// Something about a run that a comparison leaves out.
///
/// Its text names the run: `b: not compared: it shares no step with a`. In JSON it has the fields
/// `run`, `excluded` and `text`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Note {
    /// The run's name.
    pub run: String,
    /// What is the matter with it.
    pub reason: Reason,
}

/// Why a run, or something of it, is not compared.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The run is left out: its log has no lines.
    NoLines,
    /// The run is left out: its config states another task than the first run's.
    OtherTask {
        /// This run's task, as JSON.
        task: String,
        /// The first run's name.
        reference: String,
        /// The first run's task, as JSON.
        reference_task: String,
    },
    /// The run is left out: it shares no step with the first run.
    NoCommonStep {
        /// The first run's name.
        reference: String,
    },
    /// Other runs, or the question asked, have quantities that this run has not.
    MissingQuantities(Vec<String>),
    /// The run and the first run both have these quantities, but never at the same step.
    QuantitiesWithoutCommonStep {
        /// The first run's name.
        reference: String,
        /// The quantities.
        quantities: Vec<String>,
    },
    /// The run is left out: its config has nothing at the field that runs are paired by.
    NoPairField {
        /// The field.
        field: String,
    },
    /// The run is left out: another run of its arm has the same seed.
    PairedAlready {
        /// The field that runs are paired by.
        field: String,
        /// What both have there, as JSON.
        key: String,
        /// The arm.
        arm: String,
        /// The other run's name.
        other: String,
    },
    /// Another arm has no run of this one's seed.
    NoPartner {
        /// The field that runs are paired by.
        field: String,
        /// What the run has there, as JSON.
        key: String,
        /// The other arm.
        arm: String,
    },
    /// The run differs from the first of its arm in more than the seed.
    OtherConfig {
        /// The fields of its config.
        fields: Vec<String>,
        /// The first run's name.
        reference: String,
    },
    /// Lines of the run's log could not be read; the numbers of the lines, from 1.
    BadLines(Vec<usize>),
}

impl Note {
    /// Whether the whole run is left out.
    pub fn excluded(&self) -> bool {
        matches!(
            self.reason,
            Reason::NoLines
                | Reason::OtherTask { .. }
                | Reason::NoCommonStep { .. }
                | Reason::NoPairField { .. }
                | Reason::PairedAlready { .. }
        )
    }
}

impl Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let out = if self.excluded() {
            "not compared: "
        } else {
            ""
        };
        write!(f, "{}: {out}{}", self.run, self.reason)
    }
}

impl Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLines => write!(f, "its log has no lines"),
            Self::OtherTask {
                task,
                reference,
                reference_task,
            } => write!(
                f,
                "its task is {task}, that of {reference} is {reference_task}"
            ),
            Self::NoCommonStep { reference } => write!(f, "it shares no step with {reference}"),
            Self::MissingQuantities(names) => write!(f, "it has no {}", names.join(", ")),
            Self::QuantitiesWithoutCommonStep {
                reference,
                quantities,
            } => write!(
                f,
                "it shares no step with {reference} at which both have {}",
                quantities.join(", ")
            ),
            Self::NoPairField { field } => {
                write!(f, "its config has no {field} to pair it by")
            }
            Self::PairedAlready {
                field,
                key,
                arm,
                other,
            } => write!(f, "{other} is of {arm} and has the same {field}, {key}"),
            Self::NoPartner { field, key, arm } => {
                write!(f, "no run of {arm} has its {field}, {key}")
            }
            Self::OtherConfig { fields, reference } => write!(
                f,
                "it differs from {reference}, of the same arm, in {}",
                fields.join(", ")
            ),
            Self::BadLines(lines) => {
                let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
                let noun = if lines.len() == 1 { "line" } else { "lines" };
                write!(f, "without {noun} {}, not readable", lines.join(", "))
            }
        }
    }
}

impl Serialize for Note {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut note = serializer.serialize_struct("Note", 3)?;
        note.serialize_field("run", &self.run)?;
        note.serialize_field("excluded", &self.excluded())?;
        note.serialize_field("text", &self.to_string())?;
        note.end()
    }
}
