//! How attention behaves where implementations differ.

use burn::module::{Module, Param};
use burn::nn::Linear;
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Tensor};
use gradnorm::clip_global_norm;
use layers::{
    Alignment, AttentionInput, KvCache, Mask, MhaInput, MultiHeadAttention,
    MultiHeadAttentionConfig, Scale, ScaledDotProductAttentionConfig, Stage, Window,
};
use tests::{
    Random, Tolerance, assert_bits, assert_close, bools, filled, floats, floats_as, leaf,
    on_each_backend, on_each_backend_with, values,
};

const ANSWER: Tolerance = Tolerance::absolute(1e-6);

fn config() -> ScaledDotProductAttentionConfig {
    ScaledDotProductAttentionConfig::new()
}

/// Attention of one head over given values, all scores 0.
fn over_values(numbers: &[f64], queries: usize, device: &Device) -> AttentionInput {
    let keys = numbers.len();
    AttentionInput::new(
        filled(0.0, [1, 1, queries, 1], device),
        filled(0.0, [1, 1, keys, 1], device),
        floats(numbers, [1, 1, keys, 1], device),
    )
}

#[test]
fn the_mean_of_the_valid_values_and_0_where_none_is() {
    on_each_backend(|device| {
        let zeros: Tensor<4> = filled(0.0, [4, 1, 5, 1], device);
        let value = floats(&[1.0, 2.0, 3.0, 4.0, 5.0], [1, 1, 5, 1], device).expand([4, 1, 5, 1]);
        let input = || AttentionInput::new(zeros.clone(), zeros.clone(), value.clone());
        let lengths = [5, 3, 1, 0];
        let padding: Vec<bool> = lengths
            .iter()
            .flat_map(|length| (0..5).map(move |key| key >= *length))
            .collect();
        let module = config().init(device);
        let expected: Vec<f64> = [3.0, 2.0, 1.0, 0.0]
            .iter()
            .flat_map(|mean| [*mean; 5])
            .collect();
        for (name, input) in [
            ("key lengths", input().key_lengths(lengths)),
            (
                "padding mask",
                input().mask(Mask::blocked_keys(bools(&padding, [4, 5], device))),
            ),
        ] {
            let context = values(module.forward(input));
            assert_close(name, &context, &expected, &[4, 5], ANSWER);
        }
    });
}

#[test]
fn a_blocked_row_has_finite_gradients_and_none_at_its_query() {
    on_each_backend(|device| {
        let device = &device.clone().autodiff();
        let infinite = f64::NEG_INFINITY;
        for by_bias in [false, true] {
            let query: Tensor<4> = leaf(&[1.0, 0.0, 0.5, -1.0], [1, 1, 2, 2], device);
            let key: Tensor<4> = leaf(&[1.0, 1.0, 0.0, 2.0, -1.0, 0.5], [1, 1, 3, 2], device);
            let value: Tensor<4> = leaf(&[1.0, 0.0, 0.0, 1.0, 2.0, -1.0], [1, 1, 3, 2], device);
            let blocked = [true, true, true, false, false, true];
            let bias: Tensor<4> = leaf(
                &blocked.map(|blocked| if blocked { infinite } else { 0.0 }),
                [1, 1, 2, 3],
                device,
            );
            let input = AttentionInput::new(query.clone(), key.clone(), value.clone());
            let input = match by_bias {
                true => input.bias(bias.clone()),
                false => input.mask(Mask::blocked(bools(&blocked, [2, 3], device))),
            };
            let loss = config().init(device).forward(input).sum() * 10.0;
            let gradients = loss.backward();
            let mut leaves = vec![query.clone(), key, value];
            if by_bias {
                leaves.push(bias);
            }
            for leaf in &leaves {
                let gradient = values(leaf.grad(&gradients).expect("a leaf"));
                assert!(
                    gradient.iter().all(|number| number.is_finite()),
                    "{gradient:?}"
                );
            }
            let at_query = values(query.grad(&gradients).expect("a leaf"));
            assert_eq!(at_query[..2], [0.0, 0.0]);
        }
    });
}

#[test]
fn no_key_gives_zeros_and_zero_gradients() {
    on_each_backend(|device| {
        let device = &device.clone().autodiff();
        let query = filled(1.0, [2, 3, 4, 5], device).require_grad();
        let key = Tensor::<4>::empty([2, 3, 0, 5], device).require_grad();
        let value = Tensor::<4>::empty([2, 3, 0, 7], device).require_grad();
        let input = AttentionInput::new(query.clone(), key.clone(), value.clone());
        let context = config().init(device).forward(input);
        assert_eq!(context.dims(), [2, 3, 4, 7]);
        assert!(values(context.clone()).iter().all(|number| *number == 0.0));
        let gradients = context.sum().backward();
        let at_query = values(query.grad(&gradients).expect("a leaf"));
        assert_eq!(at_query, [0.0; 2 * 3 * 4 * 5]);
        for (leaf, shape) in [(key, [2, 3, 0, 5]), (value, [2, 3, 0, 7])] {
            if let Some(gradient) = leaf.grad(&gradients) {
                assert_eq!(gradient.dims(), shape);
            }
        }
    });
}

