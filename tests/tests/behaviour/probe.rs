//! What a probe tells, and that it disturbs nothing.

use burn::tensor::{DType, Tensor};
use layers::{Probe, RowStatistics};
use tests::reference::{Forward, Problem, Sink, Sizes, backward, forward};
use tests::{Random, Tolerance, assert_bits, assert_close, floats, on_each_backend, values};

use crate::{autodiff, context_loss};

fn problems() -> Vec<Problem> {
    let mut random = Random::new(1);
    let plain = Problem::random(Sizes::new(2, 3, 5, 7, 4), &mut random);
    let mut all = plain.clone();
    all.causal = true;
    all.softcap = Some(2.0);
    all.sink = Sink::Quiet;
    all.alibi = true;
    all.key_lengths = Some(vec![7, 2]);
    vec![plain, all]
}

/// The statistics of a row from the definition.
fn expected(problem: &Problem, found: &Forward, row: usize) -> RowStatistics {
    let keys = problem.sizes.key_len;
    let weights = &found.weights[row * keys..][..keys];
    let logsumexp = found.logsumexp[row];
    let seen: Vec<f64> = weights
        .iter()
        .copied()
        .filter(|weight| *weight > 0.0)
        .collect();
    // A score is the logarithm of its weight plus the logsumexp.
    let scores = seen.iter().map(|weight| weight.ln() + logsumexp);
    RowStatistics {
        keys: seen.len(),
        score_sum: scores.clone().sum(),
        score_sum_of_squares: scores.map(|score| score * score).sum(),
        max_weight: seen.iter().copied().fold(0.0, f64::max),
        entropy: seen.iter().map(|weight| -weight * weight.ln()).sum(),
        score_gradient: None,
    }
}

fn check(found: &[RowStatistics], problem: &Problem, gradients: Option<&[f64]>) {
    let result = forward(problem);
    assert_eq!(found.len(), result.logsumexp.len());
    for (row, found) in found.iter().enumerate() {
        let expected = expected(problem, &result, row);
        assert_eq!(found.keys, expected.keys, "row {row}");
        let numbers = |row: &RowStatistics| {
            [
                row.score_sum,
                row.score_sum_of_squares,
                row.max_weight,
                row.entropy,
            ]
        };
        let tolerance = Tolerance::new(1e-5, 1e-5);
        let name = format!("row {row}");
        assert_close(&name, &numbers(found), &numbers(&expected), &[4], tolerance);
        let norm = gradients.map(|gradients| {
            let keys = problem.sizes.key_len;
            let row = &gradients[row * keys..][..keys];
            row.iter().map(|number| number * number).sum::<f64>().sqrt()
        });
        match (found.score_gradient, norm) {
            (Some(found), Some(norm)) => {
                assert_close(&name, &[found], &[norm], &[1], tolerance);
            }
            (None, None) => {}
            other => panic!("row {row}: {other:?}"),
        }
    }
}

#[test]
fn without_gradients_it_tells_scores_and_weights_of_each_row() {
    on_each_backend(|device| {
        for problem in problems() {
            let probe = Probe::new();
            let input = tests::input(&problem, DType::F32, device).input;
            tests::module(&problem, DType::F32, device).forward(input.probe(&probe));
            check(&probe.take().expect("a call has passed"), &problem, None);
            assert!(probe.take().is_none());
        }
    });
}

#[test]
fn in_training_it_tells_the_gradient_at_the_scores_and_changes_no_bit() {
    on_each_backend(|device| {
        let device = &autodiff(device);
        for problem in problems() {
            let upstream = context_loss(&problem, &mut Random::new(2));
            let gradient: Tensor<4> = floats(&upstream.context, problem.sizes.context(), device);
            let run = |probe: Option<&Probe>| {
                let call = tests::input(&problem, DType::F32, device);
                let input = match probe {
                    Some(probe) => call.input.probe(probe),
                    None => call.input,
                };
                let context = tests::module(&problem, DType::F32, device).forward(input);
                let gradients = (context.clone() * gradient.clone()).sum().backward();
                [call.query, call.key, call.value]
                    .map(|leaf| values(leaf.grad(&gradients).expect("a leaf")))
                    .into_iter()
                    .chain([values(context)])
                    .collect::<Vec<_>>()
            };
            let probe = Probe::new();
            for (probed, plain) in run(Some(&probe)).iter().zip(&run(None)) {
                assert_bits("with a probe", probed, plain);
            }
            let expected = backward(&problem, &upstream).scores;
            let found = probe.take().expect("backward has passed");
            check(&found, &problem, Some(&expected));
        }
    });
}
