//! A comparison as comma-separated values, one number a line.

use super::Comparison;

pub(super) fn write(comparison: &Comparison) -> String {
    let mut out = ::csv::Writer::from_writer(Vec::new());
    let mut line = |fields: [&str; 5]| {
        out.write_record(fields)
            .expect("writing to memory does not fail, and every record has five fields");
    };
    line(["quantity", "step", "run", "value", "ratio"]);
    for quantity in &comparison.quantities {
        for row in &quantity.rows {
            let step = row.step.to_string();
            for ((run, value), ratio) in comparison.runs.iter().zip(&row.values).zip(&row.ratios) {
                if value.is_some() {
                    line([&quantity.name, &step, run, &field(value), &field(ratio)]);
                }
            }
        }
    }
    for first in &comparison.first_steps {
        let name = format!("first step of {first}");
        for ((run, step), ratio) in comparison.runs.iter().zip(&first.steps).zip(&first.ratios) {
            line([&name, "", run, &field(step), &field(ratio)]);
        }
    }
    let bytes = out.into_inner().expect("flushing to memory does not fail");
    String::from_utf8(bytes).expect("fields are text, so their lines are")
}

fn field(value: &Option<impl ToString>) -> String {
    value.as_ref().map(ToString::to_string).unwrap_or_default()
}