fn check_causal(queries: usize, numbers: &[f64], expected: &[f64]) {
    on_each_backend(|device| {
        let module = config().with_causal(true).init(device);
        let context = values(module.forward(over_values(numbers, queries, device)));
        assert_close("context", &context, expected, &[queries], ANSWER);
    });
}

#[test]
fn two_causal_queries_over_three_keys_end_at_the_last_key() {
    check_causal(2, &[1.0, 2.0, 6.0], &[1.5, 3.0]);
}

#[test]
fn three_causal_queries_over_two_keys_leave_the_first_without_any() {
    check_causal(3, &[1.0, 3.0], &[0.0, 1.0, 2.0]);
}

#[test]
fn one_causal_query_sees_all_keys() {
    check_causal(1, &[1.0, 2.0, 4.0, 8.0], &[3.75]);
}

#[test]
fn blocked_values_of_1000_change_nothing() {
    on_each_backend(|device| {
        let zeros: Tensor<4> = filled(0.0, [1, 1, 3, 1], device);
        let value = floats(&[1.0, 1000.0, 1.0], [1, 1, 3, 1], device);
        let blocked = bools(&[false, true, false], [1, 3], device);
        let input =
            AttentionInput::new(zeros.clone(), zeros, value).mask(Mask::blocked_keys(blocked));
        let context = values(config().init(device).forward(input));
        assert_eq!(context, [1.0, 1.0, 1.0]);
    });
}

#[test]
fn a_causal_mask_blocks_above_the_diagonal() {
    on_each_backend(|device| {
        let module = config().with_causal(true).init(device);
        let input = over_values(&[1.0, 2.0, 3.0], 3, device);
        let scores = values(module.scores(input, Stage::Masked));
        let blocked: Vec<u8> = scores
            .iter()
            .map(|score| u8::from(*score == f64::NEG_INFINITY))
            .collect();
        assert_eq!(blocked, [0, 1, 1, 0, 0, 1, 0, 0, 0]);
    });
}

#[test]
fn dropout_outside_of_training_weights_and_a_cache_change_nothing() {
    on_each_backend(|device| {
        let x: Tensor<3> = floats(&Random::new(1).normals(2 * 5 * 8), [2, 5, 8], device);
        let config = MultiHeadAttentionConfig::new(8, 2).with_causal(true);
        let plain = config.init(device);
        let record = plain.clone().into_record();
        let expected = values(plain.forward(MhaInput::self_attn(x.clone())));
        for dropout in [0.0, 0.5] {
            let module = config.clone().with_dropout(dropout).init(device);
            let module = module.load_record(record.clone());
            let input = || MhaInput::self_attn(x.clone());
            let forward = values(module.forward(input()));
            assert_bits("forward", &forward, &expected);
            let asked = values(module.forward_with_weights(input()).context);
            assert_bits("with weights", &asked, &expected);

            let mut cache = KvCache::growing();
            let cached = values(module.forward(input().cache(&mut cache)));
            assert_close("cache", &cached, &expected, &[2, 5, 8], ANSWER);
            for with_weights in [false, true] {
                let mut cache = KvCache::growing();
                let steps = (0..5).map(|token| {
                    let step = x.clone().narrow(1, token, 1);
                    let input = MhaInput::self_attn(step).cache(&mut cache);
                    match with_weights {
                        true => module.forward_with_weights(input).context,
                        false => module.forward(input),
                    }
                });
                let steps = Tensor::cat(steps.collect(), 1);
                assert_close("steps", &values(steps), &expected, &[2, 5, 8], ANSWER);
            }
        }
    });
}

#[test]
fn a_later_token_changes_no_earlier_output_by_a_bit() {
    on_each_backend(|device| {
        let mut random = Random::new(2);
        let (length, width) = (9, 8);
        let before = random.normals(length * width);
        let module = MultiHeadAttentionConfig::new(width, 2)
            .with_causal(true)
            .init(device);
        let run = |numbers: &[f64]| {
            let x = floats(numbers, [1, length, width], device);
            values(module.forward(MhaInput::self_attn(x)))
        };
        let expected = run(&before);
        for token in 1..length {
            let mut after = before.clone();
            after[token * width..].fill_with(|| 100.0 * random.normal());
            let found = run(&after);
            let same = token * width;
            assert_bits("earlier outputs", &found[..same], &expected[..same]);
            assert_ne!(found[same..], expected[same..]);
        }
    });
}

