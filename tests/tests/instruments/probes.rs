//! `Probes`: found by path, following the model, and disturbing nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::module::Module;
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{Bool, Device, Tensor};
use gradnorm::GradientNorms;
use layers::{
    AttentionInput, AttentionStatistics, Mask, MhaInput, MultiHeadAttention,
    MultiHeadAttentionConfig, Probe, Probes, ScaledDotProductAttention,
    ScaledDotProductAttentionConfig,
};
use tests::{assert_bits, on_each_backend, values};

use crate::model::{Model, tokens};
use crate::seeded;

fn config() -> MultiHeadAttentionConfig {
    MultiHeadAttentionConfig::new(16, 2).with_causal(true)
}

fn paths(probes: &Probes) -> Vec<&str> {
    probes.paths().collect()
}

/// Layers at every kind of place that a module has.
#[derive(Module, Debug)]
struct Places {
    blocks: Vec<MultiHeadAttention>,
    pair: (MultiHeadAttention, ScaledDotProductAttention),
    maybe: Option<ScaledDotProductAttention>,
    none: Option<ScaledDotProductAttention>,
    own: OwnAttention,
    #[module(skip)]
    hidden: Option<ScaledDotProductAttention>,
}

/// A layer of the user's own around two of ours.
#[derive(Module, Debug)]
struct OwnAttention {
    itself: ScaledDotProductAttention,
    across: ScaledDotProductAttention,
}

#[test]
fn layers_are_found_by_their_path_wherever_they_are() {
    let device = Device::default();
    let plain = || ScaledDotProductAttentionConfig::new().init(&device);
    let model = Places {
        blocks: vec![config().init(&device), config().init(&device)],
        pair: (config().init(&device), plain()),
        maybe: Some(plain()),
        none: None,
        own: OwnAttention {
            itself: plain(),
            across: plain(),
        },
        hidden: Some(plain()),
    };
    let probes = Probes::of(&model);
    assert_eq!(
        paths(&probes),
        [
            "blocks.0",
            "blocks.1",
            "pair.0",
            "pair.1",
            "maybe",
            "own.itself",
            "own.across"
        ]
    );
    assert_eq!(paths(&Probes::of(&model.blocks[0])), [""]);
    assert_eq!(paths(&Probes::of(&plain())), [""]);
    assert_eq!(
        format!("{:?}", Probes::of(&model.own)),
        r#"Probes { layers: ["itself", "across"], on: false }"#
    );
}

#[test]
fn a_layer_that_is_held_twice_is_one_layer() {
    let device = Device::default();
    let layer = config().init(&device);
    let model = vec![layer.clone(), layer];
    let probes = Probes::of(&model);
    assert_eq!(paths(&probes), ["0"]);
    probes.on();
    for layer in &model {
        layer.forward(MhaInput::self_attn(Tensor::ones([1, 3, 16], &device)));
    }
    let calls: Vec<usize> = probes.take().iter().map(|layer| layer.call).collect();
    assert_eq!(calls, [0, 1]);
}

#[test]
fn they_tell_what_a_probe_at_the_call_tells() {
    on_each_backend(|device| {
        let device = &device.clone().autodiff();
        let _turn = seeded(device, 31);
        let attention = config().init(device);
        let (probe, probes) = (Probe::new(), Probes::of(&attention));
        probes.on();
        let input = MhaInput::self_attn(tokens([3, 5, 16], device)).key_lengths([5, 3, 0]);
        let context = attention.forward(input.probe(&probe));
        context.powi_scalar(2).sum().backward();
        let rows = probe.take().expect("backward has passed");
        let layer = probes.take().remove(0);
        assert_eq!(Some(layer.statistics), AttentionStatistics::of(&rows));
        for (head, found) in layer.heads.iter().enumerate() {
            let of_head: Vec<_> = (0..rows.len())
                .filter(|row| row / 5 % 2 == head)
                .map(|row| rows[row])
                .collect();
            assert_eq!(Some(found.statistics), AttentionStatistics::of(&of_head));
            assert_eq!(
                found.rows,
                of_head.iter().filter(|row| row.keys > 0).count()
            );
        }
    });
}

