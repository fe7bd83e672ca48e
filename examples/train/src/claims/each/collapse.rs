//! Claim 4: the gradient at the scores of random queries.

use layers::Scale;

use crate::claims::claim::{Claim, Figure, exponent, spread};
use crate::claims::results::Results;
use crate::claims::scores::{KEYS, ScoresAt};
use crate::claims::verdict::{Answer, Part};
use crate::report::middle;
use crate::summary::Spread;

const SENTENCE: &str = "Gradients through a nearly one-hot softmax collapse.";
const RULE: &str = "A gradient counts as collapsed if, in every seed, it is less than a tenth of that \
                    with the scale, at the largest d. Holds if this is so of the median query, of the \
                    mean over the queries and of the 99th percentile; under a condition if of some of \
                    them.";

pub(super) fn claim(results: &Results) -> Claim {
    let widths = &results.plan.drawn_widths;
    let largest = widths[widths.len() - 1];
    let at = |scale, d, of: fn(&ScoresAt) -> f64| results.scores(d, 1.0, scale, of);
    let compared = |of: fn(&ScoresAt) -> f64| {
        at(Scale::Unscaled, largest, of).over(&at(Scale::InvSqrtDim, largest, of))
    };
    let median = compared(|at| at.gradient.p50);
    let mean = compared(|at| at.gradient.mean);
    let p99 = compared(|at| at.gradient.p99);
    let collapsed = |ratio: &Spread| Answer::below(ratio, 0.1);
    let parts = [
        Part::new("of the median query", collapsed(&median)),
        Part::new("of the mean over the queries", collapsed(&mean)),
        Part::new("of the 99th percentile", collapsed(&p99)),
    ];
    let typical: Vec<Spread> = widths
        .iter()
        .map(|&d| at(Scale::Unscaled, d, |at| at.gradient.p50))
        .collect();
    let scaled: Vec<Spread> = widths
        .iter()
        .map(|&d| at(Scale::InvSqrtDim, d, |at| at.gradient.p50))
        .collect();
    let power = mean_exponent(results);
    let kept = at(Scale::Unscaled, largest, |at| at.kept);
    let along = |typical: &[Spread]| {
        let at = |(d, spread): (&usize, &Spread)| format!("{} at d {d}", middle(spread));
        widths
            .iter()
            .zip(typical)
            .map(at)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let finding = format!(
        "With {KEYS} keys the median query's gradient is {}; with the scale {}. The mean goes as d to \
         the power of {} from d 64 on, and at d {largest} a share of {} of the queries keeps a \
         gradient as large as the median one with the scale.",
        along(&typical),
        along(&scaled),
        middle(&power),
        middle(&kept),
    );
    let mut figures = vec![
        Figure::shown(
            format!("median query's gradient, unscaled, d {largest}"),
            typical[typical.len() - 1].clone(),
        ),
        Figure::shown(
            format!("the same with the scale, d {largest}"),
            scaled[scaled.len() - 1].clone(),
        ),
        Figure::shown("exponent of d in the mean gradient, from d 64 on", power),
        Figure::shown(
            format!("queries that keep a gradient as of the scaled median, d {largest}"),
            kept,
        ),
        Figure::kept("median, unscaled / scaled", median),
        Figure::kept("mean, unscaled / scaled", mean),
        Figure::kept("99th percentile, unscaled / scaled", p99),
    ];
    for (place, &d) in widths.iter().enumerate() {
        figures.push(Figure::kept(
            format!("median, unscaled, d {d}"),
            typical[place].clone(),
        ));
        figures.push(Figure::kept(
            format!("median, scaled, d {d}"),
            scaled[place].clone(),
        ));
        let mean = at(Scale::Unscaled, d, |at| at.gradient.mean);
        figures.push(Figure::kept(format!("mean, unscaled, d {d}"), mean));
    }
    Claim::judged(4, SENTENCE, RULE, figures, &parts, finding)
}

/// The exponent of `d` in the mean gradient without the scale, where the softmax is sharp.
fn mean_exponent(results: &Results) -> Spread {
    let widths: Vec<usize> = results
        .plan
        .drawn_widths
        .iter()
        .copied()
        .filter(|d| *d >= 64)
        .collect();
    let means: Vec<Spread> = widths
        .iter()
        .map(|&d| results.scores(d, 1.0, Scale::Unscaled, |at| at.gradient.mean))
        .collect();
    spread((0..results.plan.seeds.len()).map(|seed| {
        let at = |(d, mean): (&usize, &Spread)| Some((*d as f64, mean.values[seed]?.value));
        let points: Option<Vec<_>> = widths.iter().zip(&means).map(at).collect();
        points.map_or(f64::NAN, |points| exponent(&points))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::fixture;
    use crate::claims::verdict::Verdict;

    #[test]
    fn the_verdict_follows_which_gradients_collapse() {
        let claim = super::claim(&fixture::results());
        assert_eq!(claim.verdict, Verdict::HoldsUnderCondition);
        assert_eq!(
            claim.condition.unwrap(),
            "of the median query; not of the mean over the queries and of the 99th percentile"
        );
        assert!(
            claim.finding.contains("to the power of -0.500"),
            "{}",
            claim.finding
        );

        let mut all = fixture::results();
        fixture::change(&mut all, Scale::Unscaled, |_, at| {
            at.gradient.p50 = 1e-4;
            at.gradient.mean = 1e-3;
            at.gradient.p99 = 1e-3;
        });
        assert_eq!(super::claim(&all).verdict, Verdict::Holds);

        let mut none = fixture::results();
        fixture::change(&mut none, Scale::Unscaled, |_, at| at.gradient.p50 = 0.2);
        assert_eq!(super::claim(&none).verdict, Verdict::DoesNotHold);
    }
}
