//! The comparison's table, and what it shows in words.
//!
//! Every sentence is made from the numbers: another optimizer, scale or task may turn each of them
//! round.

use crate::comparison::Comparison;
use crate::config::Stop;
use crate::summary::{Measured, Quantity, Row, Spread};

/// The table: one line a quantity, a block a `d_k`.
///
/// Each cell is the median over the seeds, with the smallest and the largest.
pub fn table(rows: &[Row], stop: Stop) -> String {
    let mut lines =
        vec![["d_k", "quantity", "scaled", "unscaled", "unscaled / scaled"].map(String::from)];
    let mut d_k = None;
    for row in rows {
        let new = d_k.replace(row.d_k) != Some(row.d_k);
        if new {
            lines.push(Default::default());
        }
        lines.push([
            if new {
                row.d_k.to_string()
            } else {
                String::new()
            },
            label(row.quantity, stop),
            cell(&row.scaled),
            cell(&row.unscaled),
            cell(&row.ratio),
        ]);
    }
    let seeds = rows.first().map_or(0, |row| row.scaled.values.len());
    let mut text = align(&lines);
    text.push_str(&match seeds {
        1 => "\nOne seed: nothing is known of the spread.\n".to_string(),
        n => format!(
            "\nMedian over {n} seeds (smallest to largest). Ratios are of the two runs of one seed, \
             which start\nfrom the same weights and see the same batches.\n"
        ),
    });
    text
}

fn label(quantity: Quantity, stop: Stop) -> String {
    let of_layer = |text: &str, layer: usize| match layer {
        0 => text.to_string(),
        _ => format!("{text}, layer {layer}"),
    };
    match quantity {
        Quantity::StepsToLearn => format!("steps to {} accuracy", percent(stop.accuracy)),
        Quantity::ScoreStd(layer) => of_layer("score std", layer),
        Quantity::Saturated(layer) => of_layer("queries with a weight > 0.99", layer),
        Quantity::Entropy(layer) => of_layer("entropy of weights / log n", layer),
        Quantity::ScoreGradMedian(layer) => of_layer("score gradient, median query", layer),
        Quantity::ScoreGradP90(layer) => of_layer("score gradient, 90th percentile", layer),
        Quantity::QueryNorm => "gradient norm, query weights".to_string(),
        Quantity::KeyNorm => "gradient norm, key weights".to_string(),
        Quantity::ValueNorm => "gradient norm, value weights".to_string(),
        Quantity::OutputNorm => "gradient norm, output weights".to_string(),
        Quantity::AllNorm => "gradient norm, all parameters".to_string(),
    }
}

pub(crate) fn cell(spread: &Spread) -> String {
    let (Some(median), Some((min, max))) = (spread.median(), spread.range()) else {
        return "-".to_string();
    };
    match spread.values.len() {
        1 => show(median),
        _ => format!("{} ({} to {})", show(median), show(min), show(max)),
    }
}

/// The median alone, where the interval stands elsewhere.
pub(crate) fn middle(spread: &Spread) -> String {
    spread.median().map_or("-".to_string(), show)
}

fn show(measured: Measured) -> String {
    let bound = if measured.more { "> " } else { "" };
    format!("{bound}{}", number(measured.value))
}

/// A number to three digits.
pub(crate) fn number(value: f64) -> String {
    if value == 0.0 || !value.is_finite() || value.fract() == 0.0 && value.abs() < 1e6 {
        return value.to_string();
    }
    let exponent = value.abs().log10().floor() as i32;
    match exponent {
        -4..=5 => format!("{value:.*}", (2 - exponent).max(0) as usize),
        _ => format!("{value:.2e}"),
    }
}

fn percent(share: f64) -> String {
    format!("{} %", number(share * 100.0))
}

