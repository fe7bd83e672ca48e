//! The claims in a terminal.

use super::claim::Claim;
use super::{Measurement, interval};
use crate::report::{cell, wrapped};

/// The widths of the columns, two spaces apart; 100 characters in all.
const COLUMNS: [usize; 4] = [2, 30, 24, 38];

/// The claims with their figures and verdicts, and what the intervals are.
pub fn table(measurement: &Measurement) -> String {
    let mut text = String::new();
    let titles = ["#", "claim", "verdict", "figures"].map(String::from);
    push(&mut text, &titles);
    for claim in &measurement.claims {
        text.push('\n');
        push(&mut text, &row(claim));
    }
    let plan = measurement.plan();
    text.push('\n');
    text.push_str(&wrapped(&interval(plan), 100));
    if plan.mode == "quick" {
        let note = "The quick mode: the same code as the full one on fewer seeds, widths and steps. The \
                    full one is `train claims`.";
        text.push_str(&wrapped(note, 100));
    }
    text
}

/// The same as a table in Markdown, without the words around it.
pub fn markdown(claims: &[Claim]) -> String {
    let mut text = "| # | claim | verdict | figures |\n|---|---|---|---|\n".to_string();
    for claim in claims {
        let [id, sentence, verdict, figures] = row(claim).map(|cell| {
            let cell = cell.replace('|', "\\|");
            cell.replace('\n', "<br>")
        });
        text.push_str(&format!("| {id} | {sentence} | {verdict} | {figures} |\n"));
    }
    text
}

fn row(claim: &Claim) -> [String; 4] {
    let verdict = match &claim.condition {
        Some(condition) => format!("{}: {condition}", claim.verdict.words()),
        None => claim.verdict.words().to_string(),
    };
    let shown = claim.figures.iter().filter(|figure| figure.shown);
    let figures = shown.map(|figure| format!("{}: {}", figure.name, cell(&figure.spread)));
    let figures: Vec<String> = figures.collect();
    [
        claim.id.to_string(),
        claim.sentence.to_string(),
        verdict,
        figures.join("\n"),
    ]
}

/// Appends one row; each cell is wrapped in its column.
fn push(text: &mut String, cells: &[String; 4]) {
    let columns: Vec<Vec<String>> = cells
        .iter()
        .zip(COLUMNS)
        .map(|(cell, width)| {
            let lines = cell.lines().flat_map(|line| {
                let lines = wrapped(line, width);
                lines.lines().map(String::from).collect::<Vec<_>>()
            });
            lines.collect()
        })
        .collect();
    let height = columns.iter().map(Vec::len).max().unwrap_or(0);
    for place in 0..height {
        let line = columns.iter().zip(COLUMNS).map(|(lines, width)| {
            let cell = lines.get(place).map_or("", String::as_str);
            format!("{cell:<width$}")
        });
        text.push_str(line.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::{each, fixture};

    #[test]
    fn each_claim_is_a_row_that_no_line_of_is_too_wide() {
        let results = fixture::results();
        let text = table(&Measurement {
            claims: each::claims(&results),
            measured: 0,
            jobs: 0,
            results,
        });
        for id in 1..=11 {
            let row = text
                .lines()
                .filter(|line| line.starts_with(&format!("{id:<2}  ")));
            assert_eq!(row.count(), 1, "{id}\n{text}");
        }
        assert!(text.contains("holds under a condition:"), "{text}");
        assert!(text.contains("covers the median of all seeds"), "{text}");
        assert!(text.contains("The quick mode:"), "{text}");
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
    }

    #[test]
    fn a_row_of_markdown_is_one_line() {
        let text = markdown(&each::claims(&fixture::results()));
        assert_eq!(text.lines().count(), 2 + 11);
        for line in text.lines() {
            assert!(line.starts_with('|') && line.ends_with('|'), "{line}");
            assert_eq!(line.matches('|').count(), 5, "{line}");
        }
    }

    #[test]
    fn cells_are_wrapped_side_by_side() {
        let mut text = String::new();
        let cell = |words: &str| words.to_string();
        push(
            &mut text,
            &[
                cell("1"),
                cell("a sentence that is longer than its column is"),
                cell("holds"),
                cell("x: 1\ny: 2"),
            ],
        );
        assert_eq!(
            text,
            "1   a sentence that is longer than  holds                     x: 1\n    \
             its column is                                             y: 2\n"
        );
    }
}
