//! One small attention, forward and backward.

use burn::module::Param;
use burn::tensor::{Device, Tensor};
use layers::{
    Alignment, AttentionInput, Mask, Scale, ScaledDotProductAttention,
    ScaledDotProductAttentionConfig,
};
use tests::{Tolerance, assert_close, bools, floats, leaf, on_each_backend, values};

/// The answers are given with eight digits.
const ANSWER: Tolerance = Tolerance::absolute(2e-6);

fn query(device: &Device) -> Tensor<4> {
    floats(&[1.0, 0.0, 0.5, -1.0], [1, 1, 2, 2], device)
}

fn key(device: &Device) -> Tensor<4> {
    floats(&[1.0, 1.0, 0.0, 2.0, -1.0, 0.5], [1, 1, 3, 2], device)
}

fn value(device: &Device) -> Tensor<4> {
    floats(&[1.0, 0.0, 0.0, 1.0, 2.0, -1.0], [1, 1, 3, 2], device)
}

fn input(device: &Device) -> AttentionInput {
    AttentionInput::new(query(device), key(device), value(device))
}

/// Two rows of three weights and two rows of two outputs.
fn check(
    module: &ScaledDotProductAttention,
    input: AttentionInput,
    weights: [f64; 6],
    context: [f64; 4],
) {
    let plain = values(module.forward(input.clone()));
    let output = module.forward_with_weights(input);
    assert_close(
        "weights",
        &values(output.weights),
        &weights,
        &[2, 3],
        ANSWER,
    );
    assert_close(
        "context",
        &values(output.context),
        &context,
        &[2, 2],
        ANSWER,
    );
    assert_close("plain context", &plain, &context, &[2, 2], ANSWER);
}

const PLAIN_WEIGHTS: [f64; 6] = [
    0.57597535, 0.28399541, 0.14002925, 0.48818217, 0.16902193, 0.34279590,
];
const PLAIN_CONTEXT: [f64; 4] = [0.85603384, 0.14396616, 1.17377398, -0.17377398];

fn config() -> ScaledDotProductAttentionConfig {
    ScaledDotProductAttentionConfig::new()
}

#[test]
fn plain() {
    on_each_backend(|device| {
        let module = config().init(device);
        check(&module, input(device), PLAIN_WEIGHTS, PLAIN_CONTEXT);
    });
}

#[test]
fn with_a_scale_of_1() {
    on_each_backend(|device| {
        for scale in [Scale::Unscaled, Scale::Fixed(1.0)] {
            let module = config().with_scale(scale).init(device);
            check(
                &module,
                input(device),
                [
                    0.66524096, 0.24472847, 0.09003057, 0.54654939, 0.12195165, 0.33149896,
                ],
                [0.84530210, 0.15469790, 1.20954731, -0.20954731],
            );
        }
    });
}

#[test]
fn causal_with_the_last_query_at_the_last_key() {
    on_each_backend(|device| {
        let module = config().with_causal(true).init(device);
        let [_, _, _, a, b, c] = PLAIN_WEIGHTS;
        let [_, _, x, y] = PLAIN_CONTEXT;
        check(
            &module,
            input(device),
            [0.66976155, 0.33023845, 0.0, a, b, c],
            [0.66976155, 0.33023845, x, y],
        );
    });
}

#[test]
fn causal_with_the_first_query_at_the_first_key() {
    on_each_backend(|device| {
        let module = config()
            .with_causal(true)
            .with_alignment(Alignment::TopLeft)
            .init(device);
        check(
            &module,
            input(device),
            [1.0, 0.0, 0.0, 0.74281668, 0.25718332, 0.0],
            [1.0, 0.0, 0.74281668, 0.25718332],
        );
    });
}

#[test]
fn the_first_row_blocked_and_the_last_key_padded() {
    on_each_backend(|device| {
        let row = bools(&[true, false], [1, 1, 2, 1], device);
        let padding = bools(&[false, false, true], [1, 3], device);
        let module = config().init(device);
        let input = input(device)
            .mask(Mask::blocked(row))
            .mask(Mask::blocked_keys(padding));
        check(
            &module,
            input,
            [0.0, 0.0, 0.0, 0.74281668, 0.25718332, 0.0],
            [0.0, 0.0, 0.74281668, 0.25718332],
        );
    });
}

#[test]
fn with_a_softcap_of_1() {
    on_each_backend(|device| {
        let module = config().with_softcap(Some(1.0)).init(device);
        check(
            &module,
            input(device),
            [
                0.54351506, 0.29565642, 0.16082852, 0.42707797, 0.24668300, 0.32623903,
            ],
            [0.86517209, 0.13482791, 1.07955602, -0.07955602],
        );
    });
}

