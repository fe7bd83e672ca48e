//! Which run goes with which, and what the pairs come to.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use serde_json::{Map, Value};

use super::{Against, Arm, Compare, Pair, Paired, PairedFirstStep, PairedQuantity, PairedRow};
use crate::compare::{Estimate, Note, Reason, Series};
use crate::log::find;

/// The runs of an arm that can be compared, by what they are paired by.
pub(super) struct Runs<'a> {
    pub name: &'a str,
    by_key: IndexMap<String, Run<'a>>,
}

#[derive(Clone, Copy)]
struct Run<'a> {
    series: &'a Series,
    config: &'a Map<String, Value>,
}

/// Sorts the series of all arms' runs, one arm after the other, into the arms again.
pub(super) fn runs_by_arm<'a>(
    arms: &'a [Arm],
    series: &'a [Series],
    field: &str,
    notes: &mut Vec<Note>,
) -> Vec<Runs<'a>> {
    let mut place = 0;
    let mut sorted = Vec::new();
    for arm in arms {
        let mut by_key: IndexMap<String, Run> = IndexMap::new();
        for log in &arm.runs {
            let this = series.iter().find(|series| series.place == place);
            place += 1;
            let Some(series) = this else {
                continue;
            };
            let config = log.config();
            let run = Run { series, config };
            let key = find(config, field).map(ToString::to_string);
            match obstacle(key.as_deref(), field, arm, &by_key) {
                Some(reason) => notes.push(series.note(reason)),
                None => {
                    if let Some(reason) = unlike(run, field, &by_key) {
                        notes.push(series.note(reason));
                    }
                    by_key.insert(key.expect("no key is an obstacle"), run);
                }
            }
        }
        sorted.push(Runs {
            name: &arm.name,
            by_key,
        });
    }
    sorted
}

fn obstacle(
    key: Option<&str>,
    field: &str,
    arm: &Arm,
    so_far: &IndexMap<String, Run>,
) -> Option<Reason> {
    let field = field.to_string();
    let Some(key) = key else {
        return Some(Reason::NoPairField { field });
    };
    so_far.get(key).map(|other| Reason::PairedAlready {
        field,
        key: key.to_string(),
        arm: arm.name.clone(),
        other: other.series.name.clone(),
    })
}

/// In what else than the seed a run differs from the first of its arm.
fn unlike(run: Run, field: &str, so_far: &IndexMap<String, Run>) -> Option<Reason> {
    let (_, first) = so_far.first()?;
    let paired_by = field.split('.').next();
    let mut fields = differences(first.config, run.config);
    fields.retain(|name| Some(name.as_str()) != paired_by);
    (!fields.is_empty()).then(|| Reason::OtherConfig {
        fields,
        reference: first.series.name.clone(),
    })
}

/// The fields of either config that are not the same in the other.
fn differences(a: &Map<String, Value>, b: &Map<String, Value>) -> Vec<String> {
    let only_b = b.keys().filter(|name| !a.contains_key(*name));
    a.keys()
        .chain(only_b)
        .filter(|name| a.get(*name) != b.get(*name))
        .cloned()
        .collect()
}

/// Pairs an arm with the first.
pub(super) fn against(
    reference: &Runs,
    arm: &Runs,
    compare: &Compare,
    names: &[&str],
    notes: &mut Vec<Note>,
) -> Against {
    let partnerless = |runs: &Runs, others: &Runs, notes: &mut Vec<Note>| {
        for (key, run) in &runs.by_key {
            if !others.by_key.contains_key(key) {
                notes.push(run.series.note(Reason::NoPartner {
                    field: compare.pair_by.clone(),
                    key: key.clone(),
                    arm: others.name.to_string(),
                }));
            }
        }
    };
    partnerless(reference, arm, notes);
    partnerless(arm, reference, notes);

    let mut pairs = Vec::new();
    let mut differ_in: Vec<String> = Vec::new();
    let mut runs = Vec::new();
    for (key, first) in &reference.by_key {
        let Some(other) = arm.by_key.get(key) else {
            continue;
        };
        pairs.push(Pair {
            key: key.clone(),
            reference: first.series.name.clone(),
            run: other.series.name.clone(),
        });
        for name in differences(first.config, other.config) {
            if !differ_in.contains(&name) {
                differ_in.push(name);
            }
        }
        runs.push((first.series, other.series));
    }
    Against {
        arm: arm.name.to_string(),
        reference: reference.name.to_string(),
        pairs,
        differ_in,
        quantities: names
            .iter()
            .map(|name| quantity(name, &runs))
            .filter(|quantity| !quantity.rows.is_empty())
            .collect(),
        first_steps: first_steps(compare, &runs),
    }
}

fn quantity(name: &str, pairs: &[(&Series, &Series)]) -> PairedQuantity {
    let mut by_step: BTreeMap<u64, Vec<(f64, f64)>> = BTreeMap::new();
    for (first, other) in pairs {
        let values = (first.quantities.get(name), other.quantities.get(name));
        let (Some(first), Some(other)) = values else {
            continue;
        };
        for (step, value) in first {
            if let Some(others) = other.get(step) {
                by_step.entry(*step).or_default().push((*value, *others));
            }
        }
    }
    let row = |(step, values): (u64, Vec<(f64, f64)>)| {
        Some(PairedRow {
            step,
            paired: Paired::of(&values)?,
        })
    };
    PairedQuantity {
        name: name.to_string(),
        rows: by_step.into_iter().filter_map(row).collect(),
    }
}

fn first_steps(compare: &Compare, pairs: &[(&Series, &Series)]) -> Vec<PairedFirstStep> {
    let (first, other): (Vec<&Series>, Vec<&Series>) = pairs.iter().copied().unzip();
    let thresholds = compare.thresholds.iter();
    thresholds
        .flat_map(|threshold| {
            let first = threshold.first_steps(&first);
            first.into_iter().zip(threshold.first_steps(&other))
        })
        .map(|(first, other)| {
            let values = first.steps.iter().zip(&other.steps);
            let reached: Option<Vec<(f64, f64)>> = values
                .map(|(a, b)| Some(((*a)? as f64, (*b)? as f64)))
                .collect();
            PairedFirstStep {
                threshold: first.threshold,
                window: first.window,
                reference: first.steps,
                arm: other.steps,
                paired: reached.and_then(|values| Paired::of(&values)),
            }
        })
        .collect()
}

impl Paired {
    /// Of the first arm's values and the other's; `None` if there are none.
    fn of(values: &[(f64, f64)]) -> Option<Self> {
        let of = |each: fn(&(f64, f64)) -> f64| values.iter().map(each).collect::<Vec<f64>>();
        let (first, other) = (of(|pair| pair.0), of(|pair| pair.1));
        let positive = first.iter().chain(&other).all(|value| *value > 0.0);
        let ratios = of(|pair| pair.1 / pair.0);
        Some(Self {
            pairs: values.len(),
            reference: Estimate::mean(&first)?.mean,
            arm: Estimate::mean(&other)?.mean,
            difference: Estimate::mean(&of(|pair| pair.1 - pair.0))?,
            ratio: positive
                .then(|| Estimate::geometric_mean(&ratios))
                .flatten(),
        })
    }
}
