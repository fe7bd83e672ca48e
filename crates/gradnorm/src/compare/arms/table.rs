//! A comparison of arms for people to read.

use std::fmt::{self, Write};

use super::{Against, ArmComparison, Estimate, Paired, PairedFirstStep, PairedQuantity};
use crate::compare::table::{NO_VALUE, align, notes, number, spread};

pub(super) fn write(comparison: &ArmComparison, out: &mut impl Write) -> fmt::Result {
    let mut blocks: Vec<String> = notes(&comparison.notes).into_iter().collect();
    for against in &comparison.against {
        blocks.push(heading(against, &comparison.pair_by));
        let columns = columns(against);
        for quantity in &against.quantities {
            blocks.push(quantity_block(quantity, &columns));
        }
        if !against.pairs.is_empty() && !against.first_steps.is_empty() {
            blocks.push(first_steps_block(against, &columns));
        }
    }
    if comparison.against.is_empty() {
        blocks.push("no arms to compare\n".to_string());
    }
    out.write_str(&blocks.join("\n"))
}

fn heading(against: &Against, pair_by: &str) -> String {
    let (arm, reference) = (&against.arm, &against.reference);
    let count = against.pairs.len();
    if count == 0 {
        return format!("{arm} against {reference}: no pairs by {pair_by}\n");
    }
    let keys: Vec<&str> = against.pairs.iter().map(|pair| pair.key.as_str()).collect();
    let noun = if count == 1 { "pair" } else { "pairs" };
    let differ = match against.differ_in.as_slice() {
        [] => "nothing of their configs differs".to_string(),
        fields => format!("they differ in {}", fields.join(", ")),
    };
    format!(
        "{arm} against {reference}: {count} {noun} by {pair_by} ({}); {differ}\n",
        keys.join(", ")
    )
}

fn columns(against: &Against) -> Vec<String> {
    let (arm, reference) = (&against.arm, &against.reference);
    vec![
        "pairs".to_string(),
        reference.to_string(),
        arm.to_string(),
        format!("{arm} - {reference}"),
        "95 % interval".to_string(),
        format!("{arm} / {reference}"),
        "95 % interval".to_string(),
    ]
}

fn quantity_block(quantity: &PairedQuantity, columns: &[String]) -> String {
    let rows = &quantity.rows;
    let mut lines = vec![line("step", columns.to_vec())];
    let text = |paired: &Paired| cells(paired.pairs, Some(paired));
    if rows.len() > 1 && rows.iter().all(|row| same(&row.paired, &rows[0].paired)) {
        lines.push(line("every", text(&rows[0].paired)));
    } else {
        for row in spread(rows) {
            lines.push(line(&row.step.to_string(), text(&row.paired)));
        }
    }
    format!("{}\n{}", quantity.name, align(&lines))
}

fn first_steps_block(against: &Against, columns: &[String]) -> String {
    let mut lines = vec![line("first step of", columns.to_vec())];
    for first in &against.first_steps {
        let mut row = cells(against.pairs.len(), first.paired.as_ref());
        if first.paired.is_none() {
            (row[1], row[2]) = (reached(&first.reference), reached(&first.arm));
        }
        lines.push(line(&PairedFirstStep::to_string(first), row));
    }
    align(&lines)
}

/// In how many runs a threshold is never reached.
fn reached(steps: &[Option<u64>]) -> String {
    let never = steps.iter().filter(|step| step.is_none()).count();
    match never {
        0 => "in all".to_string(),
        _ if never == steps.len() => "never".to_string(),
        _ => format!("never in {never}"),
    }
}

/// Equal, with NaN equal to itself.
fn same(a: &Paired, b: &Paired) -> bool {
    format!("{a:?}") == format!("{b:?}")
}

fn line(first: &str, rest: Vec<String>) -> Vec<String> {
    std::iter::once(first.to_string()).chain(rest).collect()
}

fn cells(pairs: usize, paired: Option<&Paired>) -> Vec<String> {
    let difference = paired.map(|paired| paired.difference);
    let ratio = paired.and_then(|paired| paired.ratio);
    vec![
        pairs.to_string(),
        number(&paired.map(|paired| paired.reference)),
        number(&paired.map(|paired| paired.arm)),
        number(&difference.map(|estimate| estimate.mean)),
        interval(difference),
        number(&ratio.map(|estimate| estimate.mean)),
        interval(ratio),
    ]
}

fn interval(estimate: Option<Estimate>) -> String {
    match estimate.and_then(|estimate| estimate.interval) {
        Some([low, high]) => format!("{} to {}", number(&Some(low)), number(&Some(high))),
        None => NO_VALUE.to_string(),
    }
}