/// A projection that changes nothing.
fn identity(width: usize, device: &Device) -> Linear {
    Linear {
        weight: Param::from_tensor(Tensor::eye(width, device)),
        bias: None,
    }
}

fn without_projections(config: MultiHeadAttentionConfig, device: &Device) -> MultiHeadAttention {
    let mut module = config.init(device);
    let width = module.d_model;
    for linear in [
        &mut module.query,
        &mut module.key,
        &mut module.value,
        &mut module.output,
    ] {
        *linear = identity(width, device);
    }
    module
}

#[test]
fn the_scale_is_that_of_one_head_once_and_before_the_softmax() {
    on_each_backend(|device| {
        let module = without_projections(MultiHeadAttentionConfig::new(8, 4), device);
        let query = filled(1.0, [1, 1, 8], device);
        // In each of the four heads: products 2 and 0.
        let key = Tensor::cat(
            vec![
                filled(1.0, [1, 1, 8], device),
                filled(0.0, [1, 1, 8], device),
            ],
            1,
        );
        let input = MhaInput::new(query, key.clone(), key);
        let weights = values(module.forward_with_weights(input).weights);
        let expected = [0.80442968, 0.19557032].repeat(4);
        assert_close("weights", &weights, &expected, &[4, 2], ANSWER);
    });
}

#[test]
fn products_beyond_f16_do_not_overflow() {
    on_each_backend_with(DType::F16, |device| {
        let forty = |length| {
            floats_as::<4>(
                &vec![40.0; length * 64],
                [1, 1, length, 64],
                DType::F16,
                device,
            )
        };
        let input = AttentionInput::new(forty(1), forty(2), forty(2));
        let output = config().init(device).forward_with_weights(input);
        assert_eq!(values(output.weights), [0.5, 0.5]);
        assert_eq!(values(output.context), [40.0; 64]);
        assert_eq!(output.logsumexp.dtype(), DType::F32);
    });
}

#[test]
fn dropout_acts_after_the_softmax_and_the_returned_weights_are_those_before_it() {
    on_each_backend(|device| {
        let device = &device.clone().autodiff();
        device.seed(3);
        let module = config().with_dropout(0.5).init(device);
        let rows = 64;
        let zeros: Tensor<4> = filled(0.0, [1, 1, rows, 1], device).require_grad();
        let key: Tensor<4> = filled(0.0, [1, 1, 2, 1], device);
        // The context is the applied weights themselves.
        let value = floats(&[1.0, 0.0, 0.0, 1.0], [1, 1, 2, 2], device);
        let output = module.forward_with_weights(AttentionInput::new(zeros, key, value));
        assert_eq!(values(output.weights), vec![0.5; rows * 2]);
        let applied = values(output.context);
        assert!(applied.contains(&0.0) && applied.contains(&1.0));
        assert!(
            applied.iter().all(|weight| [0.0, 1.0].contains(weight)),
            "{applied:?}"
        );
    });
}

#[test]
fn neighbouring_query_heads_share_a_key_head() {
    on_each_backend(|device| {
        let query: Tensor<4> = filled(0.0, [1, 4, 1, 2], device);
        let key = floats(&Random::new(4).normals(12), [1, 2, 3, 2], device);
        let value = floats(&[10.0, 10.0, 10.0, 20.0, 20.0, 20.0], [1, 2, 3, 1], device);
        let module = config().init(device);
        let context = values(module.forward(AttentionInput::new(query, key, value)));
        let expected = [10.0, 10.0, 20.0, 20.0];
        assert_close(
            "context",
            &context,
            &expected,
            &[4],
            Tolerance::absolute(1e-5),
        );
    });
}

#[test]
fn a_causal_window_of_this_key_and_the_one_before() {
    on_each_backend(|device| {
        let module = config()
            .with_causal(true)
            .with_window(Some(Window::before(1)))
            .init(device);
        let input = over_values(&[1.0, 2.0, 4.0, 8.0], 4, device);
        let context = values(module.forward(input));
        assert_close("context", &context, &[1.0, 1.5, 3.0, 6.0], &[4], ANSWER);
    });
}

#[test]
fn a_softcap_does_not_lift_a_blocked_score() {
    on_each_backend(|device| {
        let module = config().with_softcap(Some(1.0)).init(device);
        let bias = floats(&[0.0, f64::NEG_INFINITY], [1, 1, 1, 2], device);
        let input = over_values(&[1.0, 2.0], 1, device).bias(bias);
        let weights = values(module.forward_with_weights(input).weights);
        assert_eq!(weights, [1.0, 0.0]);
    });
}

