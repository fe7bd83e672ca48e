//! Quantities of several runs at common steps.

use indexmap::IndexSet;

use super::{Note, Quantity, Reason, Row, Series, Threshold};
use crate::PathPattern;

/// Lines up the quantities that match any of the patterns (all, if there are none).
pub(super) fn align(
    runs: &[Series],
    patterns: &[PathPattern],
    thresholds: &[Threshold],
    notes: &mut Vec<Note>,
) -> Vec<Quantity> {
    let names = expected_names(runs, patterns, thresholds, notes);
    note_disjoint(runs, &names, notes);
    names
        .iter()
        .map(|name| Quantity {
            name: name.to_string(),
            rows: rows(runs, name),
        })
        .filter(|quantity| !quantity.rows.is_empty())
        .collect()
}

/// The names of what is to be compared; runs that lack one, or what a threshold is of, are noted.
pub(super) fn expected_names<'a>(
    runs: &'a [Series],
    patterns: &'a [PathPattern],
    thresholds: &[Threshold],
    notes: &mut Vec<Note>,
) -> Vec<&'a str> {
    let names = quantity_names(runs, patterns);
    let asked = thresholds.iter().map(Threshold::quantity);
    let expected: IndexSet<&str> = names.iter().copied().chain(asked).collect();
    note_missing(runs, &expected, notes);
    names.into_iter().collect()
}

/// The names of what is to be compared: those that any run has, and those asked for in full.
fn quantity_names<'a>(runs: &'a [Series], patterns: &'a [PathPattern]) -> IndexSet<&'a str> {
    let all = runs.iter().flat_map(|run| run.quantities.keys());
    let chosen = |name: &&String| patterns.is_empty() || patterns.iter().any(|p| p.matches(name));
    let literal = patterns.iter().filter_map(PathPattern::literal);
    all.filter(chosen)
        .map(String::as_str)
        .chain(literal)
        .collect()
}

fn rows(runs: &[Series], name: &str) -> Vec<Row> {
    let Some((reference, others)) = runs.split_first() else {
        return Vec::new();
    };
    let Some(by_step) = reference.quantities.get(name) else {
        return Vec::new();
    };
    by_step
        .iter()
        .map(|(step, value)| {
            let others = others
                .iter()
                .map(|run| run.quantities.get(name)?.get(step).copied());
            let values: Vec<_> = std::iter::once(Some(*value)).chain(others).collect();
            Row::new(*step, values)
        })
        .filter(|row| others.is_empty() || row.values[1..].iter().any(Option::is_some))
        .collect()
}

fn note_missing(runs: &[Series], expected: &IndexSet<&str>, notes: &mut Vec<Note>) {
    for run in runs {
        let missing: Vec<String> = expected
            .iter()
            .filter(|name| !run.quantities.contains_key(**name))
            .map(ToString::to_string)
            .collect();
        if !missing.is_empty() {
            notes.push(Note {
                run: run.name.clone(),
                reason: Reason::MissingQuantities(missing),
            });
        }
    }
}

fn note_disjoint(runs: &[Series], names: &[&str], notes: &mut Vec<Note>) {
    let Some((reference, others)) = runs.split_first() else {
        return;
    };
    for run in others {
        let disjoint: Vec<String> = names
            .iter()
            .filter(|name| {
                let both = (reference.quantities.get(**name), run.quantities.get(**name));
                matches!(both, (Some(a), Some(b)) if !a.keys().any(|step| b.contains_key(step)))
            })
            .map(ToString::to_string)
            .collect();
        if !disjoint.is_empty() {
            notes.push(Note {
                run: run.name.clone(),
                reason: Reason::QuantitiesWithoutCommonStep {
                    reference: reference.name.clone(),
                    quantities: disjoint,
                },
            });
        }
    }
}