/// Columns of equal width, two spaces apart.
fn align<const N: usize>(lines: &[[String; N]]) -> String {
    let width = |column: usize| {
        let widths = lines.iter().map(|line| line[column].chars().count());
        widths.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut text = String::new();
    for line in lines {
        let cells = line.iter().zip(&widths);
        let padded: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        text.push_str(padded.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// The text in lines of at most `width` characters, where its words allow that.
pub(crate) fn wrapped(text: &str, width: usize) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is a first line");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_string());
        }
    }
    lines.join("\n") + "\n"
}

/// What the numbers show, in words: one paragraph a question.
pub fn findings(rows: &[Row], comparison: &Comparison) -> Vec<String> {
    [
        learning(rows, comparison.base.stop.unwrap_or_default()),
        scores(rows),
        score_gradient(rows),
        weight_gradient(rows),
        verdict(rows),
        Some(limits(comparison)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// What the findings are findings of.
fn limits(comparison: &Comparison) -> String {
    let base = &comparison.base;
    let seeds = match comparison.seeds.len() {
        1 => "one seed".to_string(),
        n => format!("{n} seeds"),
    };
    format!(
        "All of this is of {seeds} of one task, with {:?} at a learning rate of {} for both arms and \
         a batch of {}: it says nothing of other tasks or of a rate chosen for each arm.",
        base.optimizer,
        base.lr(),
        base.batch
    )
}

/// How the ratios of one quantity lie about 1, over all sizes and seeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Larger,
    Smaller,
    Mixed,
}

/// One quantity at each `d_k`.
struct Finding<'a> {
    rows: Vec<&'a Row>,
    pairs: usize,
    larger: usize,
    smaller: usize,
}

impl<'a> Finding<'a> {
    fn of(rows: &'a [Row], quantity: Quantity) -> Option<Self> {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.quantity == quantity).collect();
        let count = |of: fn(&Spread) -> usize| rows.iter().map(|row| of(&row.ratio)).sum();
        Some(Self {
            pairs: count(|ratio| ratio.values.len()),
            larger: count(|ratio| ratio.above(1.0)),
            smaller: count(|ratio| ratio.below(1.0)),
            rows,
        })
        .filter(|finding| finding.pairs > 0)
    }

    fn direction(&self) -> Direction {
        match (self.larger, self.smaller) {
            (larger, _) if larger == self.pairs => Direction::Larger,
            (_, smaller) if smaller == self.pairs => Direction::Smaller,
            _ => Direction::Mixed,
        }
    }

    /// `in all 12 pairs of runs`, or how many of them.
    fn pairs(&self, count: usize) -> String {
        match (count, self.pairs) {
            (1, 1) => "in the one pair of runs".to_string(),
            (count, pairs) if count == pairs => format!("in all {pairs} pairs of runs"),
            (count, pairs) => format!("in {count} of {pairs} pairs of runs"),
        }
    }

    /// `2.1 times (1.5 to 3) at d_k 32, ...`
    fn factors(&self, of: impl Fn(&Spread) -> Spread) -> String {
        let at = |row: &&Row| format!("{} at d_k {}", cell(&of(&row.ratio)), row.d_k);
        self.rows.iter().map(at).collect::<Vec<_>>().join(", ")
    }
}

fn learning(rows: &[Row], stop: Stop) -> Option<String> {
    let finding = Finding::of(rows, Quantity::StepsToLearn)?;
    let what = format!(
        "steps to {} accuracy (mean over {} batches)",
        percent(stop.accuracy),
        stop.window
    );
    let factors = finding.factors(Spread::clone);
    Some(match finding.direction() {
        Direction::Larger => format!(
            "Learning is slower without the scale: it takes more {what} {}; times as many: {factors}.",
            finding.pairs(finding.larger)
        ),
        Direction::Smaller => format!(
            "Learning is faster without the scale: it takes fewer {what} {}; times as many: \
             {factors}.",
            finding.pairs(finding.smaller)
        ),
        Direction::Mixed => format!(
            "Learning: without the scale it takes more {what} {}, fewer {}; times as many: {factors}.",
            finding.pairs(finding.larger),
            finding.pairs(finding.smaller)
        ),
    })
}

fn scores(rows: &[Row]) -> Option<String> {
    let std = Finding::of(rows, Quantity::ScoreStd(0))?;
    let saturated = Finding::of(rows, Quantity::Saturated(0))?;
    let both = |row: &&Row| {
        format!(
            "{} and {} at d_k {}",
            middle(&row.unscaled),
            middle(&row.scaled),
            row.d_k
        )
    };
    let list = |finding: &Finding| finding.rows.iter().map(both).collect::<Vec<_>>().join(", ");
    Some(format!(
        "At step 0 the scores have standard deviations, without and with the scale, of {}; shares \
         of queries that put more than 0.99 of their weight on one token: {}.",
        list(&std),
        list(&saturated)
    ))
}

fn score_gradient(rows: &[Row]) -> Option<String> {
    let finding = Finding::of(rows, Quantity::ScoreGradMedian(0))?;
    let subject = "The loss's gradient at the scores of the median query, at step 0,";
    let inverse = |ratio: &Spread| inverted(ratio);
    Some(match finding.direction() {
        Direction::Smaller => format!(
            "{subject} is smaller without the scale {}; scaled by unscaled: {}.",
            finding.pairs(finding.smaller),
            finding.factors(inverse)
        ),
        Direction::Larger => format!(
            "{subject} is larger without the scale {}; times as large: {}.",
            finding.pairs(finding.larger),
            finding.factors(Spread::clone)
        ),
        Direction::Mixed => format!(
            "{subject} is smaller without the scale {}, larger {}; times as large: {}.",
            finding.pairs(finding.smaller),
            finding.pairs(finding.larger),
            finding.factors(Spread::clone)
        ),
    })
}

fn inverted(ratio: &Spread) -> Spread {
    let one = Spread {
        values: vec![
            Some(Measured {
                value: 1.0,
                more: false
            });
            ratio.values.len()
        ],
    };
    one.over(ratio)
}

fn weight_gradient(rows: &[Row]) -> Option<String> {
    let finding = Finding::of(rows, Quantity::QueryNorm)?;
    let factors = finding.factors(Spread::clone);
    let subject = "The gradient norm of the query weights, at step 0,";
    let mut text = match finding.direction() {
        Direction::Larger => format!(
            "{subject} is larger without the scale, not smaller, {}; times as large: {factors}.",
            finding.pairs(finding.larger)
        ),
        Direction::Smaller => format!(
            "{subject} is smaller without the scale {}; times as large: {factors}.",
            finding.pairs(finding.smaller)
        ),
        Direction::Mixed => format!(
            "{subject} is larger without the scale {}, smaller {}; times as large: {factors}.",
            finding.pairs(finding.larger),
            finding.pairs(finding.smaller)
        ),
    };
    if let Some(unequal) = inequality(rows) {
        text.push(' ');
        text.push_str(&unequal);
    }
    Some(text)
}

/// How far the gradient at the scores of some queries is above that of the median one, at the
/// largest `d_k`.
fn inequality(rows: &[Row]) -> Option<String> {
    let last = |quantity| rows.iter().rfind(|row| row.quantity == quantity);
    let (median, p90) = (
        last(Quantity::ScoreGradMedian(0))?,
        last(Quantity::ScoreGradP90(0))?,
    );
    let unscaled = p90.unscaled.over(&median.unscaled).median()?;
    let scaled = p90.scaled.over(&median.scaled).median()?;
    Some(format!(
        "The gradients of single queries at their scores are spread wider: at d_k {} the 90th \
         percentile is {} times the median without the scale, {} times with it.",
        median.d_k,
        show(unscaled),
        show(scaled)
    ))
    .filter(|_| unscaled.value > scaled.value)
}

fn verdict(rows: &[Row]) -> Option<String> {
    let scores = Finding::of(rows, Quantity::ScoreGradMedian(0))?.direction();
    let weights = Finding::of(rows, Quantity::QueryNorm)?.direction();
    let (holds, fails) = match (scores, weights) {
        (Direction::Smaller, Direction::Smaller) => {
            return Some(
                "\"Without 1/sqrt(d_k) gradients vanish\" holds in these runs, of the typical \
                 query's scores and of the query weights."
                    .to_string(),
            );
        }
        (Direction::Smaller, _) => (
            "the typical query's scores",
            "the norm of the query weights",
        ),
        (_, Direction::Smaller) => (
            "the norm of the query weights",
            "the typical query's scores",
        ),
        _ => {
            return Some(
                "\"Without 1/sqrt(d_k) gradients vanish\" does not hold in these runs, neither of \
                 the typical query's scores nor of the query weights."
                    .to_string(),
            );
        }
    };
    let part = match (scores, weights) {
        (Direction::Mixed, _) | (_, Direction::Mixed) => "not in every pair",
        _ => "not",
    };
    Some(format!(
        "\"Without 1/sqrt(d_k) gradients vanish\" holds in these runs of {holds}, but {part} of \
         {fails}."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RunConfig;

    fn spread(values: &[f64]) -> Spread {
        let exact = |value: &f64| {
            Some(Measured {
                value: *value,
                more: false,
            })
        };
        Spread {
            values: values.iter().map(exact).collect(),
        }
    }

    fn row(quantity: Quantity, scaled: &[f64], unscaled: &[f64]) -> Row {
        let (scaled, unscaled) = (spread(scaled), spread(unscaled));
        Row {
            d_k: 64,
            quantity,
            ratio: unscaled.over(&scaled),
            scaled,
            unscaled,
        }
    }

    fn comparison() -> Comparison {
        Comparison {
            base: RunConfig::default(),
            d_k: vec![64],
            seeds: vec![0, 1],
            jobs: 1,
        }
    }

    #[test]
    fn the_words_turn_round_with_the_numbers() {
        let comparison = comparison();
        let text = |row: Row| findings(&[row], &comparison).remove(0);
        let slower = row(Quantity::StepsToLearn, &[50.0, 40.0], &[100.0, 120.0]);
        assert_eq!(
            text(slower),
            "Learning is slower without the scale: it takes more steps to 90 % accuracy (mean over \
             20 batches) in all 2 pairs of runs; times as many: 2.50 (2 to 3) at d_k 64."
        );
        let faster = row(Quantity::StepsToLearn, &[100.0, 120.0], &[50.0, 40.0]);
        assert!(text(faster).contains("faster"));
        let mixed = text(row(Quantity::StepsToLearn, &[100.0, 40.0], &[50.0, 80.0]));
        assert!(mixed.contains("more steps to 90 % accuracy"), "{mixed}");
        assert!(
            mixed.contains("in 1 of 2 pairs of runs, fewer in 1 of 2"),
            "{mixed}"
        );
    }

    #[test]
    fn the_findings_end_with_what_they_are_of() {
        let text = findings(&[], &comparison()).pop().unwrap();
        assert!(text.contains("2 seeds of one task, with Adam at a learning rate of 0.001"));
    }

    #[test]
    fn the_verdict_says_which_part_of_the_claim_holds() {
        let small = (&[0.2, 0.3][..], &[0.001, 0.002][..]);
        let large = (&[0.5, 0.6][..], &[4.0, 5.0][..]);
        let verdict_of = |scores: (&[f64], &[f64]), weights: (&[f64], &[f64])| {
            verdict(&[
                row(Quantity::ScoreGradMedian(0), scores.0, scores.1),
                row(Quantity::QueryNorm, weights.0, weights.1),
            ])
            .unwrap()
        };
        let text = verdict_of(small, large);
        assert!(text.ends_with(
            "holds in these runs of the typical query's scores, but not of the norm of the query \
             weights."
        ));
        assert!(verdict_of(small, small).contains("holds in these runs, of the typical"));
        assert!(verdict_of(large, large).contains("does not hold in these runs, neither"));
        assert!(verdict_of(large, small).contains("holds in these runs of the norm of the query"));
        let mixed = (&[1.0, 1.0][..], &[0.5, 2.0][..]);
        assert!(verdict_of(small, mixed).contains("but not in every pair of the norm"));
    }

    #[test]
    fn a_table_has_a_line_for_each_quantity_and_says_how_many_seeds() {
        let rows = [
            row(Quantity::StepsToLearn, &[50.0, 40.0], &[100.0, 120.0]),
            row(Quantity::QueryNorm, &[0.5, 0.61], &[4.0, 5.0]),
        ];
        let text = table(&rows, Stop::default());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[2],
            "64   steps to 90 % accuracy        45 (40 to 50)           110 (100 to 120)  2.50 (2 to 3)"
        );
        assert!(lines[3].contains("0.555 (0.500 to 0.610)"), "{}", lines[3]);
        assert!(lines[5].starts_with("Median over 2 seeds"), "{}", lines[5]);
    }

    #[test]
    fn numbers_have_three_digits() {
        for (value, text) in [
            (0.0, "0"),
            (44.0, "44"),
            (0.26214, "0.262"),
            (0.0016044, "0.00160"),
            (1.234e-7, "1.23e-7"),
            (15.97, "16.0"),
            (-3.0e9, "-3.00e9"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
