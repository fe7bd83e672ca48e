//! Results by formula, for the tests of what is made of them.

use layers::Scale;

use super::plan::Plan;
use super::results::Results;
use super::runs::{Arm, Curve, Layer, Point, SampleWeights};
use super::scores::{Draw, Gradient, SCALES, Scores, ScoresAt};
use crate::Backend;
use crate::config::RunConfig;
use crate::data::PAIRS;
use crate::figures::Weights;
use crate::model::Init;

/// The quick plan's results, as theory and the known figures have them: all seeds alike.
pub(super) fn results() -> Results {
    let plan = Plan {
        drawn_widths: vec![4, 64, 512],
        ..Plan::quick(Backend::default())
    };
    let draws = plan.draws().into_iter().map(|draw| {
        let by_scale = SCALES.map(|scale| scores(&draw, scale));
        let by_scale = by_scale.into();
        (draw, Scores { by_scale })
    });
    let curves = plan.trainings().into_iter().map(|training| {
        let mut curve = curve(&training.config);
        curve.weights = training
            .weights_after
            .iter()
            .map(|&after| SampleWeights {
                after,
                weights: vec![Some(1.0 / PAIRS as f64); PAIRS],
            })
            .collect();
        (training, curve)
    });
    Results {
        draws: draws.collect(),
        curves: curves.collect(),
        weights: weights(),
        plan,
    }
}

fn scores(draw: &Draw, scale: Scale) -> ScoresAt {
    let d = draw.d as f64;
    let std = draw.sigma.powi(2) * d.sqrt() * scale.factor(draw.d);
    ScoresAt {
        std,
        large: 3.0 * std,
        max_weight: 1.0 - 0.7 / std.max(1.0) + if std > 20.0 { 0.01 } else { -0.1 },
        entropy: 1.0 / (1.0 + std * std),
        gradient: Gradient {
            mean: if scale == Scale::Unscaled {
                1.6 / d.sqrt()
            } else {
                0.2
            },
            p10: 0.0,
            p50: if scale == Scale::Unscaled {
                1.0 / d
            } else {
                0.21
            },
            p90: 0.5,
            p99: 1.0,
        },
        kept: 0.1,
    }
}

/// Scaled runs learn at step 40, unscaled ones at 120 and small starts at 80.
fn curve(config: &RunConfig) -> Curve {
    let arm = match (config.scale, config.init) {
        (Scale::Unscaled, Init::UnitScores) => Arm::SmallInit,
        (Scale::Unscaled, _) => Arm::Unscaled,
        _ => Arm::Scaled,
    };
    let (learned_at, std, weight, p50, norm) = match arm {
        Arm::Scaled => (40, 3.0, 0.2, 0.2, 0.5),
        Arm::Unscaled => (120, 60.0, 0.8, 0.01, 2.0),
        Arm::SmallInit => (80, 30.0, 0.2, 0.2, 2.0),
    };
    let layer = Layer {
        score_std: std,
        max_weight: weight,
        entropy: 0.5,
        p10: 0.1 * p50,
        p50,
        p90: 2.0 * p50,
        mean: p50,
    };
    let logged = (0..config.steps).step_by(config.log_every as usize);
    let point = |step: u64| Point {
        step,
        loss: if step < learned_at { 3.0 } else { 0.01 },
        accuracy: if step < learned_at { 0.1 } else { 1.0 },
        query_norm: norm,
        key_norm: norm,
        layers: vec![layer; config.layers],
    };
    Curve {
        steps: config.steps,
        half_at: Some(learned_at / 2),
        learned_at: Some(learned_at),
        final_accuracy: 1.0,
        final_loss: if arm == Arm::Scaled { 0.01 } else { 0.1 },
        points: logged.map(point).collect(),
        weights: Vec::new(),
    }
}

fn weights() -> Vec<Weights> {
    let example = |title, scale, row: [f64; 3]| Weights {
        title,
        scale,
        rows: vec![row],
        theory: vec![row],
    };
    vec![
        example(
            "weights of three tokens, d = 4",
            Scale::Unscaled,
            [0.4, 0.1, 0.5],
        ),
        example(
            "softmax of the scores 8, 2, 0, d = 64",
            Scale::InvSqrtDim,
            [0.543, 0.257, 0.2],
        ),
    ]
}

/// Changes the scores of one factor.
pub(super) fn change(results: &mut Results, scale: Scale, by: impl Fn(&Draw, &mut ScoresAt)) {
    let place = SCALES
        .iter()
        .position(|measured| *measured == scale)
        .unwrap();
    for (draw, scores) in &mut results.draws {
        by(draw, &mut scores.by_scale[place]);
    }
}

/// Changes the scores of all factors.
pub(super) fn change_scores(results: &mut Results, by: impl Fn(&Draw, &mut ScoresAt)) {
    for scale in SCALES {
        change(results, scale, &by);
    }
}

/// Changes the runs of one arm.
pub(super) fn change_runs(results: &mut Results, arm: Arm, by: impl Fn(&RunConfig, &mut Curve)) {
    for (training, curve) in &mut results.curves {
        let config = &training.config;
        if (config.scale, config.init) == (arm.scale(), arm.init()) {
            by(config, curve);
        }
    }
}

/// From a step on, no gradient and no progress.
pub(super) fn freeze(curve: &mut Curve, from: u64) {
    for point in &mut curve.points {
        point.loss = 1.0;
        if point.step >= from {
            point.query_norm = 1e-6;
        }
    }
}
