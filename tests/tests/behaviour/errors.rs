//! Every error names the argument, the axis and both sizes; the text is part of the interface.

use burn::tensor::{DType, Device, Tensor};
use layers::{
    Alignment, AttentionError, AttentionInput, KvCache, Mask, MhaInput, MultiHeadAttentionConfig,
    QkNorm, RotaryConfig, RotaryScaling, Scale, ScaledDotProductAttentionConfig, Segments, Window,
};
use tests::{bools, filled, floats_as, on_each_backend, panic_message};

fn attention() -> ScaledDotProductAttentionConfig {
    ScaledDotProductAttentionConfig::new()
}

fn multi_head() -> MultiHeadAttentionConfig {
    MultiHeadAttentionConfig::new(8, 4)
}

/// That `try_init` returns the message and `init` panics with it.
fn check_init<T: std::fmt::Debug>(
    try_init: impl FnOnce() -> Result<T, AttentionError>,
    init: impl FnOnce() -> T,
    expected: &str,
) {
    let error = try_init().expect_err(expected);
    assert_eq!(error.to_string(), expected);
    assert_eq!(panic_message(init), expected);
}

#[test]
fn an_attention_that_cannot_be_built_says_why() {
    let device = &Device::default();
    for (config, expected) in [
        (
            attention().with_dropout(1.5),
            "dropout is 1.5, but must be in [0, 1)",
        ),
        (
            attention().with_dropout(1.0),
            "dropout is 1, but must be in [0, 1)",
        ),
        (
            attention().with_dropout(-0.1),
            "dropout is -0.1, but must be in [0, 1)",
        ),
        (
            attention().with_dropout(f64::NAN),
            "dropout is NaN, but must be in [0, 1)",
        ),
        (
            attention().with_softcap(Some(0.0)),
            "softcap is 0, but must be positive and finite",
        ),
        (
            attention().with_softcap(Some(f64::INFINITY)),
            "softcap is inf, but must be positive and finite",
        ),
        (
            attention().with_scale(Scale::Fixed(f64::NAN)),
            "scale is NaN, but must be finite",
        ),
        (
            attention().with_scale(Scale::Learned {
                initial: f64::INFINITY,
            }),
            "scale is inf, but must be finite",
        ),
        (
            attention().with_scale(Scale::LogLength { reference: 1 }),
            "scale: log_length is 1, but the reference length must be at least 2",
        ),
        (
            attention().with_sink_heads(Some(0)),
            "sink_heads is 0, but must be at least 1",
        ),
        (
            attention()
                .with_sink_heads(Some(2))
                .with_quiet_softmax(true),
            "sink_heads 2 contradicts quiet_softmax true: a quiet softmax is a sink that stays 0",
        ),
    ] {
        check_init(|| config.try_init(device), || config.init(device), expected);
    }
}

#[test]
fn a_multi_head_attention_that_cannot_be_built_says_why() {
    let device = &Device::default();
    let rotary = RotaryConfig::new;
    for (config, expected) in [
        (
            MultiHeadAttentionConfig::new(10, 4),
            "d_model 10 is not divisible by n_heads 4",
        ),
        (
            multi_head().with_n_kv_heads(Some(3)),
            "n_heads 4 is not divisible by n_kv_heads 3",
        ),
        (
            MultiHeadAttentionConfig::new(0, 4),
            "d_model is 0, but must be at least 1",
        ),
        (
            MultiHeadAttentionConfig::new(8, 0),
            "n_heads is 0, but must be at least 1",
        ),
        (
            multi_head().with_n_kv_heads(Some(0)),
            "n_kv_heads is 0, but must be at least 1",
        ),
        (
            multi_head().with_d_key(Some(0)),
            "d_key is 0, but must be at least 1",
        ),
        (
            multi_head().with_d_value(Some(0)),
            "d_value is 0, but must be at least 1",
        ),
        (
            multi_head().with_d_head(Some(0)),
            "d_head is 0, but must be at least 1",
        ),
        (
            multi_head().with_d_value_head(Some(0)),
            "d_value_head is 0, but must be at least 1",
        ),
        (
            multi_head().with_dropout(2.0),
            "dropout is 2, but must be in [0, 1)",
        ),
        (
            multi_head().with_sink(true).with_quiet_softmax(true),
            "sink_heads 4 contradicts quiet_softmax true: a quiet softmax is a sink that stays 0",
        ),
        (
            multi_head().with_qk_norm(Some(QkNorm::L2)),
            "qk_norm l2 contradicts scale inv_sqrt_dim: scores of unit vectors are at most 1, so \
             their scale must be a temperature, fixed or learned",
        ),
        (
            multi_head()
                .with_d_head(Some(3))
                .with_rotary(Some(rotary())),
            "rotary: dimensions is 3, but must be even",
        ),
        (
            multi_head().with_rotary(Some(rotary().with_dimensions(Some(4)))),
            "rotary: dimensions is 4, but d_head is 2",
        ),
        (
            multi_head().with_rotary(Some(rotary().with_dimensions(Some(0)))),
            "rotary: dimensions is 0, but must be at least 2",
        ),
        (
            multi_head().with_rotary(Some(rotary().with_base(1.0))),
            "rotary: base is 1, but must be above 1 and finite",
        ),
        (
            multi_head().with_rotary(Some(
                rotary().with_scaling(RotaryScaling::Linear { factor: 0.5 }),
            )),
            "rotary: scaling factor is 0.5, but must be at least 1 and finite",
        ),
        (
            multi_head().with_rotary(Some(
                rotary().with_scaling(RotaryScaling::Ntk { factor: 2.0 }),
            )),
            "rotary: dimensions is 2, but NTK scaling needs at least 4",
        ),
    ] {
        check_init(|| config.try_init(device), || config.init(device), expected);
    }
}