/// The gradient of the output at a query `[first, 0]` with keys `[1, 0]` and `[0, 1]` of values
/// 1 and 0.
fn gradient_at_query(first: f64, scale: Scale, dtype: DType, device: &Device) -> Vec<f64> {
    let device = &device.clone().autodiff();
    let query = floats_as::<4>(&[first, 0.0], [1, 1, 1, 2], dtype, device).require_grad();
    let key = floats_as(&[1.0, 0.0, 0.0, 1.0], [1, 1, 2, 2], dtype, device);
    let value = floats_as(&[1.0, 0.0], [1, 1, 2, 1], dtype, device);
    let module = config().with_scale(scale).init(device);
    let input = AttentionInput::new(query.clone(), key, value);
    let gradients = module.forward(input).sum().backward();
    values(query.grad(&gradients).expect("a leaf"))
}

#[test]
fn a_saturated_softmax_passes_almost_no_gradient() {
    // 1 minus a weight next to 1 has no digits left in f32, so the digits are f64's; the second
    // component, which is the first's negative, has them in f32 too.
    on_each_backend_with(DType::F64, |device| {
        for (scale, expected) in [
            (Scale::InvSqrtDim, 5.100737e-7),
            (Scale::Unscaled, 2.061154e-9),
        ] {
            let found = gradient_at_query(20.0, scale, DType::F64, device);
            let digits = Tolerance::relative(1e-6);
            assert_close("f64", &found, &[expected, -expected], &[2], digits);
        }
    });
    on_each_backend(|device| {
        for (scale, expected) in [
            (Scale::InvSqrtDim, 5.100737e-7),
            (Scale::Unscaled, 2.061154e-9),
        ] {
            let found = gradient_at_query(20.0, scale, DType::F32, device);
            let digits = Tolerance::relative(1e-5);
            assert_close("f32", &found[1..], &[-expected], &[1], digits);
            let rounding = Tolerance::absolute(f64::from(f32::EPSILON));
            assert_close("f32", &found[..1], &[expected], &[1], rounding);
        }
    });
}

#[test]
fn an_undecided_softmax_passes_gradient() {
    on_each_backend(|device| {
        for (scale, expected) in [
            (Scale::InvSqrtDim, 0.15639860),
            (Scale::Unscaled, 0.19661193),
        ] {
            let found = gradient_at_query(1.0, scale, DType::F32, device);
            assert_close("f32", &found, &[expected, -expected], &[2], ANSWER);
        }
    });
}

/// Two parameters in tensors of their own.
#[derive(Module, Debug)]
struct Two {
    one: Param<Tensor<1>>,
    other: Param<Tensor<1>>,
}

#[test]
fn gradients_are_clipped_together_and_the_norm_before_is_told() {
    on_each_backend(|device| {
        let device = &device.clone().autodiff();
        let parameter = || Param::from_tensor(Tensor::ones([1], device));
        let model = Two {
            one: parameter(),
            other: parameter(),
        };
        let loss = model.one.val() * 3.0 + model.other.val() * 4.0;
        let mut gradients = GradientsParams::from_grads(loss.backward(), &model);
        let clipped = clip_global_norm(&model, &mut gradients, 1.0).expect("finite gradients");
        let gradient = |parameter: &Param<Tensor<1>>| {
            values(gradients.get::<1>(parameter.id).expect("a gradient"))[0]
        };
        assert_eq!(clipped.norm(), 5.0);
        let found = [gradient(&model.one), gradient(&model.other)];
        assert_close(
            "clipped",
            &found,
            &[0.6, 0.8],
            &[2],
            Tolerance::absolute(1e-7),
        );
    });
}

#[test]
fn the_alignment_is_said_in_pictures() {
    on_each_backend(|device| {
        for (alignment, expected) in [
            (Alignment::BottomRight, [1, 1, 1, 1, 0, 1, 1, 1, 1, 1]),
            (Alignment::TopLeft, [1, 0, 0, 0, 0, 1, 1, 0, 0, 0]),
            (Alignment::Offset(1), [1, 1, 0, 0, 0, 1, 1, 1, 0, 0]),
        ] {
            let module = config()
                .with_causal(true)
                .with_alignment(alignment)
                .init(device);
            let input = over_values(&[0.0; 5], 2, device);
            let scores = values(module.scores(input, Stage::Masked));
            let visible: Vec<u8> = scores
                .iter()
                .map(|score| u8::from(score.is_finite()))
                .collect();
            assert_eq!(visible, expected, "{alignment}");
        }
    });
}
