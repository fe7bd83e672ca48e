//! Claim 11: deeper stacks and more heads.

use super::learning_steps;
use crate::claims::claim::{Claim, Figure, spread};
use crate::claims::results::Results;
use crate::claims::runs::{Arm, Curve, Layer};
use crate::claims::verdict::{Answer, Part};
use crate::report::middle;
use crate::summary::Spread;

const SENTENCE: &str = "What claims 3 to 6 find of one layer with one head is so in deeper stacks and \
                        with more heads.";
const RULE: &str = "At step 0 in every layer: the mean largest weight (claim 3) and the median query's \
                    gradient at its scores (claim 4); of all layers: the gradient norm of the query \
                    weights (claim 5); and the steps to 90 % accuracy (claim 6). Holds for a stack if each \
                    of them, without the scale by with it, is on the same side of 1 in every seed as in \
                    one layer with one head.";

/// The ratios of one stack, without the scale by with it.
struct Ratios {
    max_weight: Vec<Spread>,
    gradient: Vec<Spread>,
    norm: Spread,
    steps: Spread,
}

/// On which side of 1 a ratio is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Side {
    Above,
    Below,
    Neither,
    /// Nothing is known of it.
    Unknown,
}

pub(super) fn claim(results: &Results) -> Claim {
    let mut figures = Vec::new();
    let mut parts = Vec::new();
    let one = sides(&ratios(results, 1, 1));
    let mut words = Vec::new();
    for &(layers, heads) in &results.plan.stacks {
        let name = name(layers, heads);
        let ratios = ratios(results, layers, heads);
        words.push(format!(
            "{name}: {} times the steps to 90 %, {} times the query weights' gradient norm",
            middle(&ratios.steps),
            middle(&ratios.norm)
        ));
        for (of_one, of_stack) in one.iter().zip(sides(&ratios)) {
            if (layers, heads) != (1, 1) {
                let (claim, place) = (format!("for claim {}", of_one.0), format!("with {name}"));
                parts.push(Part::at(claim, place, same(&of_one.1, &of_stack.1)));
            }
        }
        let figure = |what: &str| format!("{what}, unscaled / scaled, {name}");
        for (layer, ratio) in ratios.max_weight.into_iter().enumerate() {
            let what = format!("largest weight at step 0, layer {layer}");
            figures.push(Figure::kept(figure(&what), ratio));
        }
        for (layer, ratio) in ratios.gradient.into_iter().enumerate() {
            let what = format!("median score gradient at step 0, layer {layer}");
            figures.push(Figure::kept(figure(&what), ratio));
        }
        let what = "query-weight gradient norm at step 0";
        figures.push(Figure::kept(figure(what), ratios.norm));
        figures.push(Figure::shown(figure("steps to 90 %"), ratios.steps));
    }
    let finding = format!(
        "Without the scale by with it at d_k {}: {}.",
        results.plan.stack_d_k,
        words.join("; ")
    );
    Claim::judged(11, SENTENCE, RULE, figures, &parts, finding)
}

pub(in crate::claims) fn name(layers: usize, heads: usize) -> String {
    let plural = |count: usize, thing: &str| match count {
        1 => format!("1 {thing}"),
        count => format!("{count} {thing}s"),
    };
    format!("{} of {}", plural(layers, "layer"), plural(heads, "head"))
}

fn ratios(results: &Results, layers: usize, heads: usize) -> Ratios {
    let (scaled, unscaled) = (
        results.stack(Arm::Scaled, layers, heads),
        results.stack(Arm::Unscaled, layers, heads),
    );
    let by = |of: &dyn Fn(&Curve) -> f64| {
        spread(
            unscaled
                .iter()
                .zip(&scaled)
                .map(|(unscaled, scaled)| of(unscaled) / of(scaled)),
        )
    };
    let of_layers = |of: fn(&Layer) -> f64| {
        let layer = |layer: usize| by(&|run: &Curve| of(&run.start().layers[layer]));
        (0..layers).map(layer).collect()
    };
    Ratios {
        max_weight: of_layers(|layer| layer.max_weight),
        gradient: of_layers(|layer| layer.p50),
        norm: by(&|run| run.start().query_norm),
        steps: learning_steps(&unscaled).over(&learning_steps(&scaled)),
    }
}