/// Shapes of query, key and value that fit.
const QUERY: [usize; 4] = [2, 4, 3, 8];
const KEY: [usize; 4] = [2, 2, 5, 8];
const VALUE: [usize; 4] = [2, 2, 5, 6];

fn input(shapes: [[usize; 4]; 3], device: &Device) -> AttentionInput {
    let [query, key, value] = shapes.map(|shape| Tensor::zeros(shape, device));
    AttentionInput::new(query, key, value)
}

#[test]
fn shapes_that_do_not_fit_are_named_with_axis_and_both_sizes() {
    on_each_backend(|device| {
        let module = attention().init(device);
        for (shapes, expected) in [
            (
                [QUERY, [3, 2, 5, 8], VALUE],
                "key: axis 0 (batch) is 3, but query has 2",
            ),
            (
                [QUERY, KEY, [1, 2, 5, 6]],
                "value: axis 0 (batch) is 1, but query has 2",
            ),
            (
                [QUERY, [2, 3, 5, 8], [2, 3, 5, 6]],
                "key: axis 1 (kv_heads) is 3, which does not divide the 4 query heads",
            ),
            (
                [QUERY, [2, 0, 5, 8], [2, 0, 5, 6]],
                "key: axis 1 (kv_heads) is 0, which does not divide the 4 query heads",
            ),
            (
                [QUERY, KEY, [2, 4, 5, 6]],
                "value: axis 1 (kv_heads) is 4, but key has 2",
            ),
            (
                [QUERY, KEY, [2, 2, 4, 6]],
                "value: axis 2 (key_len) is 4, but key has 5",
            ),
            (
                [QUERY, [2, 2, 5, 7], VALUE],
                "key: axis 3 (d_k) is 7, but query has 8",
            ),
            (
                [[2, 4, 3, 0], [2, 2, 5, 0], VALUE],
                "query: axis 3 (d_k) is 0, but must be at least 1",
            ),
        ] {
            let input = || input(shapes, device);
            assert_eq!(panic_message(|| module.forward(input())), expected);
            let message = panic_message(|| module.forward_with_weights(input()));
            assert_eq!(message, expected);
        }
    });
}

