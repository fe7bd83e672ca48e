//! Claim 7: learning rates.

use super::speed::SLOWER;
use crate::claims::claim::{Claim, Figure, steps};
use crate::claims::results::Results;
use crate::claims::runs::{Arm, Curve};
use crate::claims::verdict::{Answer, Part};
use crate::report::{cell, number};
use crate::summary::Spread;

const SENTENCE: &str = "It is not a learning-rate problem: no rate makes up for the missing scale.";
const RULE: &str = "Each arm gets its best rate of the sweep, the one with the smallest median of the \
                    steps to 90 % accuracy over the same seeds. Holds at a d_k where, in every seed, the best rate without \
                    the scale takes more than 1.1 times as many steps as the best one with it.";

/// The best rate of an arm and its steps to 90 %, by seed.
struct Best {
    rate: f64,
    steps: Spread,
    /// Whether a rate outside the sweep may be better.
    at_edge: bool,
}

pub(super) fn claim(results: &Results) -> Claim {
    let plan = &results.plan;
    let mut figures = Vec::new();
    let mut parts = Vec::new();
    let mut words = Vec::new();
    for &d_k in &plan.rate_d_k {
        let (scaled, unscaled) = (
            best(results, Arm::Scaled, d_k),
            best(results, Arm::Unscaled, d_k),
        );
        let ratio = unscaled.steps.over(&scaled.steps);
        parts.push(Part::at(
            "",
            format!("at d_k {d_k}"),
            Answer::above(&ratio, SLOWER),
        ));
        let edge = |best: &Best| {
            if best.at_edge {
                ", the edge of the sweep"
            } else {
                ""
            }
        };
        words.push(format!(
            "at d_k {d_k} the best rate takes {} steps without the scale (rate {}{}), {} with it (rate \
             {}{}): {} times as many",
            cell(&unscaled.steps),
            number(unscaled.rate),
            edge(&unscaled),
            cell(&scaled.steps),
            number(scaled.rate),
            edge(&scaled),
            cell(&ratio),
        ));
        figures.push(Figure::shown(
            format!("steps to 90 % at the best rates, unscaled / scaled, d_k {d_k}"),
            ratio,
        ));
        for (name, best) in [("scaled", scaled), ("unscaled", unscaled)] {
            figures.push(Figure::shown(
                format!(
                    "steps to 90 % at {}, the best rate, {name}, d_k {d_k}",
                    number(best.rate)
                ),
                best.steps,
            ));
        }
        for &rate in &plan.rates {
            for (name, arm) in [("scaled", Arm::Scaled), ("unscaled", Arm::Unscaled)] {
                figures.push(Figure::kept(
                    format!("steps to 90 % at {}, {name}, d_k {d_k}", number(rate)),
                    learning_steps(&results.at_rate(arm, d_k, rate)),
                ));
            }
        }
    }
    let finding = format!(
        "Of {} rates from {} to {}, {}.",
        plan.rates.len(),
        number(plan.rates[0]),
        number(plan.rates[plan.rates.len() - 1]),
        words.join("; ")
    );
    Claim::judged(7, SENTENCE, RULE, figures, &parts, finding)
}

/// The steps to 90 % accuracy, by seed.
pub(in crate::claims) fn learning_steps(runs: &[&Curve]) -> Spread {
    steps(runs.iter().map(|run| (run.learned_at, run.steps)))
}

/// The steps to 50 % accuracy, by seed.
pub(super) fn half_steps(runs: &[&Curve]) -> Spread {
    steps(runs.iter().map(|run| (run.half_at, run.steps)))
}

fn best(results: &Results, arm: Arm, d_k: usize) -> Best {
    let rates = &results.plan.rates;
    let at = |place: usize| learning_steps(&results.at_rate(arm, d_k, rates[place]));
    // A median that is a bound counts as more than every number.
    let median = |place: &usize| {
        let median = at(*place).median().expect("every run has its steps");
        (median.more, median.value)
    };
    let place = (0..rates.len())
        .min_by(|a, b| {
            let ((a_more, a), (b_more, b)) = (median(a), median(b));
            a_more.cmp(&b_more).then(a.total_cmp(&b))
        })
        .expect("a sweep has rates");
    Best {
        rate: rates[place],
        steps: at(place),
        at_edge: place == 0 || place + 1 == rates.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::fixture;
    use crate::claims::verdict::Verdict;

    #[test]
    fn a_rate_that_makes_up_for_the_scale_turns_the_verdict_round() {
        let claim = super::claim(&fixture::results());
        assert_eq!((claim.verdict, claim.condition), (Verdict::Holds, None));

        let mut made_up = fixture::results();
        fixture::change_runs(&mut made_up, Arm::Unscaled, |config, curve| {
            if config.stop.is_some() && config.lr == Some(3e-2) {
                curve.learned_at = Some(41);
            }
        });
        let claim = super::claim(&made_up);
        assert_eq!(claim.verdict, Verdict::DoesNotHold);
        assert!(
            claim
                .finding
                .contains("41 (41 to 41) steps without the scale (rate 0.0300, the edge of the"),
            "{}",
            claim.finding
        );
    }

    #[test]
    fn nothing_is_known_where_no_rate_learns_with_the_scale() {
        let mut never = fixture::results();
        fixture::change_runs(&mut never, Arm::Scaled, |_, curve| curve.learned_at = None);
        let claim = super::claim(&never);
        assert_eq!((claim.verdict, claim.condition), (Verdict::NotKnown, None));
    }

    #[test]
    fn a_rate_at_which_most_seeds_learn_is_better_than_one_at_which_few_do() {
        let mut results = fixture::results();
        fixture::change_runs(&mut results, Arm::Unscaled, |config, curve| {
            let learns = config.lr == Some(1e-3);
            curve.learned_at = learns.then_some(290);
            curve.steps = 300;
        });
        let best = best(&results, Arm::Unscaled, results.plan.rate_d_k[0]);
        assert_eq!(best.rate, 1e-3);
        assert!(!best.at_edge);
    }
}
