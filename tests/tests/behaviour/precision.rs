//! Element types: half precision that computes in f32, f64 that stays f64.

use burn::tensor::activation::softmax;
use burn::tensor::{DType, Device, Tensor};
use half::{bf16, f16};
use layers::{AttentionInput, ScaledDotProductAttentionConfig};
use tests::reference::{Problem, Sizes, Upstream, backward, forward};
use tests::{
    Random, attend, attend_and_differentiate, backends, floats_as, on_each_backend_with,
    panic_message, values,
};

const SIZES: Sizes = Sizes {
    batch: 1,
    heads: 2,
    kv_heads: 2,
    query_len: 67,
    key_len: 97,
    d_k: 59,
    d_v: 37,
};

/// Numbers that the half type can hold.
fn rounded(numbers: &mut [f64], dtype: DType) {
    for number in numbers {
        *number = match dtype {
            DType::F16 => f16::from_f64(*number).to_f64(),
            _ => bf16::from_f64(*number).to_f64(),
        };
    }
}

fn largest_error(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    found
        .iter()
        .zip(expected)
        .map(|(found, expected)| (found - expected).abs())
        .fold(0.0, f64::max)
}

/// Context and gradients of attention written with Burn's operations in the half type itself.
fn plain_code(
    problem: &Problem,
    upstream: &Upstream,
    dtype: DType,
    device: &Device,
) -> [Vec<f64>; 4] {
    let device = &device.clone().autodiff();
    let call = tests::input(problem, dtype, device);
    let scale = 1.0 / (problem.sizes.d_k as f64).sqrt();
    let scores = (call.query.clone() * scale).matmul(call.key.clone().swap_dims(2, 3));
    let context = softmax(scores, 3).matmul(call.value.clone());
    let upstream: Tensor<4> = floats_as(&upstream.context, problem.sizes.context(), dtype, device);
    let gradients = (context.clone() * upstream)
        .cast(DType::F32)
        .sum()
        .backward();
    let gradient = |leaf: Tensor<4>| values(leaf.grad(&gradients).expect("a leaf"));
    [
        values(context),
        gradient(call.query),
        gradient(call.key),
        gradient(call.value),
    ]
}

fn check_half(dtype: DType) {
    on_each_backend_with(dtype, |device| {
        for seed in 0..3 {
            let mut random = Random::new(seed);
            let mut problem = Problem::random(SIZES, &mut random);
            let mut upstream = Upstream {
                context: random.normals(SIZES.context().iter().product()),
                ..Upstream::default()
            };
            for numbers in [
                &mut problem.query,
                &mut problem.key,
                &mut problem.value,
                &mut upstream.context,
            ] {
                rounded(numbers, dtype);
            }
            let gradients = backward(&problem, &upstream);
            let expected = [
                forward(&problem).context,
                gradients.query,
                gradients.key,
                gradients.value,
            ];
            let plain = plain_code(&problem, &upstream, dtype, device);
            let (answer, found) = attend_and_differentiate(&problem, &upstream, dtype, device);
            let ours = [answer.context, found.query, found.key, found.value];
            for (index, name) in ["context", "query", "key", "value"].iter().enumerate() {
                let plain = largest_error(&plain[index], &expected[index]);
                let ours = largest_error(&ours[index], &expected[index]);
                println!("{dtype:?} {name}: {ours:.2e}, plain code {plain:.2e}");
                assert!(
                    ours <= 2.0 * plain,
                    "{name}: {ours:e} against {plain:e} of plain code"
                );
            }
        }
    });
}

#[test]
fn f16_errs_at_most_twice_as_much_as_plain_f16_code() {
    check_half(DType::F16);
}

#[test]
fn bf16_errs_at_most_twice_as_much_as_plain_bf16_code() {
    check_half(DType::BF16);
}

#[test]
fn each_type_stays_what_it_is_and_the_logsumexp_is_f32_at_least() {
    for (dtype, logsumexp) in [
        (DType::F16, DType::F32),
        (DType::BF16, DType::F32),
        (DType::F32, DType::F32),
        (DType::F64, DType::F64),
    ] {
        on_each_backend_with(dtype, |device| {
            let device = &device.clone().autodiff();
            let leaf = |length: usize| {
                floats_as::<4>(&vec![0.5; 8 * length], [1, 2, length, 4], dtype, device)
                    .require_grad()
            };
            let (query, key, value) = (leaf(3), leaf(5), leaf(5));
            let bias = floats_as::<4>(&[0.25; 15], [1, 1, 3, 5], dtype, device).require_grad();
            let input = AttentionInput::new(query.clone(), key.clone(), value.clone());
            let module = ScaledDotProductAttentionConfig::new()
                .with_quiet_softmax(true)
                .with_alibi(true)
                .with_softcap(Some(2.0))
                .init(device);
            let output = module.forward_with_weights(input.bias(bias.clone()));
            assert_eq!(output.context.dtype(), dtype);
            assert_eq!(output.weights.dtype(), dtype);
            assert_eq!(output.logsumexp.dtype(), logsumexp);
            let gradients = output.context.sum().backward();
            for leaf in [query, key, value, bias] {
                let gradient = leaf.grad(&gradients).expect("a leaf");
                assert_eq!(gradient.dtype(), dtype);
            }
        });
    }
}

#[test]
fn logits_beyond_f16_stay_finite_in_every_stage() {
    on_each_backend_with(DType::F16, |device| {
        let mut problem = Problem::random(Sizes::new(1, 1, 4, 6, 8), &mut Random::new(9));
        for numbers in [&mut problem.query, &mut problem.key] {
            // Products up to about 8 * 200^2 * 10, far beyond 65504, even scaled.
            numbers.iter_mut().for_each(|number| *number *= 200.0);
        }
        for numbers in [&mut problem.query, &mut problem.key, &mut problem.value] {
            rounded(numbers, DType::F16);
        }
        let answer = attend(&problem, DType::F16, device);
        let expected = forward(&problem);
        assert!(expected.largest_score > 65504.0);
        for (found, expected) in answer.context.iter().zip(&expected.context) {
            assert!((found - expected).abs() < 2e-3, "{found} and {expected}");
        }
        assert!(answer.logsumexp.iter().all(|number| number.is_finite()));
    });
}

#[test]
fn ndarray_refuses_half_precision_with_a_message() {
    for dtype in [DType::F16, DType::BF16] {
        for backend in backends() {
            if backend.name != "ndarray" {
                continue;
            }
            let message = panic_message(|| floats_as::<1>(&[0.5], [1], dtype, &backend.device));
            println!("{}: {message}", backend.name);
            assert!(
                !message.is_empty(),
                "{} refuses without a word",
                backend.name
            );
        }
    }
}