#[test]
fn masks_biases_lengths_and_segments_that_do_not_fit_are_named() {
    on_each_backend(|device| {
        let module = attention().init(device);
        let mask = |shape: [usize; 4]| {
            Mask::blocked(bools(&vec![false; shape.iter().product()], shape, device))
        };
        let bias = |shape: [usize; 4]| filled(0.0, shape, device);
        let ids =
            |samples: usize, length: usize| Segments::from_ids(vec![vec![0; length]; samples]);
        let input = || input([QUERY, KEY, VALUE], device);
        for (input, expected) in [
            (
                input().mask(mask([3, 1, 1, 1])),
                "mask: axis 0 (batch) is 3, but the scores have 2 (or 1 to broadcast)",
            ),
            (
                input().mask(mask([1, 2, 1, 1])),
                "mask: axis 1 (heads) is 2, but the scores have 4 (or 1 to broadcast)",
            ),
            (
                input().mask(mask([1, 1, 2, 1])),
                "mask: axis 2 (query_len) is 2, but the scores have 3 (or 1 to broadcast)",
            ),
            (
                input().bias(bias([1, 1, 3, 4])),
                "bias: axis 3 (key_len) is 4, but the scores have 5 (or 1 to broadcast)",
            ),
            (
                input().bias(bias([1, 2, 3, 5])),
                "bias: axis 1 (heads) is 2, but the scores have 4 (or 1 to broadcast)",
            ),
            (
                input().key_lengths([5]),
                "key_lengths: axis 0 (batch) is 1, but query has 2",
            ),
            (
                input().key_lengths([5, 6]),
                "key_lengths is 6 for sample 1, but key_len is 5",
            ),
            (
                input().query_lengths([4, 0]),
                "query_lengths is 4 for sample 0, but query_len is 3",
            ),
            (
                input().segments(ids(1, 3), ids(2, 5)),
                "query_segments: axis 0 (batch) is 1, but query has 2",
            ),
            (
                input().segments(ids(2, 3), ids(2, 4)),
                "key_segments: axis 1 (key_len) is 4, but the scores' axis has 5",
            ),
            (
                input().segments(
                    ids(2, 3),
                    Segments::from_ids([vec![0; 5], vec![0, 1, 1, 0, 0]]),
                ),
                "key_segments is 0 at keys 0 and 3 of sample 1 with another between them, but the \
                 keys of one segment must be neighbours",
            ),
        ] {
            assert_eq!(panic_message(|| module.forward(input.clone())), expected);
        }
        let sink = attention().with_sink_heads(Some(3)).init(device);
        assert_eq!(
            panic_message(|| sink.forward(input())),
            "query: axis 1 (heads) is 4, but the sink has 3"
        );
        let low_rank = bools(&[true, false], [2], device);
        assert_eq!(
            panic_message(|| Mask::blocked(low_rank)),
            "mask: rank is 1, but must be 2, 3 or 4"
        );
    });
}

#[test]
fn element_types_that_differ_are_named() {
    tests::on_each_backend_with(DType::F64, |device| {
        let module = attention().init(device);
        let tensor = |shape: [usize; 4], dtype| {
            floats_as::<4>(&vec![0.0; shape.iter().product()], shape, dtype, device)
        };
        let query = tensor(QUERY, DType::F32);
        let (key, value) = (tensor(KEY, DType::F32), tensor(VALUE, DType::F32));
        let wide_key = tensor(KEY, DType::F64);
        let wide_value = tensor(VALUE, DType::F64);
        let wide_bias = tensor([1, 1, 3, 5], DType::F64);
        for (input, expected) in [
            (
                AttentionInput::new(query.clone(), wide_key, value.clone()),
                "key: dtype is F64, but query has F32",
            ),
            (
                AttentionInput::new(query.clone(), key.clone(), wide_value),
                "value: dtype is F64, but query has F32",
            ),
            (
                AttentionInput::new(query, key, value).bias(wide_bias),
                "bias: dtype is F64, but query has F32",
            ),
        ] {
            assert_eq!(panic_message(|| module.forward(input.clone())), expected);
        }
    });
}

#[test]
fn multi_head_inputs_that_do_not_fit_are_named() {
    on_each_backend(|device| {
        let module = multi_head()
            .with_d_key(Some(6))
            .with_d_value(Some(5))
            .init(device);
        let tensor = |shape: [usize; 3]| Tensor::<3>::zeros(shape, device);
        for ([query, key, value], expected) in [
            (
                [[2, 3, 7], [2, 4, 6], [2, 4, 5]],
                "query: axis 2 (d_model) is 7, but the projection has 8",
            ),
            (
                [[2, 3, 8], [2, 4, 8], [2, 4, 5]],
                "key: axis 2 (d_key) is 8, but the projection has 6",
            ),
            (
                [[2, 3, 8], [2, 4, 6], [2, 4, 6]],
                "value: axis 2 (d_value) is 6, but the projection has 5",
            ),
            (
                [[2, 3, 8], [1, 4, 6], [2, 4, 5]],
                "key: axis 0 (batch) is 1, but query has 2",
            ),
            (
                [[2, 3, 8], [2, 4, 6], [3, 4, 5]],
                "value: axis 0 (batch) is 3, but query has 2",
            ),
            (
                [[2, 3, 8], [2, 4, 6], [2, 3, 5]],
                "value: axis 1 (key_len) is 3, but key has 4",
            ),
        ] {
            let input = || MhaInput::new(tensor(query), tensor(key), tensor(value));
            assert_eq!(panic_message(|| module.forward(input())), expected);
            let message = panic_message(|| module.forward_with_weights(input()));
            assert_eq!(message, expected);
        }
    });
}