#[test]
fn sizes_are_those_of_the_keys_and_queries_that_are_seen() {
    on_each_backend(|device| {
        let filled =
            |numbers: [f32; 6]| Tensor::<1>::from_floats(numbers, device).reshape([1, 1, 3, 2]);
        let query = filled([3.0, 4.0, 0.0, 0.0, 6.0, 8.0]);
        // The last key and value are not seen.
        let key = filled([1.0, 1.0, 3.0, 1.0, 900.0, 900.0]);
        let value = filled([2.0, 0.0, 2.0, 0.0, 900.0, 900.0]);
        let attention = ScaledDotProductAttentionConfig::new().init(device);
        let probes = Probes::of(&attention);
        probes.on();
        let input = AttentionInput::new(query, key, value).key_lengths([2]);
        attention.forward(input);
        let head = probes.take().remove(0).heads.remove(0);
        let close = |found: f64, expected: f64| {
            assert!((found - expected).abs() < 1e-5, "{found}, not {expected}");
        };
        assert_eq!((head.rows, head.scores), (3, 6));
        close(head.query_rms, (125.0_f64 / 6.0).sqrt());
        close(head.key_rms, (12.0_f64 / 4.0).sqrt());
        close(head.key_spread, (2.0_f64 / 4.0).sqrt());
        close(head.value_rms, 2.0_f64.sqrt());
        close(head.value_spread, 0.0);
        // Products 7 and 13, 0 and 0, 14 and 26, divided by sqrt(2).
        close(head.product_std, (45.0_f64 / 3.0 / 2.0).sqrt());
        close(head.row_std, head.product_std);
        close(head.max_product, 26.0 / 2.0_f64.sqrt());
        close(head.uniform, 1.0 / 3.0);
        assert_eq!(head.context_gradient, None);
        assert_eq!(head.dead, None);
    });
}

#[test]
fn a_measured_training_is_the_unmeasured_one_bit_for_bit() {
    on_each_backend(|device| {
        let device = &device.clone().autodiff();
        let run = |measured: bool| {
            let _turn = seeded(device, 32);
            let mut model = Model::new(2, &config().with_dropout(0.1), device);
            let probes = Probes::of(&model);
            let mut optimizer = AdamConfig::new().init();
            let mut numbers = Vec::new();
            for _ in 0..4 {
                if measured {
                    probes.on();
                }
                let loss = model.loss(tokens([2, 6, 16], device));
                numbers.extend(values(loss.clone()));
                let gradients = loss.backward();
                let layers = probes.take();
                assert_eq!(layers.len(), if measured { 2 } else { 0 });
                numbers.extend(
                    GradientNorms::of(&model, &gradients)
                        .iter()
                        .map(|norm| norm.1),
                );
                let gradients = GradientsParams::from_grads(gradients, &model);
                model = optimizer.step(1e-2, model, gradients);
            }
            numbers
        };
        assert_bits("measured", &run(true), &run(false));
    });
}

#[test]
fn they_follow_the_model_through_all_that_happens_to_it() {
    on_each_backend(|plain| {
        let device = &plain.clone().autodiff();
        let _turn = seeded(device, 33);
        let model = Model::new(1, &config(), device);
        let probes = Probes::of(&model);
        let record = model.clone().into_record();
        let seen = |model: &Model, device: &Device| {
            probes.on();
            model.forward(tokens([1, 4, 16], device)).sum();
            // Without a backward pass, a tracked call tells nothing.
            probes.take().len()
        };
        assert_eq!(seen(&model.valid(), plain), 1);
        assert_eq!(seen(&model.valid().clone(), plain), 1);
        assert_eq!(seen(&model.clone().valid().load_record(record), plain), 1);
        assert_eq!(seen(&model.clone().to_device(device).valid(), plain), 1);
        assert_eq!(seen(&model.clone().fork(device).valid(), plain), 1);
        assert_eq!(
            seen(&model.clone().no_grad().valid().train().valid(), plain),
            1
        );
        assert_eq!(seen(&model, device), 0);
        // Moved while they are on.
        probes.on();
        let moved = model.to_device(device).valid();
        moved.forward(tokens([1, 4, 16], plain));
        assert_eq!(probes.take().len(), 1);
    });
}

#[test]
fn steps_before_and_after_are_not_measured_and_those_between_are_counted() {
    on_each_backend(|device| {
        let tracked = &device.clone().autodiff();
        let _turn = seeded(tracked, 34);
        let model = Model::new(2, &config(), tracked);
        let probes = Probes::of(&model);
        let pass = || model.loss(tokens([2, 5, 16], tracked)).backward();
        pass();
        assert!(!probes.is_on());
        assert!(probes.take().is_empty());
        // Two passes whose gradients are added up.
        probes.on();
        assert!(probes.is_on());
        pass();
        pass();
        probes.off();
        pass();
        let layers = probes.take();
        let calls: Vec<_> = layers.iter().map(|l| (l.path.as_str(), l.call)).collect();
        assert_eq!(
            calls,
            [
                ("blocks.0.attention", 0),
                ("blocks.1.attention", 0),
                ("blocks.0.attention", 1),
                ("blocks.1.attention", 1)
            ]
        );
        assert!(
            layers
                .iter()
                .all(|layer| layer.statistics.score_grad.is_some())
        );
        assert!(probes.take().is_empty());
        // Switching on begins anew.
        probes.on();
        pass();
        probes.on();
        pass();
        assert_eq!(probes.take().len(), 2);
    });
}

