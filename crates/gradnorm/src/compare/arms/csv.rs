//! A comparison of arms as comma-separated values, one row of a quantity a line.

use super::{ArmComparison, Estimate, Paired};

const COLUMNS: [&str; 15] = [
    "quantity",
    "step",
    "arm",
    "reference",
    "pairs",
    "reference_mean",
    "arm_mean",
    "difference",
    "difference_median",
    "difference_low",
    "difference_high",
    "ratio",
    "ratio_median",
    "ratio_low",
    "ratio_high",
];

pub(super) fn write(comparison: &ArmComparison) -> String {
    let mut out = ::csv::Writer::from_writer(Vec::new());
    let mut line = |fields: &[String]| {
        out.write_record(fields)
            .expect("writing to memory does not fail, and every record has as many fields");
    };
    line(&COLUMNS.map(str::to_string));
    for against in &comparison.against {
        let start = |quantity: &str, step: String| {
            let (arm, reference) = (against.arm.clone(), against.reference.clone());
            vec![quantity.to_string(), step, arm, reference]
        };
        for quantity in &against.quantities {
            for row in &quantity.rows {
                let start = start(&quantity.name, row.step.to_string());
                line(&[start, paired(&row.paired)].concat());
            }
        }
        for first in &against.first_steps {
            let start = start(&format!("first step of {first}"), String::new());
            let rest = match &first.paired {
                Some(values) => paired(values),
                None => unknown(first.arm.len()),
            };
            line(&[start, rest].concat());
        }
    }
    let bytes = out.into_inner().expect("flushing to memory does not fail");
    String::from_utf8(bytes).expect("fields are text, so their lines are")
}

fn paired(values: &Paired) -> Vec<String> {
    let mut fields = vec![
        values.pairs.to_string(),
        values.reference.to_string(),
        values.arm.to_string(),
    ];
    for part in [Some(values.difference), values.ratio] {
        fields.extend(estimate(part));
    }
    fields
}

fn unknown(pairs: usize) -> Vec<String> {
    let mut fields = vec![String::new(); COLUMNS.len() - 4];
    fields[0] = pairs.to_string();
    fields
}

fn estimate(estimate: Option<Estimate>) -> [String; 4] {
    let interval = estimate.and_then(|estimate| estimate.interval);
    [
        estimate.map(|estimate| estimate.mean),
        estimate.map(|estimate| estimate.median),
        interval.map(|interval| interval[0]),
        interval.map(|interval| interval[1]),
    ]
    .map(|value| value.map_or(String::new(), |value| value.to_string()))
}
