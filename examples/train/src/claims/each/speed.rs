//! Claim 6: training without the scale.

use super::rates::{half_steps, learning_steps};
use crate::claims::claim::{Claim, Figure, spread};
use crate::claims::results::Results;
use crate::claims::runs::{Arm, Curve};
use crate::claims::verdict::{Answer, Part};
use crate::report::middle;

const SENTENCE: &str = "Without the scale training is not stopped but bad.";
const RULE: &str = "Not stopped: every run without the scale comes to 50 % accuracy (mean of 20 \
                    batches). Bad: in every seed it takes more than 1.1 times as many steps to 90 % as \
                    with the scale. Holds at a d_k where both are so.";

/// Ratios above this count as slower.
pub(super) const SLOWER: f64 = 1.1;

pub(super) fn claim(results: &Results) -> Claim {
    let mut figures = Vec::new();
    let mut parts = Vec::new();
    let mut words = Vec::new();
    for &d_k in &results.plan.d_k {
        let arm = |arm| results.trained(arm, d_k);
        let (scaled, unscaled) = (arm(Arm::Scaled), arm(Arm::Unscaled));
        let going = unscaled.iter().filter(|run| run.half_at.is_some()).count();
        let ratio = learning_steps(&unscaled).over(&learning_steps(&scaled));
        let answer = Answer::from_count(going, unscaled.len()).and(Answer::above(&ratio, SLOWER));
        parts.push(Part::at("", format!("at d_k {d_k}"), answer));
        let loss = |runs: &[&Curve]| spread(runs.iter().map(|run| run.final_loss));
        words.push(format!(
            "{} times the steps to 90 % and a final loss of {} against {} at d_k {d_k}",
            middle(&ratio),
            middle(&loss(&unscaled)),
            middle(&loss(&scaled)),
        ));
        for (name, runs) in [("scaled", &scaled), ("unscaled", &unscaled)] {
            let figure = |what: &str| format!("{what}, {name}, d_k {d_k}");
            figures.push(Figure::kept(figure("steps to 50 %"), half_steps(runs)));
            figures.push(Figure::kept(figure("steps to 90 %"), learning_steps(runs)));
            let last = results.plan.d_k.last() == Some(&d_k);
            let of_last = if last { Figure::shown } else { Figure::kept };
            figures.push(of_last(figure("final loss"), loss(runs)));
            let accuracy = spread(runs.iter().map(|run| run.final_accuracy));
            figures.push(Figure::kept(figure("final accuracy"), accuracy));
        }
        figures.push(Figure::shown(
            format!("steps to 90 %, unscaled / scaled, d_k {d_k}"),
            ratio,
        ));
    }
    let finding = format!(
        "Without the scale it takes {}, over {} steps.",
        words.join("; "),
        results.plan.steps
    );
    Claim::judged(6, SENTENCE, RULE, figures, &parts, finding)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::fixture;
    use crate::claims::verdict::Verdict;

    #[test]
    fn training_that_is_as_fast_or_stopped_turns_the_verdict_round() {
        let claim = super::claim(&fixture::results());
        assert_eq!((claim.verdict, claim.condition), (Verdict::Holds, None));
        assert!(
            claim.finding.contains("3 times the steps"),
            "{}",
            claim.finding
        );

        let mut stopped = fixture::results();
        fixture::change_runs(&mut stopped, Arm::Unscaled, |config, curve| {
            if config.d_k == 256 {
                (curve.half_at, curve.learned_at) = (None, None);
            }
        });
        let claim = super::claim(&stopped);
        assert_eq!(claim.verdict, Verdict::HoldsUnderCondition);
        assert_eq!(claim.condition.unwrap(), "at d_k 64; not at d_k 256");

        let mut equal = fixture::results();
        fixture::change_runs(&mut equal, Arm::Unscaled, |_, curve| {
            curve.learned_at = Some(40)
        });
        assert_eq!(super::claim(&equal).verdict, Verdict::DoesNotHold);
    }
}
