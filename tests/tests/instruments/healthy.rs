//! A healthy model gives no finding.

use burn::module::Initializer;
use burn::tensor::{DType, Device, Tensor};
use layers::{
    AttentionInput, Fault, KvCache, Mask, MhaInput, MultiHeadAttentionConfig, Probes, QkNorm,
    RotaryConfig, Scale, ScaledDotProductAttentionConfig,
};
use tests::{Random, backends, floats_as, on_each_backend, on_each_backend_with};

use crate::model::{Model, Plain, findings, tokens, train};
use crate::seeded;

#[track_caller]
fn assert_healthy(steps: &[Vec<layers::LayerStatistics>], what: &str) {
    assert!(!steps.is_empty() && steps.iter().all(|layers| !layers.is_empty()));
    let findings: Vec<String> = findings(steps).iter().map(ToString::to_string).collect();
    assert!(findings.is_empty(), "{what}: {}", findings.join("\n"));
}

#[test]
fn transformers_of_several_sizes_at_the_start_and_in_training() {
    on_each_backend(|device| {
        let device = &device.clone().autodiff();
        let _turn = seeded(device, 11);
        for (d_k, heads, blocks, causal) in [
            (8, 2, 1, false),
            (8, 8, 2, true),
            (16, 4, 4, true),
            (32, 1, 2, false),
            (64, 2, 2, true),
            (128, 1, 1, true),
            (256, 1, 1, false),
        ] {
            let config = MultiHeadAttentionConfig::new(d_k * heads, heads).with_causal(causal);
            let model = Model::new(blocks, &config, device);
            let (_, steps) = train(model, [4, 12, d_k * heads], 3, 1e-3, device);
            assert_eq!(steps[0].len(), blocks);
            let what = format!("d_k {d_k}, {heads} heads, {blocks} blocks, causal {causal}");
            assert_healthy(&steps, &what);
        }
    });
}

#[test]
fn a_transformer_that_has_learned_its_task() {
    for backend in backends().iter().filter(|backend| backend.name == "flex") {
        let device = &backend.device.clone().autodiff();
        let _turn = seeded(device, 12);
        for (d_k, heads, blocks) in [(16, 2, 1), (32, 1, 2)] {
            let config = MultiHeadAttentionConfig::new(d_k * heads, heads).with_causal(true);
            let model = Model::new(blocks, &config, device);
            let (_, steps) = train(model, [8, 12, d_k * heads], 150, 5e-3, device);
            assert_healthy(
                &steps,
                &format!("d_k {d_k}, {heads} heads, {blocks} blocks"),
            );
        }
    }
}

#[test]
fn attention_on_heads_of_unit_variance() {
    on_each_backend(|device| {
        for d_k in [8, 32, 64, 256] {
            for causal in [false, true] {
                let shape = [2, 4, 16, d_k];
                let mut random = Random::new(d_k as u64);
                let mut draw = || {
                    let numbers = random.normals(shape.iter().product());
                    floats_as(&numbers, shape, DType::F32, device)
                };
                let attention = ScaledDotProductAttentionConfig::new()
                    .with_causal(causal)
                    .init(device);
                let probes = Probes::of(&attention);
                probes.on();
                attention.forward(AttentionInput::new(draw(), draw(), draw()));
                assert_healthy(&[probes.take()], &format!("d_k {d_k}, causal {causal}"));
            }
        }
    });
}

/// Measures one pass without gradients.
fn measured(config: &MultiHeadAttentionConfig, device: &Device) -> Vec<layers::LayerStatistics> {
    let attention = config.init(device);
    let probes = Probes::of(&attention);
    probes.on();
    attention.forward(MhaInput::self_attn(tokens([4, 16, config.d_model], device)));
    probes.take()
}

#[test]
fn layers_with_options_that_change_the_scores() {
    on_each_backend(|device| {
        let _turn = seeded(device, 13);
        let config = MultiHeadAttentionConfig::new(128, 2);
        for (what, config) in [
            ("softcap", config.clone().with_softcap(Some(5.0))),
            ("sink", config.clone().with_sink(true)),
            ("quiet softmax", config.clone().with_quiet_softmax(true)),
            ("alibi", config.clone().with_alibi(true).with_causal(true)),
            ("grouped heads", config.clone().with_n_kv_heads(Some(1))),
            (
                "rotary",
                config.clone().with_rotary(Some(RotaryConfig::new())),
            ),
            ("extra keys", config.clone().with_add_zero_attn(true)),
            (
                "RMS norm",
                config
                    .clone()
                    .with_qk_norm(Some(QkNorm::Rms { epsilon: 1e-5 })),
            ),
            (
                "unit norm with a temperature",
                config
                    .clone()
                    .with_qk_norm(Some(QkNorm::L2))
                    .with_scale(Scale::Learned { initial: 10.0 }),
            ),
            (
                "unit norm with a fixed temperature",
                config
                    .clone()
                    .with_qk_norm(Some(QkNorm::L2))
                    .with_scale(Scale::Fixed(10.0)),
            ),
            (
                "a learned scale",
                config.clone().with_scale(Scale::Learned { initial: 0.125 }),
            ),
            (
                "a scale by length",
                config
                    .clone()
                    .with_scale(Scale::LogLength { reference: 512 }),
            ),
        ] {
            assert_healthy(&[measured(&config, device)], what);
        }
    });
}

