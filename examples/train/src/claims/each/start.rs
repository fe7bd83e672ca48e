//! Claim 8: smaller weights at the start.

use super::learning_steps;
use super::speed::SLOWER;
use crate::claims::claim::{Claim, Figure, spread};
use crate::claims::results::Results;
use crate::claims::runs::{Arm, Curve, Layer};
use crate::claims::verdict::{Answer, Part};
use crate::report::middle;
use crate::summary::Spread;

const SENTENCE: &str = "It is not an initialisation problem: query and key weights that start small \
                        enough for scores of deviation 1 do not make up for the missing scale.";
const RULE: &str = "The small start divides query and key weights by d_k^(1/4) each. At a d_k, learning \
                    is not made up for if, in every seed, it takes more than 1.1 times as many steps to \
                    90 % as with the scale; nor are the scores, or the final loss, if in every seed \
                    their deviation at the end of training, or the mean loss of the last 100 steps, is more \
                    than twice that with the scale.";

pub(super) fn claim(results: &Results) -> Claim {
    let mut figures = Vec::new();
    let (mut learning, mut after, mut lasting) = (Vec::new(), Vec::new(), Vec::new());
    let mut words = Vec::new();
    for &d_k in &results.plan.d_k {
        let [scaled, unscaled, small] = Arm::ALL.map(|arm| results.trained(arm, d_k));
        let ratio = learning_steps(&small).over(&learning_steps(&scaled));
        let plain = learning_steps(&unscaled).over(&learning_steps(&scaled));
        let [std_scaled, std_unscaled, std_small] =
            [&scaled, &unscaled, &small].map(|runs| at_end(runs, |layer| layer.score_std));
        let wider = std_small.over(&std_scaled);
        learning.push(Part::at(
            "for learning",
            format!("at d_k {d_k}"),
            Answer::above(&ratio, SLOWER),
        ));
        after.push(Part::at(
            "for the scores after training",
            format!("at d_k {d_k}"),
            Answer::above(&wider, 2.0),
        ));
        let loss = |runs: &[&Curve]| spread(runs.iter().map(|run| run.final_loss));
        let worse = loss(&small).over(&loss(&scaled));
        lasting.push(Part::at(
            "for the final loss",
            format!("at d_k {d_k}"),
            Answer::above(&worse, 2.0),
        ));
        words.push(format!(
            "at d_k {d_k} it takes {} times the steps to 90 % of the scaled runs (the ordinary start \
             {}), training brings the scores' deviation from {} to {} (scaled {}, unscaled {}), and the \
             final loss is {} times that of the scaled runs",
            middle(&ratio),
            middle(&plain),
            middle(&at_start(&small, |layer| layer.score_std)),
            middle(&std_small),
            middle(&std_scaled),
            middle(&std_unscaled),
            middle(&worse),
        ));
        figures.push(Figure::shown(
            format!("steps to 90 %, small start / scaled, d_k {d_k}"),
            ratio,
        ));
        figures.push(Figure::shown(
            format!("final loss, small start / scaled, d_k {d_k}"),
            worse,
        ));
        figures.push(Figure::kept(
            format!("steps to 90 %, ordinary start / scaled, d_k {d_k}"),
            plain,
        ));
        for (arm, runs, std) in [
            ("scaled", &scaled, std_scaled),
            ("unscaled", &unscaled, std_unscaled),
            ("small start", &small, std_small),
        ] {
            let name = |what: &str| format!("{what}, {arm}, d_k {d_k}");
            let last = results.plan.d_k.last() == Some(&d_k);
            let figure = if last { Figure::shown } else { Figure::kept };
            figures.push(figure(name("score deviation at the end"), std));
            let entropy = at_start(runs, |layer| layer.entropy);
            figures.push(Figure::kept(name("entropy / ln n at step 0"), entropy));
            let entropy = at_end(runs, |layer| layer.entropy);
            figures.push(Figure::kept(name("entropy / ln n at the end"), entropy));
            let loss = spread(runs.iter().map(|run| run.final_loss));
            figures.push(Figure::kept(name("final loss"), loss));
        }
    }
    let finding = format!("With the small start, {}.", words.join("; "));
    let parts = [learning, after, lasting].concat();
    Claim::judged(8, SENTENCE, RULE, figures, &parts, finding)
}

fn at_start(runs: &[&Curve], of: impl Fn(&Layer) -> f64) -> Spread {
    spread(runs.iter().map(|run| of(&run.start().layers[0])))
}

/// At the last step that was probed.
fn at_end(runs: &[&Curve], of: impl Fn(&Layer) -> f64) -> Spread {
    spread(runs.iter().map(|run| {
        let mut probed = run
            .points
            .iter()
            .rev()
            .filter_map(|point| point.layers.first());
        of(probed.next().expect("step 0 is always probed"))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::fixture;
    use crate::claims::verdict::Verdict;

    #[test]
    fn a_small_start_that_makes_up_for_learning_alone_leaves_half_of_the_claim() {
        let claim = super::claim(&fixture::results());
        assert_eq!(claim.verdict, Verdict::Holds);

        let mut repaired = fixture::results();
        fixture::change_runs(&mut repaired, Arm::SmallInit, |_, curve| {
            curve.learned_at = Some(40)
        });
        let claim = super::claim(&repaired);
        assert_eq!(claim.verdict, Verdict::HoldsUnderCondition);
        assert_eq!(
            claim.condition.unwrap(),
            "for the scores after training and for the final loss; not for learning"
        );

        fixture::change_runs(&mut repaired, Arm::SmallInit, |_, curve| {
            curve.final_loss = 0.01;
            for point in &mut curve.points {
                point.layers[0].score_std = 3.0;
            }
        });
        assert_eq!(super::claim(&repaired).verdict, Verdict::DoesNotHold);
    }
}