#[test]
fn several_measure_one_model_apart() {
    let device = Device::default();
    let attention = config().init(&device);
    let pass = || attention.forward(MhaInput::self_attn(Tensor::ones([1, 3, 16], &device)));
    let (one, other) = (Probes::of(&attention), Probes::of(&attention));
    one.on();
    pass();
    other.on();
    pass();
    assert_eq!(one.take().len(), 2);
    pass();
    assert_eq!(other.take().len(), 2);
    assert!(one.take().is_empty());
}

#[test]
fn other_models_are_not_measured() {
    let device = Device::default();
    let (one, other) = (config().init(&device), config().init(&device));
    let probes = Probes::of(&one);
    probes.on();
    other.forward(MhaInput::self_attn(Tensor::ones([1, 3, 16], &device)));
    assert!(probes.take().is_empty());
}

#[test]
fn a_panic_while_they_are_on_leaves_the_model_unmeasured_and_usable() {
    let device = Device::default();
    let attention = config().init(&device);
    let watching = Probes::of(&attention);
    let result = catch_unwind(AssertUnwindSafe(|| {
        let probes = Probes::of(&attention);
        probes.on();
        // The width is wrong.
        attention.forward(MhaInput::self_attn(Tensor::ones([1, 3, 15], &device)));
    }));
    assert!(result.is_err());
    watching.on();
    attention.forward(MhaInput::self_attn(Tensor::ones([1, 3, 16], &device)));
    assert_eq!(watching.take().len(), 1);
}

#[test]
fn workers_measure_their_own_calls_of_one_model() {
    let device = Device::default();
    let attention = config().init(&device);
    let watching = Probes::of(&attention);
    watching.on();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (1..=4)
            .map(|calls| {
                let (attention, device) = (attention.clone(), device.clone());
                scope.spawn(move || {
                    let probes = Probes::of(&attention);
                    probes.on();
                    for _ in 0..calls {
                        let x = Tensor::ones([1, 3, 16], &device);
                        attention.forward(MhaInput::self_attn(x));
                    }
                    probes.take().len()
                })
            })
            .collect();
        for (worker, calls) in workers.into_iter().zip(1..=4) {
            assert_eq!(worker.join().unwrap(), calls);
        }
    });
    assert!(watching.take().is_empty());
}

#[test]
fn a_call_without_keys_or_queries_is_left_out() {
    let device = Device::default();
    let attention = config().init(&device);
    let probes = Probes::of(&attention);
    probes.on();
    for length in [0, 2] {
        let x = Tensor::ones([1, length, 16], &device);
        attention.forward(MhaInput::self_attn(x));
    }
    let layers = probes.take();
    assert_eq!(layers.len(), 1);
    assert_eq!(layers[0].call, 1);
}

#[test]
fn heads_keep_their_number_where_another_sees_nothing() {
    let device = Device::default();
    let x = Tensor::<4>::ones([1, 3, 2, 4], &device);
    // Nothing is to be seen in the first head.
    let blocked = [[[[true]], [[false]], [[false]]]];
    let mask = Mask::blocked(Tensor::<4, Bool>::from_data(blocked, &device));
    let attention = ScaledDotProductAttentionConfig::new().init(&device);
    let probes = Probes::of(&attention);
    probes.on();
    attention.forward(AttentionInput::new(x.clone(), x.clone(), x).mask(mask));
    let heads = probes.take().remove(0).heads;
    assert_eq!(
        heads.iter().map(|head| head.head).collect::<Vec<_>>(),
        [1, 2]
    );
}

#[test]
fn the_display_of_a_module_does_not_tell_of_them() {
    let device = Device::default();
    let attention = ScaledDotProductAttentionConfig::new().init(&device);
    let text = attention.to_string();
    assert!(!text.contains("lot"), "{text}");
}

#[test]
fn statistics_are_read_back_from_their_log() {
    let device = Device::default().autodiff();
    let _turn = seeded(&device, 35);
    let model = Model::new(1, &config(), &device);
    let probes = Probes::of(&model);
    probes.on();
    model.loss(tokens([2, 5, 16], &device)).backward();
    let layers = probes.take();
    let text = serde_json::to_string(&layers).unwrap();
    let line = r#"[{"path":"blocks.0.attention","call":0,"scale":"inv_sqrt_dim","factor":0.353"#;
    assert!(text.starts_with(line), "{text}");
    let read: Vec<layers::LayerStatistics> = serde_json::from_str(&text).unwrap();
    assert_eq!(read.len(), 1);
    assert_eq!(read[0].heads.len(), 2);
    let line = layers[0].to_string();
    assert!(
        line.starts_with("blocks.0.attention: scores deviate by 0."),
        "{line}"
    );
    assert!(line.contains(", score gradient p10 "), "{line}");
}