/// Those of claims 3 to 6; of several layers, that which all are on.
fn sides(ratios: &Ratios) -> [(u8, Vec<Side>); 4] {
    let all = |spreads: &[Spread]| spreads.iter().map(Side::of).collect();
    [
        (3, all(&ratios.max_weight)),
        (4, all(&ratios.gradient)),
        (5, vec![Side::of(&ratios.norm)]),
        (6, vec![Side::of(&ratios.steps)]),
    ]
}

impl Side {
    fn of(ratio: &Spread) -> Self {
        match (Answer::above(ratio, 1.0), Answer::below(ratio, 1.0)) {
            (Answer::Yes, _) => Self::Above,
            (_, Answer::Yes) => Self::Below,
            (Answer::Unknown, Answer::Unknown) => Self::Unknown,
            _ => Self::Neither,
        }
    }
}

/// Whether a stack's layers are all where the one layer is.
fn same(one: &[Side], stack: &[Side]) -> Answer {
    if one.contains(&Side::Unknown) {
        return Answer::Unknown;
    }
    if one.contains(&Side::Neither) {
        return Answer::Unclear;
    }
    let other = match one[0] {
        Side::Above => Side::Below,
        _ => Side::Above,
    };
    match stack.iter().all(|side| *side == one[0]) {
        true => Answer::Yes,
        false if stack.contains(&other) => Answer::No,
        false if stack.contains(&Side::Unknown) => Answer::Unknown,
        false => Answer::Unclear,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::fixture;
    use crate::claims::verdict::Verdict;

    #[test]
    fn a_stack_that_goes_the_other_way_is_named() {
        let claim = super::claim(&fixture::results());
        assert_eq!((claim.verdict, claim.condition), (Verdict::Holds, None));
        let mut other = fixture::results();
        fixture::change_runs(&mut other, Arm::Unscaled, |config, curve| {
            if (config.layers, config.heads) == (2, 4) {
                curve.learned_at = Some(10);
            }
        });
        let claim = super::claim(&other);
        assert_eq!(claim.verdict, Verdict::HoldsUnderCondition);
        assert!(
            claim
                .condition
                .unwrap()
                .ends_with("; not for claim 6 with 2 layers of 4 heads")
        );
    }

    #[test]
    fn a_layer_on_the_other_side_is_enough_to_differ() {
        use Side::{Above, Below, Neither, Unknown};
        assert_eq!(same(&[Above], &[Above, Above]), Answer::Yes);
        assert_eq!(same(&[Above], &[Above, Below]), Answer::No);
        assert_eq!(same(&[Above], &[Above, Neither]), Answer::Unclear);
        assert_eq!(same(&[Neither], &[Neither]), Answer::Unclear);
        assert_eq!(same(&[Above], &[Above, Unknown]), Answer::Unknown);
        assert_eq!(same(&[Above], &[Below, Unknown]), Answer::No);
        assert_eq!(same(&[Unknown], &[Unknown]), Answer::Unknown);
    }

    #[test]
    fn nothing_is_known_of_a_stack_that_never_learns_with_the_scale() {
        let mut never = fixture::results();
        fixture::change_runs(&mut never, Arm::Scaled, |config, curve| {
            if (config.layers, config.heads) == (2, 4) {
                curve.learned_at = None;
            }
        });
        let claim = super::claim(&never);
        assert_eq!(claim.verdict, Verdict::HoldsUnderCondition);
        let condition = claim.condition.unwrap();
        assert!(
            condition.ends_with("; not known for claim 6 with 2 layers of 4 heads"),
            "{condition}"
        );
    }
}
