//! Claim 1: the variance of `q . k`.

use layers::Scale;

use crate::claims::claim::{Claim, Figure, exponent, spread};
use crate::claims::results::Results;
use crate::claims::verdict::{Answer, Part};
use crate::report::cell;
use crate::summary::Spread;

const SENTENCE: &str = "Var(q·k) = d σ⁴, so the standard deviation grows as √d; after the scale \
                        they are σ⁴ and constant.";
const RULE: &str = "Holds if, in every seed, each variance is within 5 % of d σ⁴ (σ⁴ after the \
                    scale), and the deviation goes as d to the power of 0.5 ± 0.02 (0 ± 0.02 after \
                    the scale).";

pub(super) fn claim(results: &Results) -> Claim {
    let plan = &results.plan;
    let mut figures = Vec::new();
    let mut parts = Vec::new();
    let mut extremes = (f64::INFINITY, f64::NEG_INFINITY);
    for (scale, what, power) in [
        (Scale::Unscaled, "the variance is d σ⁴", 1.0),
        (Scale::InvSqrtDim, "the scaled variance is σ⁴", 0.0),
    ] {
        for &sigma in &plan.sigmas {
            let mut answer = Answer::Yes;
            for &d in &plan.drawn_widths {
                let theory = (d as f64).powf(power) * sigma.powi(4);
                let ratio = results.scores(d, sigma, scale, |at| at.std.powi(2) / theory);
                answer = answer.and(Answer::within(&ratio, 0.95, 1.05));
                for value in ratio.values.iter().flatten() {
                    extremes = (extremes.0.min(value.value), extremes.1.max(value.value));
                }
                let name = format!("{scale} variance / theory at d {d}, σ {sigma}");
                figures.push(Figure::kept(name, ratio));
            }
            parts.push(Part::at(what, format!("at σ {sigma}"), answer));
        }
    }
    let grows = growth(results, Scale::Unscaled);
    let constant = growth(results, Scale::InvSqrtDim);
    parts.push(Part::new(
        "the deviation grows as √d",
        Answer::within(&grows, 0.48, 0.52),
    ));
    parts.push(Part::new(
        "it is constant after the scale",
        Answer::within(&constant, -0.02, 0.02),
    ));
    let finding = format!(
        "Variances are {:.3} to {:.3} times what theory gives, over all widths, deviations and seeds; \
         the deviation goes as d to the power of {}, after the scale of {}.",
        extremes.0,
        extremes.1,
        cell(&grows),
        cell(&constant)
    );
    let shown = [
        Figure::shown("exponent of d in the deviation", grows),
        Figure::shown("the same after the scale", constant),
    ];
    figures.splice(0..0, shown);
    Claim::judged(1, SENTENCE, RULE, figures, &parts, finding)
}

/// The exponent of `d` in the scores' deviation, by seed.
pub(super) fn growth(results: &Results, scale: Scale) -> Spread {
    let widths = &results.plan.drawn_widths;
    let stds: Vec<Spread> = widths
        .iter()
        .map(|&d| results.scores(d, 1.0, scale, |at| at.std))
        .collect();
    spread((0..results.plan.seeds.len()).map(|seed| {
        let at = |(d, std): (&usize, &Spread)| Some((*d as f64, std.values[seed]?.value));
        let points: Option<Vec<_>> = widths.iter().zip(&stds).map(at).collect();
        points.map_or(f64::NAN, |points| exponent(&points))
    }))
}

#[cfg(test)]
mod tests {
    use crate::claims::fixture;
    use crate::claims::verdict::Verdict;

    #[test]
    fn variances_of_theory_hold_and_others_do_not() {
        let claim = super::claim(&fixture::results());
        assert_eq!((claim.verdict, claim.condition), (Verdict::Holds, None));
        assert!(
            claim
                .finding
                .contains("to the power of 0.500 (0.500 to 0.500)"),
            "{}",
            claim.finding
        );

        let mut wider = fixture::results();
        fixture::change_scores(&mut wider, |draw, at| {
            if draw.sigma == 2.0 && draw.d == 64 {
                at.std *= 1.1;
            }
        });
        let claim = super::claim(&wider);
        assert_eq!(claim.verdict, Verdict::HoldsUnderCondition);
        let condition = claim.condition.unwrap();
        assert!(
            condition
                .ends_with("not the variance is d σ⁴ at σ 2 and the scaled variance is σ⁴ at σ 2"),
            "{condition}"
        );

        let mut linear = fixture::results();
        fixture::change_scores(&mut linear, |draw, at| at.std = (draw.d as f64).powi(2));
        assert_eq!(super::claim(&linear).verdict, Verdict::DoesNotHold);
    }
}
