//! Claim 3: the softmax without the scale.

use layers::Scale;

use crate::claims::claim::{Claim, Figure, spread};
use crate::claims::results::Results;
use crate::claims::scores::KEYS;
use crate::claims::verdict::{Answer, Part};
use crate::report::cell;
use crate::summary::Spread;

const SENTENCE: &str = "Without the scale the softmax goes near one-hot as d grows.";
const RULE: &str = "Holds if, in every seed, the mean largest weight grows from each d to the next, is \
                    above 0.9 at the largest d, and the entropy there is below 0.1 of uniform \
                    attention's.";

/// From this mean largest weight on, a softmax counts as near one-hot.
const NEAR_ONE_HOT: f64 = 0.9;

pub(super) fn claim(results: &Results) -> Claim {
    let widths = &results.plan.drawn_widths;
    let weight = |scale, d| results.scores(d, 1.0, scale, |at| at.max_weight);
    let entropy = |scale, d| results.scores(d, 1.0, scale, |at| at.entropy);
    let unscaled: Vec<Spread> = widths.iter().map(|&d| weight(Scale::Unscaled, d)).collect();
    let growing = spread((0..results.plan.seeds.len()).map(|seed| {
        let at = |spread: &Spread| spread.values[seed].map_or(f64::NAN, |m| m.value);
        let steps = unscaled.windows(2).map(|pair| at(&pair[1]) - at(&pair[0]));
        steps.fold(f64::INFINITY, f64::min)
    }));
    let largest = widths[widths.len() - 1];
    let (top, top_entropy) = (
        &unscaled[unscaled.len() - 1],
        entropy(Scale::Unscaled, largest),
    );
    let at_largest = format!("near one-hot at d {largest}");
    let parts = [
        Part::new("sharper with every d", Answer::above(&growing, 0.0)),
        Part::new(
            at_largest,
            Answer::above(top, NEAR_ONE_HOT).and(Answer::below(&top_entropy, 0.1)),
        ),
    ];
    let from = widths
        .iter()
        .zip(&unscaled)
        .find(|(_, weight)| Answer::above(weight, NEAR_ONE_HOT) == Answer::Yes)
        .map_or("at no d that was measured".to_string(), |(d, _)| {
            format!("first at d {d}")
        });
    let (scaled_first, scaled_last) = (
        weight(Scale::InvSqrtDim, widths[0]),
        weight(Scale::InvSqrtDim, largest),
    );
    let finding = format!(
        "With {KEYS} keys the mean largest weight goes from {} at d {} to {} at d {largest}; it is \
         above {NEAR_ONE_HOT} {from}. With the scale it is {} and {}.",
        cell(&unscaled[0]),
        widths[0],
        cell(top),
        cell(&scaled_first),
        cell(&scaled_last),
    );
    let mut figures = vec![
        Figure::shown(
            format!("largest weight at d {}", widths[0]),
            unscaled[0].clone(),
        ),
        Figure::shown(format!("largest weight at d {largest}"), top.clone()),
        Figure::shown(format!("entropy / ln n at d {largest}"), top_entropy),
        Figure::shown(
            format!("largest weight at d {largest}, scaled"),
            scaled_last,
        ),
    ];
    for (&d, weight_there) in widths.iter().zip(unscaled) {
        figures.push(Figure::kept(
            format!("largest weight, unscaled, d {d}"),
            weight_there,
        ));
        figures.push(Figure::kept(
            format!("largest weight, scaled, d {d}"),
            weight(Scale::InvSqrtDim, d),
        ));
        for (name, scale) in [("unscaled", Scale::Unscaled), ("scaled", Scale::InvSqrtDim)] {
            let figure = Figure::kept(format!("entropy / ln n, {name}, d {d}"), entropy(scale, d));
            figures.push(figure);
        }
    }
    Claim::judged(3, SENTENCE, RULE, figures, &parts, finding)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::fixture;
    use crate::claims::verdict::Verdict;

    #[test]
    fn a_softmax_that_stays_broad_turns_the_verdict_round() {
        let claim = super::claim(&fixture::results());
        assert_eq!((claim.verdict, claim.condition), (Verdict::Holds, None));
        assert!(
            claim.finding.contains("above 0.9 first at d 512"),
            "{}",
            claim.finding
        );

        let mut slower = fixture::results();
        fixture::change(&mut slower, Scale::Unscaled, |_, at| at.max_weight *= 0.8);
        let claim = super::claim(&slower);
        assert_eq!(claim.verdict, Verdict::HoldsUnderCondition);
        assert_eq!(
            claim.condition.unwrap(),
            "sharper with every d; not near one-hot at d 512"
        );
        assert!(
            claim
                .finding
                .contains("above 0.9 at no d that was measured"),
            "{}",
            claim.finding
        );

        let mut broad = fixture::results();
        fixture::change(&mut broad, Scale::Unscaled, |_, at| at.max_weight = 0.1);
        assert_eq!(super::claim(&broad).verdict, Verdict::DoesNotHold);
    }
}