#[test]
fn a_sink_of_logit_0_is_the_quiet_softmax() {
    on_each_backend(|device| {
        let mut sink = config().with_sink_heads(Some(1)).init(device);
        sink.sink = Some(Param::from_tensor(floats(&[0.0], [1], device)));
        let quiet = config().with_quiet_softmax(true).init(device);
        for module in [sink, quiet] {
            check(
                &module,
                input(device),
                [
                    0.44858053, 0.22118102, 0.10905743, 0.28797409, 0.09970445, 0.20221209,
                ],
                [0.66669540, 0.11212358, 0.69239827, -0.10250764],
            );
        }
    });
}

#[test]
fn with_a_bias() {
    on_each_backend(|device| {
        let bias = floats(&[0.0, 1.0, -1.0, 2.0, 0.0, 0.0], [1, 1, 2, 3], device);
        let module = config().init(device);
        check(
            &module,
            input(device).bias(bias),
            [
                0.41156712, 0.55162328, 0.03680960, 0.87574291, 0.04103447, 0.08322262,
            ],
            [0.48518632, 0.51481368, 1.04218815, -0.04218815],
        );
    });
}

/// The gradients of the sum of the outputs' first components.
struct Gradients {
    loss: f64,
    scores: [f64; 6],
    query: [f64; 4],
    key: [f64; 6],
    value: [f64; 3],
}

const SCALED: Gradients = Gradients {
    loss: 2.02980781,
    scores: [
        0.08292096,
        -0.24310968,
        0.16018872,
        -0.08483336,
        -0.19839354,
        0.28322690,
    ],
    query: [-0.05463655, -0.22853977, -0.26025790, -0.24042125],
    key: [
        0.02864085,
        0.05998624,
        -0.24204721,
        0.14028542,
        0.21340636,
        -0.20027166,
    ],
    value: [1.06415751, 0.45301734, 0.48282515],
};

const UNSCALED: Gradients = Gradients {
    loss: 2.05484941,
    scores: [
        0.10291138,
        -0.20686949,
        0.10395811,
        -0.11452795,
        -0.14750629,
        0.26203425,
    ],
    query: [-0.00104674, -0.25884855, -0.37656220, -0.27852342],
    key: [
        0.04564740,
        0.11452795,
        -0.28062264,
        0.14750629,
        0.23497524,
        -0.26203425,
    ],
    value: [1.21179034, 0.36668012, 0.42152953],
};

fn check_gradients(scale: Scale, answer: &Gradients) {
    on_each_backend(|device| {
        let device = &device.clone().autodiff();
        let (query, key, value) = (
            query(device).require_grad(),
            key(device).require_grad(),
            value(device).require_grad(),
        );
        // A bias of zero changes nothing, and its gradient is that of the scores.
        let scores: Tensor<4> = leaf(&[0.0; 6], [1, 1, 2, 3], device);
        let module = config().with_scale(scale).init(device);
        let input = AttentionInput::new(query.clone(), key.clone(), value.clone());
        let context = module.forward(input.bias(scores.clone()));
        let loss = context.slice([0..1, 0..1, 0..2, 0..1]).sum();
        let gradients = loss.backward();
        let gradient = |tensor: &Tensor<4>| values(tensor.grad(&gradients).expect("a leaf"));
        let [a, b, c] = answer.value;
        let at_key = gradient(&key);
        assert_close("loss", &values(loss), &[answer.loss], &[1], ANSWER);
        assert_close(
            "scores",
            &gradient(&scores),
            &answer.scores,
            &[2, 3],
            ANSWER,
        );
        assert_close("query", &gradient(&query), &answer.query, &[2, 2], ANSWER);
        assert_close("key", &at_key, &answer.key, &[3, 2], ANSWER);
        assert_close(
            "value",
            &gradient(&value),
            &[a, 0.0, b, 0.0, c, 0.0],
            &[3, 2],
            ANSWER,
        );
        // Shifting all keys by one vector shifts all scores of a row alike.
        let sums = [0, 1].map(|channel| at_key.iter().skip(channel).step_by(2).sum());
        assert_close("sum over the keys", &sums, &[0.0, 0.0], &[2], ANSWER);
    });
}

#[test]
fn gradients_with_the_scale() {
    check_gradients(Scale::InvSqrtDim, &SCALED);
}

#[test]
fn gradients_without_the_scale() {
    check_gradients(Scale::Unscaled, &UNSCALED);
}
