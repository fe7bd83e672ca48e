//! Where gradients go and where they do not.

use burn::module::Module;
use burn::tensor::{DType, Device, Tensor};
use layers::{AttentionInput, MhaInput, MultiHeadAttentionConfig, ScaledDotProductAttentionConfig};
use tests::reference::{Problem, Sizes, backward, forward};
use tests::{
    Random, Tolerance, assert_bits, assert_close, attend_and_differentiate, floats, leaf,
    on_each_backend, on_each_backend_with, panic_message, values,
};

use crate::{autodiff, context_loss};

const SHAPE: [usize; 4] = [2, 3, 5, 4];

fn numbers(seed: u64) -> Vec<f64> {
    Random::new(seed).normals(SHAPE.iter().product())
}

fn tensor(seed: u64, device: &Device) -> Tensor<4> {
    floats(&numbers(seed), SHAPE, device)
}

/// Query, key and value that all get gradients, and those gradients.
fn all_gradients(device: &Device) -> [Vec<f64>; 3] {
    let leaves = [1, 2, 3].map(|seed| tensor(seed, device).require_grad());
    let [query, key, value] = leaves.clone();
    differentiate(AttentionInput::new(query, key, value), device, &leaves)
        .map(|gradient| gradient.expect("a leaf"))
}

fn differentiate<const N: usize>(
    input: AttentionInput,
    device: &Device,
    leaves: &[Tensor<4>; N],
) -> [Option<Vec<f64>>; N] {
    let module = ScaledDotProductAttentionConfig::new()
        .with_causal(true)
        .init(device);
    let upstream = tensor(4, device);
    let gradients = (module.forward(input) * upstream).sum().backward();
    leaves
        .each_ref()
        .map(|leaf| leaf.grad(&gradients).map(values))
}

#[test]
fn frozen_inputs_get_no_gradient_and_change_none() {
    on_each_backend(|device| {
        let device = &autodiff(device);
        let expected = all_gradients(device);
        for tracked in [
            [true, false, false],
            [false, true, false],
            [false, false, true],
            [true, true, false],
            [false, true, true],
        ] {
            let leaves = [0, 1, 2].map(|index| {
                let tensor = tensor(index as u64 + 1, device);
                match tracked[index] {
                    true => tensor.require_grad(),
                    false => tensor,
                }
            });
            let [query, key, value] = leaves.clone();
            let found = differentiate(AttentionInput::new(query, key, value), device, &leaves);
            for index in 0..3 {
                match (&found[index], tracked[index]) {
                    (Some(found), true) => assert_bits("tracked", found, &expected[index]),
                    (None, false) => {}
                    (found, _) => panic!("{tracked:?} at {index}: {found:?}"),
                }
            }
        }
    });
}

#[test]
fn plain_inputs_may_be_mixed_with_tracked_ones() {
    on_each_backend(|plain| {
        let device = &autodiff(plain);
        let expected = all_gradients(device);
        for tracked in [
            [true, false, false],
            [false, true, true],
            [false, false, true],
        ] {
            let leaves = [0, 1, 2].map(|index| {
                let seed = index as u64 + 1;
                match tracked[index] {
                    true => tensor(seed, device).require_grad(),
                    false => tensor(seed, plain),
                }
            });
            let [query, key, value] = leaves.clone();
            let found = differentiate(AttentionInput::new(query, key, value), device, &leaves);
            for index in 0..3 {
                if tracked[index] {
                    let found = found[index].as_ref().expect("a leaf");
                    assert_bits("tracked", found, &expected[index]);
                }
            }
        }
    });
}

#[test]
fn one_tensor_as_query_key_and_value_gets_the_sum_of_the_three_gradients() {
    on_each_backend(|device| {
        let device = &autodiff(device);
        let three = [(); 3].map(|()| tensor(1, device).require_grad());
        let [query, key, value] = three.clone();
        let parts = differentiate(AttentionInput::new(query, key, value), device, &three);
        let parts = parts.map(|part| part.expect("a leaf"));
        let sum: Vec<f64> = (0..parts[0].len())
            .map(|index| parts.iter().map(|part| part[index]).sum())
            .collect();
        let one = tensor(1, device).require_grad();
        let input = AttentionInput::new(one.clone(), one.clone(), one.clone());
        let [found] = differentiate(input, device, &[one]);
        let found = found.expect("a leaf");
        assert_close("sum", &found, &sum, &SHAPE, Tolerance::absolute(1e-6));
    });
}

#[test]
fn a_second_backward_is_burns_own_error() {
    on_each_backend(|device| {
        let device = &autodiff(device);
        let burns_own = || {
            let x = tensor(1, device).require_grad();
            let loss = x.clone().matmul(x.swap_dims(2, 3)).exp().sum();
            loss.backward();
            panic_message(|| loss.backward())
        };
        let ours = || {
            let x = tensor(1, device).require_grad();
            let module = ScaledDotProductAttentionConfig::new().init(device);
            let loss = module
                .forward(AttentionInput::new(x.clone(), x.clone(), x))
                .sum();
            loss.backward();
            panic_message(|| loss.backward())
        };
        // The message names a node by its number, which differs from one graph to the next.
        let without_numbers = |message: String| message.replace(|c: char| c.is_ascii_digit(), "");
        assert_eq!(without_numbers(ours()), without_numbers(burns_own()));
    });
}

