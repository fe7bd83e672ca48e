//! Claim 5: what a log of parameter norms shows.

use crate::claims::claim::{Claim, Figure, spread};
use crate::claims::results::Results;
use crate::claims::runs::{Arm, Curve, Point};
use crate::claims::verdict::{Answer, Part};
use crate::report::{middle, number};
use crate::summary::{Measured, Spread};

const SENTENCE: &str = "Without the scale gradients vanish, as a log of parameter norms shows.";
const RULE: &str = "At the start: holds where, in every seed, the gradient norms of query and of key \
                    weights are smaller without the scale than with it. Later: holds where every run \
                    without the scale freezes and none with it, that is, over some 50 steps the norm \
                    of the query weights (median) is below a hundredth of that at step 0 while the \
                    loss (mean) stays above 0.1: the gradient is gone, the task is not learned.";

/// How many logged steps a freeze is looked for in.
const LOGGED: usize = 10;
/// Of the norm at step 0.
const GONE: f64 = 0.01;
/// In nats; that of guessing among 32 values is 3.5.
const UNLEARNED: f64 = 0.1;

pub(super) fn claim(results: &Results) -> Claim {
    let plan = &results.plan;
    let (mut start, mut later) = (Vec::new(), Vec::new());
    let mut figures = Vec::new();
    let mut words = (Vec::new(), Vec::new());
    for &d_k in &plan.d_k {
        let (scaled, unscaled) = (
            results.trained(Arm::Scaled, d_k),
            results.trained(Arm::Unscaled, d_k),
        );
        let query = at_start(&unscaled, &scaled, |point| point.query_norm);
        let key = at_start(&unscaled, &scaled, |point| point.key_norm);
        let smaller = Answer::below(&query, 1.0).and(Answer::below(&key, 1.0));
        start.push(Part::at("at the start", format!("at d_k {d_k}"), smaller));
        words.0.push(format!(
            "{} and {} at d_k {d_k}",
            middle(&query),
            middle(&key)
        ));
        figures.push(Figure::shown(
            format!("query-weight gradient norm at step 0, unscaled / scaled, d_k {d_k}"),
            query,
        ));
        figures.push(Figure::kept(
            format!("key-weight gradient norm at step 0, unscaled / scaled, d_k {d_k}"),
            key,
        ));

        let steps = frozen(&unscaled);
        let count = |runs: &[&Curve]| runs.iter().filter(|run| frozen_at(run).is_some()).count();
        let answer = Answer::from_count(count(&unscaled), unscaled.len())
            .and(Answer::from_bool(count(&scaled) == 0));
        later.push(Part::at("later", format!("at d_k {d_k}"), answer));
        words.1.push(match count(&unscaled) {
            0 => format!("in none of {} runs at d_k {d_k}", unscaled.len()),
            some => {
                let at: Vec<f64> = unscaled.iter().filter_map(|run| frozen_at(run)).collect();
                let median = spread(at).median().map_or(0.0, |median| median.value);
                format!(
                    "in {some} of {} runs at d_k {d_k}, from step {} on (median of these)",
                    unscaled.len(),
                    number(median)
                )
            }
        });
        figures.push(Figure::shown(
            format!("step of the freeze, unscaled, d_k {d_k}"),
            steps,
        ));
        figures.push(Figure::kept(
            format!("step of the freeze, scaled, d_k {d_k}"),
            frozen(&scaled),
        ));
    }
    let finding = format!(
        "At step 0 the gradient norms of query and key weights without the scale are, times those with \
         it, {}. Later runs without the scale freeze {}.",
        words.0.join(", "),
        words.1.join(", ")
    );
    start.extend(later);
    Claim::judged(5, SENTENCE, RULE, figures, &start, finding)
}

fn at_start(of: &[&Curve], by: &[&Curve], norm: impl Fn(&Point) -> f64) -> Spread {
    spread(
        of.iter()
            .zip(by)
            .map(|(of, by)| norm(of.start()) / norm(by.start())),
    )
}

/// The first logged step of a run's freeze.
fn frozen_at(run: &Curve) -> Option<f64> {
    let gone = GONE * run.start().query_norm;
    let frozen = run.points.windows(LOGGED).find(|window| {
        let mut norms: Vec<f64> = window.iter().map(|point| point.query_norm).collect();
        norms.sort_by(f64::total_cmp);
        let loss = window.iter().map(|point| point.loss).sum::<f64>() / LOGGED as f64;
        let median = (norms[LOGGED / 2 - 1] + norms[LOGGED / 2]) / 2.0;
        window[0].query_norm < gone && median < gone && loss > UNLEARNED
    });
    frozen.map(|window| window[0].step as f64)
}

/// By seed; a run that did not freeze, to its end.
fn frozen(runs: &[&Curve]) -> Spread {
    let at = |run: &&Curve| {
        let frozen = frozen_at(run);
        Some(Measured {
            value: frozen.unwrap_or(run.steps as f64),
            more: frozen.is_none(),
        })
    };
    Spread {
        values: runs.iter().map(at).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::fixture;
    use crate::claims::verdict::Verdict;

    #[test]
    fn norms_that_are_larger_at_the_start_and_vanish_later_hold_later_alone() {
        let mut results = fixture::results();
        fixture::change_runs(&mut results, Arm::Unscaled, |config, curve| {
            if config.d_k == 256 {
                fixture::freeze(curve, 100);
            }
        });
        let claim = super::claim(&results);
        assert_eq!(claim.verdict, Verdict::HoldsUnderCondition);
        assert_eq!(
            claim.condition.unwrap(),
            "later at d_k 256; not at the start and later at d_k 64"
        );
        assert!(
            claim
                .finding
                .contains("in 3 of 3 runs at d_k 256, from step 100 on"),
            "{}",
            claim.finding
        );
    }

    #[test]
    fn norms_that_are_smaller_at_the_start_hold_there() {
        let mut results = fixture::results();
        fixture::change_runs(&mut results, Arm::Unscaled, |_, curve| {
            for point in &mut curve.points {
                point.query_norm *= 1e-2;
                point.key_norm *= 1e-2;
            }
        });
        let condition = super::claim(&results).condition.unwrap();
        assert!(condition == "at the start; not later");
        // Neither: not vanishing at all.
        assert_eq!(
            super::claim(&fixture::results()).verdict,
            Verdict::DoesNotHold
        );
    }

    #[test]
    fn a_gradient_that_is_gone_because_the_task_is_learned_is_no_freeze() {
        let mut results = fixture::results();
        let (_, curve) = &mut results.curves[0];
        fixture::freeze(curve, 50);
        assert_eq!(frozen_at(curve), Some(50.0));
        for point in &mut curve.points {
            point.loss = 0.01;
        }
        assert_eq!(frozen_at(curve), None);
    }
}