#[test]
fn queries_that_are_scaled_before_a_layer_that_does_not_scale() {
    on_each_backend(|device| {
        let _turn = seeded(device, 14);
        let unscaled = ScaledDotProductAttentionConfig::new().with_scale(Scale::Unscaled);
        for (width, heads) in [(64, 1), (256, 4), (256, 1)] {
            let d_k = (width / heads) as f64;
            let model = Plain::new(width, &unscaled, device);
            let probes = Probes::of(&model);
            probes.on();
            model.forward(tokens([4, 16, width], device), heads, d_k.sqrt().recip());
            assert_healthy(&[probes.take()], &format!("width {width}, {heads} heads"));
        }
    });
}

#[test]
fn queries_and_keys_that_share_the_scale_before_a_layer_that_does_not_scale() {
    on_each_backend(|device| {
        let (shape, d_k) = ([2, 4, 16, 64], 64.0_f64);
        let mut random = Random::new(15);
        let mut draw = || -> Tensor<4> {
            let numbers = random.normals(shape.iter().product());
            floats_as(&numbers, shape, DType::F32, device)
        };
        let share = d_k.powf(-0.25);
        let attention = ScaledDotProductAttentionConfig::new()
            .with_scale(Scale::Unscaled)
            .init(device);
        let probes = Probes::of(&attention);
        probes.on();
        attention.forward(AttentionInput::new(draw() * share, draw() * share, draw()));
        assert_healthy(&[probes.take()], "both scaled");
    });
}

#[test]
fn padded_batches_in_half_precision_with_a_mask() {
    on_each_backend_with(DType::F16, |device| {
        let shape = [2, 4, 16, 64];
        let mut random = Random::new(16);
        let mut draw = || -> Tensor<4> {
            let numbers = random.normals(shape.iter().product());
            floats_as(&numbers, shape, DType::F16, device)
        };
        let blocked: Vec<bool> = (0..2 * 16).map(|key| key % 16 > 9).collect();
        let blocked = burn::tensor::TensorData::new(blocked, [2, 16]);
        let attention = ScaledDotProductAttentionConfig::new().init(device);
        let probes = Probes::of(&attention);
        probes.on();
        let mask = Mask::blocked_keys(Tensor::from_data(blocked, device));
        attention.forward(AttentionInput::new(draw(), draw(), draw()).mask(mask));
        assert_healthy(&[probes.take()], "half precision");
    });
}

#[test]
fn layers_that_start_small() {
    on_each_backend(|device| {
        let _turn = seeded(device, 19);
        for (d_model, heads) in [(64, 1), (128, 2), (256, 8)] {
            let config = MultiHeadAttentionConfig::new(d_model, heads).with_initializer(
                Initializer::Normal {
                    mean: 0.0,
                    std: 0.02,
                },
            );
            let what = format!("{d_model} wide, {heads} heads");
            assert_healthy(&[measured(&config, device)], &what);
        }
    });
}

#[test]
fn attention_over_a_memory_of_another_size() {
    on_each_backend(|device| {
        let _turn = seeded(device, 20);
        for d_head in [8, 16, 32, 64, 128] {
            for times in [0.03, 0.2, 5.0, 30.0] {
                let attention = MultiHeadAttentionConfig::new(2 * d_head, 2).init(device);
                let probes = Probes::of(&attention);
                probes.on();
                let x = tokens([4, 12, 2 * d_head], device);
                let memory = tokens([4, 16, 2 * d_head], device) * times;
                attention.forward(MhaInput::cross_attn(x, memory));
                let found = findings(&[probes.take()]);
                let told = |fault: Fault| found.iter().any(|finding| finding.fault == fault);
                let scale = [
                    Fault::ScaleMissing,
                    Fault::ScaleTwice,
                    Fault::ScaleWrongDimension,
                ];
                assert!(
                    !scale.into_iter().any(told),
                    "d_head {d_head}, memory times {times}: {found:?}"
                );
            }
        }
    });
}

#[test]
fn decoding_from_the_first_token_on() {
    on_each_backend(|device| {
        let _turn = seeded(device, 18);
        let config = MultiHeadAttentionConfig::new(64, 2).with_causal(true);
        let attention = config.init(device);
        let probes = Probes::of(&attention);
        let mut cache = KvCache::growing();
        let mut steps = Vec::new();
        // A prompt, then a sequence of its own, token by token.
        probes.on();
        attention.forward(MhaInput::self_attn(tokens([1, 12, 64], device)));
        steps.push(probes.take());
        for _ in 0..4 {
            probes.on();
            let token = MhaInput::self_attn(tokens([1, 1, 64], device));
            attention.forward(token.cache(&mut cache));
            steps.push(probes.take());
            assert_healthy(&steps, "decoding");
        }
        assert_healthy(&steps[1..2], "one token");
    });
}

#[test]
fn a_model_read_out_at_its_last_token() {
    on_each_backend(|device| {
        let device = &device.clone().autodiff();
        let _turn = seeded(device, 17);
        let config = MultiHeadAttentionConfig::new(32, 2).with_causal(true);
        let model = Model::new(2, &config, device);
        let probes = Probes::of(&model);
        probes.on();
        let x = tokens([4, 12, 32], device);
        model
            .forward(x)
            .narrow(1, 11, 1)
            .powi_scalar(2)
            .mean()
            .backward();
        assert_healthy(&[probes.take()], "the last token");
    });
}