#[test]
fn positions_that_do_not_fit_are_named() {
    on_each_backend(|device| {
        let module = multi_head()
            .with_rotary(Some(RotaryConfig::new()))
            .init(device);
        let x = Tensor::<3>::zeros([2, 3, 8], device);
        let run = |query: Vec<Vec<i64>>, key: Vec<Vec<i64>>| {
            panic_message(|| module.forward(MhaInput::self_attn(x.clone()).positions(query, key)))
        };
        assert_eq!(
            run(vec![vec![0, 1, 2]; 3], vec![vec![0, 1, 2]]),
            "positions is 3 lists, but query has a batch of 2 (or 1 list for all)"
        );
        assert_eq!(
            run(vec![vec![0, 1, 2]], vec![vec![0, 1]; 2]),
            "positions is a list of 2, but key has length 3"
        );
    });
}

#[test]
fn a_cache_that_does_not_fit_says_why() {
    on_each_backend(|device| {
        let module = multi_head().with_causal(true).init(device);
        let x = |batch: usize, length: usize| Tensor::<3>::zeros([batch, length, 8], device);
        let feed = |cache: &mut KvCache, batch, length| {
            module.forward(MhaInput::self_attn(x(batch, length)).cache(cache))
        };

        let mut full = KvCache::preallocated(4);
        feed(&mut full, 2, 3);
        assert_eq!(
            panic_message(|| feed(&mut full, 2, 2)),
            "cache is full: 3 of 4 positions are kept, and 2 more do not fit"
        );

        let mut other = KvCache::growing();
        feed(&mut other, 2, 3);
        assert_eq!(
            panic_message(|| feed(&mut other, 1, 1)),
            "key: axis 0 (batch) is 1, but the cache has 2"
        );
        assert_eq!(
            panic_message(|| other.rewind(4)),
            "cache: cannot rewind 4 positions, since it keeps 3"
        );
        assert_eq!(
            panic_message(|| other.reorder(&[0, 2])),
            "cache: sample 2 does not exist in a batch of 2"
        );

        let mut rolling = KvCache::rolling(2);
        assert_eq!(
            panic_message(|| feed(&mut rolling, 1, 1)),
            "a cache rolling over 2 positions contradicts a layer without a window: the layer may \
             look at keys that the cache has forgotten"
        );
        let wide = multi_head()
            .with_causal(true)
            .with_window(Some(Window::before(3)))
            .init(device);
        let message =
            panic_message(|| wide.forward(MhaInput::self_attn(x(1, 1)).cache(&mut rolling)));
        assert_eq!(
            message,
            "a cache rolling over 2 positions contradicts a window of 3 keys before: the layer may \
             look at keys that the cache has forgotten"
        );
    });
}

#[test]
fn a_rolling_cache_must_reach_back_from_where_the_queries_stand() {
    on_each_backend(|device| {
        // The newest query stands two keys before the newest key, and looks four further back.
        let module = multi_head()
            .with_causal(true)
            .with_alignment(Alignment::Offset(-2))
            .with_window(Some(Window::before(4)))
            .init(device);
        let x = Tensor::<3>::zeros([1, 1, 8], device);
        let feed = |kept: usize| {
            let mut cache = KvCache::rolling(kept);
            module.forward(MhaInput::self_attn(x.clone()).cache(&mut cache))
        };
        feed(6);
        let message = panic_message(|| feed(5));
        assert!(
            message.starts_with("a cache rolling over 5 positions contradicts "),
            "{message}"
        );
    });
}

#[test]
fn cumulative_lengths_that_fall_are_refused() {
    assert_eq!(
        panic_message(|| Segments::from_cumulative_lengths([vec![0, 5, 3]])),
        "cumulative_lengths: sample 0 falls from 5 to 3"
    );
    assert_eq!(
        panic_message(|| Segments::from_cumulative_lengths([vec![0, 2], vec![1, 2]])),
        "cumulative_lengths: sample 1 starts with 1, but must start with 0"
    );
}
