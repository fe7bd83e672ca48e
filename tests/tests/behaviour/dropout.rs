//! Dropout on the weights: the mask is recovered by attending over the unit vectors.

use burn::module::Module;
use burn::tensor::{DType, Device};
use layers::ScaledDotProductAttention;
use tests::reference::{Problem, Sizes, backward, forward};
use tests::{Random, Tolerance, assert_bits, assert_close, floats, on_each_backend, values};

use crate::{autodiff, context_loss};

const SIZES: Sizes = Sizes {
    batch: 2,
    heads: 4,
    kv_heads: 2,
    query_len: 19,
    key_len: 23,
    d_k: 5,
    d_v: 7,
};
const PROBABILITY: f64 = 0.3;

fn module(problem: &Problem, device: &Device) -> ScaledDotProductAttention {
    tests::config(problem)
        .with_dropout(PROBABILITY)
        .init(device)
}

/// The weights that the module applies after a seed.
fn applied_weights(problem: &Problem, seed: u64, device: &Device) -> Vec<f64> {
    let sizes = problem.sizes;
    let mut units = problem.clone();
    units.sizes.d_v = sizes.key_len;
    let eye = (0..sizes.key_len)
        .flat_map(|key| (0..sizes.key_len).map(move |channel| f64::from(key == channel)));
    let eye: Vec<f64> = eye.collect();
    units.value = eye.repeat(sizes.batch * sizes.kv_heads);
    let input = tests::input(&units, DType::F32, device).input;
    device.seed(seed);
    values(module(problem, device).forward(input))
}

/// What each weight was multiplied by.
fn factors(problem: &Problem, seed: u64, device: &Device) -> Vec<f64> {
    let weights = forward(problem).weights;
    let applied = applied_weights(problem, seed, device);
    applied
        .iter()
        .zip(weights)
        .map(|(applied, weight)| match weight > 0.0 {
            true => applied / weight,
            false => 0.0,
        })
        .collect()
}

fn problem() -> Problem {
    Problem::random(SIZES, &mut Random::new(1))
}

#[test]
fn each_weight_is_dropped_or_grows_and_the_fraction_is_the_probability() {
    on_each_backend(|device| {
        let device = &autodiff(device);
        let factors = factors(&problem(), 2, device);
        let kept = 1.0 / (1.0 - PROBABILITY);
        let dropped = factors.iter().filter(|factor| **factor == 0.0).count();
        for factor in &factors {
            assert!(*factor == 0.0 || (factor - kept).abs() < 1e-4, "{factor}");
        }
        let fraction = dropped as f64 / factors.len() as f64;
        // 3496 weights: four deviations.
        assert!((fraction - PROBABILITY).abs() < 0.031, "{fraction}");
    });
}

#[test]
fn no_two_rows_columns_heads_or_samples_share_a_mask() {
    on_each_backend(|device| {
        let device = &autodiff(device);
        let dropped: Vec<bool> = factors(&problem(), 3, device)
            .iter()
            .map(|factor| *factor == 0.0)
            .collect();
        let rows: Vec<_> = dropped.chunks(SIZES.key_len).collect();
        let columns: Vec<Vec<bool>> = (0..SIZES.key_len)
            .map(|key| rows.iter().map(|row| row[key]).collect())
            .collect();
        for (index, row) in rows.iter().enumerate() {
            assert!(!rows[..index].contains(row), "row {index} is repeated");
        }
        for (index, column) in columns.iter().enumerate() {
            assert!(
                !columns[..index].contains(column),
                "column {index} is repeated"
            );
        }
    });
}

#[test]
fn one_seed_gives_one_mask_and_another_seed_another() {
    on_each_backend(|device| {
        let device = &autodiff(device);
        let problem = problem();
        let first = applied_weights(&problem, 4, device);
        assert_bits("same seed", &applied_weights(&problem, 4, device), &first);
        assert_ne!(applied_weights(&problem, 5, device), first);
        // Without a seed in between, each call draws anew.
        let module = module(&problem, device);
        let input = || tests::input(&problem, DType::F32, device).input;
        let calls = [
            values(module.forward(input())),
            values(module.forward(input())),
        ];
        assert_ne!(calls[0], calls[1]);
    });
}

#[test]
fn the_gradient_is_that_of_the_mask_of_the_forward_pass() {
    on_each_backend(|device| {
        let device = &autodiff(device);
        for causal in [false, true] {
            let mut problem = problem();
            problem.causal = causal;
            let kept = 1.0 / (1.0 - PROBABILITY);
            let mask = factors(&problem, 6, device);
            let exact = mask
                .iter()
                .map(|factor| if *factor == 0.0 { 0.0 } else { kept });
            problem.dropout = Some(exact.collect());
            let upstream = context_loss(&problem, &mut Random::new(7));
            let expected = forward(&problem);
            let gradients = backward(&problem, &upstream);

            let call = tests::input(&problem, DType::F32, device);
            device.seed(6);
            let context = module(&problem, device).forward(call.input);
            let found = values(context.clone());
            assert_close(
                "context",
                &found,
                &expected.context,
                &SIZES.context(),
                Tolerance::absolute(2e-6),
            );
            let upstream = floats(&upstream.context, SIZES.context(), device);
            let computed = (context * upstream).sum().backward();
            for (name, leaf, expected) in [
                ("query", call.query, gradients.query),
                ("key", call.key, gradients.key),
                ("value", call.value, gradients.value),
            ] {
                let shape = leaf.dims();
                let found = values(leaf.grad(&computed).expect("a leaf"));
                let tolerance = Tolerance::absolute(2e-5);
                assert_close(name, &found, &expected, &shape, tolerance);
            }
        }
    });
}

#[test]
fn it_acts_in_training_only() {
    on_each_backend(|device| {
        let problem = problem();
        let expected = tests::attend(&problem, DType::F32, device).context;
        let plain = tests::input(&problem, DType::F32, device).input;
        let outside = values(module(&problem, device).forward(plain));
        assert_bits("on a plain device", &outside, &expected);

        let device = &autodiff(device);
        let input = || tests::input(&problem, DType::F32, device).input;
        let training = module(&problem, device);
        assert_ne!(values(training.forward(input())), expected);
        let valid = training.valid();
        assert_bits("validated", &values(valid.forward(input())), &expected);
        let again = valid.train();
        assert_ne!(values(again.forward(input())), expected);
    });
}

#[test]
fn the_returned_weights_are_those_before_it() {
    on_each_backend(|device| {
        let problem = problem();
        let expected = tests::attend(&problem, DType::F32, device);
        let device = &autodiff(device);
        let input = tests::input(&problem, DType::F32, device).input;
        let output = module(&problem, device).forward_with_weights(input);
        assert_bits("weights", &values(output.weights), &expected.weights);
        assert_bits("logsumexp", &values(output.logsumexp), &expected.logsumexp);
    });
}