#[test]
fn both_checkpointing_strategies_give_the_same_gradients() {
    on_each_backend(|device| {
        let run = |device: &Device| {
            let x = tensor(1, device).require_grad();
            // Operations that checkpointing recomputes come before and behind attention.
            let query = x.clone().mul_scalar(0.7).sin();
            let key = x.clone().exp();
            let module = ScaledDotProductAttentionConfig::new()
                .with_causal(true)
                .init(device);
            let context = module.forward(AttentionInput::new(query, key, x.clone().tanh()));
            let gradients = context.cos().mul_scalar(3.0).sum().backward();
            values(x.grad(&gradients).expect("a leaf"))
        };
        let kept = run(&autodiff(device));
        let recomputed = run(&autodiff(device).gradient_checkpointing());
        assert_bits("recomputed", &recomputed, &kept);
    });
}

#[test]
fn a_validated_model_is_that_of_training_without_dropout() {
    on_each_backend(|device| {
        let device = &autodiff(device);
        let config = MultiHeadAttentionConfig::new(8, 2);
        let trained = config.clone().with_dropout(0.5).init(device);
        let without = config
            .init(device)
            .load_record(trained.clone().into_record());
        let x = floats::<3>(&Random::new(1).normals(2 * 5 * 8), [2, 5, 8], device);
        let expected = values(without.forward(MhaInput::self_attn(x.clone())));
        let dropped = values(trained.forward(MhaInput::self_attn(x.clone())));
        assert_ne!(dropped, expected);
        let valid = trained.valid();
        let found = values(valid.forward(MhaInput::self_attn(x.clone().inner())));
        assert_bits("on a plain device", &found, &expected);
        // The model decides too, as Burn's own dropout does: not the device alone.
        let found = values(valid.forward(MhaInput::self_attn(x)));
        assert_bits("on an autodiff device", &found, &expected);
    });
}

#[test]
fn the_gradient_of_the_logsumexp_is_the_weights() {
    on_each_backend(|device| {
        let device = &autodiff(device);
        let problem = Problem::random(Sizes::new(1, 2, 3, 5, 4), &mut Random::new(5));
        let call = tests::input(&problem, DType::F32, device);
        let bias: Tensor<4> = leaf(&[0.0; 30], [1, 2, 3, 5], device);
        let module = tests::module(&problem, DType::F32, device);
        let output = module.forward_with_weights(call.input.bias(bias.clone()));
        let gradients = output.logsumexp.sum().backward();
        let found = values(bias.grad(&gradients).expect("a leaf"));
        let weights = forward(&problem).weights;
        assert_close(
            "weights",
            &found,
            &weights,
            &[2, 3, 5],
            Tolerance::absolute(1e-6),
        );
    });
}

#[test]
fn the_sum_of_the_key_gradients_is_0() {
    on_each_backend(|device| {
        let mut random = Random::new(6);
        let problem = Problem::random(Sizes::new(2, 3, 11, 17, 5), &mut random);
        let upstream = context_loss(&problem, &mut random);
        let (_, gradients) = attend_and_differentiate(&problem, &upstream, DType::F32, device);
        for head in gradients.key.chunks(17 * 5) {
            for channel in 0..5 {
                let sum: f64 = head.iter().skip(channel).step_by(5).sum();
                assert!(sum.abs() < 1e-5, "{sum}");
            }
        }
    });
}

/// One of the tensors of a problem.
type Part = fn(&mut Problem) -> &mut Vec<f64>;

#[test]
fn gradients_are_those_of_finite_differences() {
    on_each_backend_with(DType::F64, |device| {
        // Differences of the layers' own forward: no reference in between. f64, so that the
        // difference has digits.
        const STEP: f64 = 1e-5;
        let mut random = Random::new(7);
        let mut problem = Problem::random(Sizes::new(1, 2, 3, 4, 3), &mut random);
        problem.causal = true;
        problem.softcap = Some(2.0);
        let upstream = context_loss(&problem, &mut random);
        let loss = |problem: &Problem| -> f64 {
            let context = tests::attend(problem, DType::F64, device).context;
            context
                .iter()
                .zip(&upstream.context)
                .map(|(a, b)| a * b)
                .sum()
        };
        let (_, gradients) = attend_and_differentiate(&problem, &upstream, DType::F64, device);
        let parts: [(&Vec<f64>, Part); 3] = [
            (&gradients.query, |problem| &mut problem.query),
            (&gradients.key, |problem| &mut problem.key),
            (&gradients.value, |problem| &mut problem.value),
        ];
        for (found, part) in parts {
            let slopes: Vec<f64> = (0..found.len())
                .map(|index| {
                    let at = |change: f64| {
                        let mut changed = problem.clone();
                        part(&mut changed)[index] += change;
                        loss(&changed)
                    };
                    (at(STEP) - at(-STEP)) / (2.0 * STEP)
                })
                .collect();
            let tolerance = Tolerance::absolute(1e-8);
            assert_close("slopes", found, &slopes, &[found.len()], tolerance);
        }
        let reference = backward(&problem, &upstream);
        let tolerance = Tolerance::absolute(1e-12);
        let shape = [reference.query.len()];
        assert_close(
            "reference",
            &gradients.query,
            &reference.query,
            &shape,
            tolerance,
        );
    });
}
