//! A comparison for people to read.

use std::fmt::{self, Write};

use super::{Comparison, Note, Quantity, Row};

/// How many rows of a quantity are shown.
const MAX_ROWS: usize = 10;
const SIGNIFICANT_DIGITS: i32 = 5;
pub(super) const NO_VALUE: &str = "-";

pub(super) fn write(comparison: &Comparison, out: &mut impl Write) -> fmt::Result {
    let mut blocks: Vec<String> = notes(&comparison.notes).into_iter().collect();
    let columns = columns(&comparison.runs);
    if comparison.quantities.is_empty() {
        blocks.push("no quantity to compare\n".to_string());
    }
    for quantity in &comparison.quantities {
        blocks.push(quantity_block(quantity, &columns));
    }
    if !comparison.first_steps.is_empty() {
        blocks.push(first_steps_block(comparison, &columns));
    }
    out.write_str(&blocks.join("\n"))
}

/// The notes, if there are any.
pub(super) fn notes(notes: &[Note]) -> Option<String> {
    let lines = notes.iter().map(|note| format!("note: {note}\n"));
    (!notes.is_empty()).then(|| lines.collect())
}

/// The runs, and the ratios of all but the first.
fn columns(runs: &[String]) -> Vec<String> {
    let ratios = runs
        .iter()
        .skip(1)
        .map(|run| format!("{run} / {}", runs[0]));
    runs.iter().cloned().chain(ratios).collect()
}

fn quantity_block(quantity: &Quantity, columns: &[String]) -> String {
    let rows = &quantity.rows;
    let mut lines = vec![line("step", columns.iter().cloned())];
    if rows.len() > 1 && rows.iter().all(|row| same(&row.values, &rows[0].values)) {
        lines.push(row_line("every", &rows[0]));
    } else {
        for row in spread(rows) {
            lines.push(row_line(&row.step.to_string(), row));
        }
    }
    format!("{}\n{}", quantity.name, align(&lines))
}

fn first_steps_block(comparison: &Comparison, columns: &[String]) -> String {
    let mut lines = vec![line("first step of", columns.iter().cloned())];
    for first in &comparison.first_steps {
        let steps = first.steps.iter().map(|step| match step {
            Some(step) => step.to_string(),
            None => "never".to_string(),
        });
        let ratios = first.ratios.iter().skip(1).map(number);
        lines.push(line(&first.to_string(), steps.chain(ratios)));
    }
    align(&lines)
}

fn row_line(step: &str, row: &Row) -> Vec<String> {
    let ratios = row.ratios.iter().skip(1);
    line(step, row.values.iter().chain(ratios).map(number))
}

fn line(first: &str, rest: impl Iterator<Item = String>) -> Vec<String> {
    std::iter::once(first.to_string()).chain(rest).collect()
}

/// Equal, with NaN equal to itself.
fn same(a: &[Option<f64>], b: &[Option<f64>]) -> bool {
    let bits = |values: &[Option<f64>]| -> Vec<Option<u64>> {
        values.iter().map(|value| value.map(f64::to_bits)).collect()
    };
    bits(a) == bits(b)
}

/// At most [`MAX_ROWS`] rows: the first, the last, and some evenly between them.
pub(super) fn spread<T>(rows: &[T]) -> impl Iterator<Item = &T> {
    let shown = rows.len().min(MAX_ROWS);
    let gaps = shown.saturating_sub(1).max(1);
    (0..shown).map(move |i| &rows[i * (rows.len() - 1) / gaps])
}

/// Columns of equal width, two spaces apart: the first to the left, the others to the right.
pub(super) fn align(lines: &[Vec<String>]) -> String {
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let widths: Vec<usize> = (0..lines[0].len()).filter_map(width).collect();
    let mut out = String::new();
    for line in lines {
        out.push_str(&format!("  {:<width$}", line[0], width = widths[0]));
        for (cell, width) in line[1..].iter().zip(&widths[1..]) {
            out.push_str(&format!("  {cell:>width$}"));
        }
        out.push('\n');
    }
    out
}

pub(super) fn number(value: &Option<f64>) -> String {
    let Some(value) = *value else {
        return NO_VALUE.to_string();
    };
    let exponent = value.abs().log10().floor();
    // Whole numbers of up to six digits as they are: steps, sizes, seeds.
    if value.fract() == 0.0 && value.abs() < 1e6 || !value.is_finite() {
        return value.to_string();
    }
    if !(-4.0..6.0).contains(&exponent) {
        return format!("{value:.*e}", SIGNIFICANT_DIGITS as usize - 1);
    }
    let decimals = (SIGNIFICANT_DIGITS - 1 - exponent as i32).max(0) as usize;
    let text = format!("{value:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_five_digits_at_most_and_no_needless_zeros() {
        let cases = [
            (0.0, "0"),
            (128.0, "128"),
            (2.5, "2.5"),
            (2.302485, "2.3025"),
            (0.00160449, "0.0016045"),
            (1234.5678, "1234.6"),
            (123456.7, "123457"),
            (1e-25, "1.0000e-25"),
            (-3.25e12, "-3.2500e12"),
            (f64::NAN, "NaN"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
        ];
        for (value, text) in cases {
            assert_eq!(number(&Some(value)), text);
        }
        assert_eq!(number(&None), "-");
    }

    #[test]
    fn the_first_and_the_last_row_are_always_shown() {
        let steps = |n: u64| -> Vec<u64> {
            let rows: Vec<Row> = (0..n).map(|step| Row::new(step, vec![])).collect();
            spread(&rows).map(|row| row.step).collect()
        };
        assert_eq!(steps(0), [0; 0]);
        assert_eq!(steps(1), [0]);
        assert_eq!(steps(3), [0, 1, 2]);
        assert_eq!(steps(100), [0, 11, 22, 33, 44, 55, 66, 77, 88, 99]);
    }
}
