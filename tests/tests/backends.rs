//! The same computation on every backend compiled in.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Tensor};
use layers::{
    KvCache, MhaInput, MultiHeadAttention, MultiHeadAttentionConfig, RotaryConfig, Scale, Window,
};
use tests::{Random, Tolerance, assert_close, backends, floats, values};

/// Gives every parameter numbers from the host, so that all backends start alike.
fn set(linears: &mut MultiHeadAttention, device: &Device) {
    let mut random = Random::new(1);
    for linear in [
        &mut linears.query,
        &mut linears.key,
        &mut linears.value,
        &mut linears.output,
    ] {
        let [input, output] = linear.weight.dims();
        let mut draw = |count: usize| -> Vec<f64> {
            let numbers = random.normals(count);
            let scale = (input as f64).sqrt();
            numbers.iter().map(|number| number / scale).collect()
        };
        linear.weight = Param::from_tensor(floats(&draw(input * output), [input, output], device));
        if linear.bias.is_some() {
            linear.bias = Some(Param::from_tensor(floats(&draw(output), [output], device)));
        }
    }
}

fn configurations() -> Vec<(&'static str, MultiHeadAttentionConfig)> {
    let plain = MultiHeadAttentionConfig::new(24, 6);
    vec![
        ("plain", plain.clone()),
        ("causal", plain.clone().with_causal(true)),
        (
            "every option",
            plain
                .with_n_kv_heads(Some(2))
                .with_d_head(Some(6))
                .with_causal(true)
                .with_window(Some(Window::before(20)))
                .with_softcap(Some(3.0))
                .with_scale(Scale::LogLength { reference: 10 })
                .with_sink(true)
                .with_alibi(true)
                .with_rotary(Some(RotaryConfig::new()))
                .with_add_bias_kv(true)
                .with_add_zero_attn(true),
        ),
    ]
}

struct Collector<'a> {
    gradients: &'a Gradients,
    found: Vec<f64>,
}

impl ModuleVisitor for Collector<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let gradient = param.val().grad(self.gradients).expect("a parameter");
        self.found.extend(values(gradient));
    }
}

/// Output, gradient of the input, and gradients of all parameters.
fn forward_and_backward(config: &MultiHeadAttentionConfig, device: &Device) -> [Vec<f64>; 3] {
    const SHAPE: [usize; 3] = [2, 37, 24];
    let mut random = Random::new(2);
    let mut draw = || floats::<3>(&random.normals(2 * 37 * 24), SHAPE, device);
    let mut module = config.init(device);
    set(&mut module, device);
    let x = draw().require_grad();
    let output = module.forward(MhaInput::self_attn(x.clone()).key_lengths([37, 29]));
    // A mean, so that gradients are of the size of those in training.
    let gradients = (output.clone() * draw()).mean().backward();
    let mut collector = Collector {
        gradients: &gradients,
        found: Vec::new(),
    };
    module.visit(&mut collector);
    [
        values(output),
        values(x.grad(&gradients).expect("a leaf")),
        collector.found,
    ]
}

#[test]
fn forward_and_backward_agree_to_five_digits() {
    for (name, config) in configurations() {
        let mut first: Option<(&str, [Vec<f64>; 3])> = None;
        for backend in backends() {
            let device = backend.device.autodiff();
            let found = forward_and_backward(&config, &device);
            let Some((other, expected)) = &first else {
                first = Some((backend.name, found));
                continue;
            };
            for (part, (found, expected)) in ["output", "input", "parameters"]
                .iter()
                .zip(found.iter().zip(expected))
            {
                let label = format!("{name}: {part} on {} and {other}", backend.name);
                let tolerance = Tolerance::absolute(1e-5);
                assert_close(&label, found, expected, &[found.len()], tolerance);
            }
        }
    }
}

#[test]
fn decoding_agrees_to_five_digits() {
    let config = MultiHeadAttentionConfig::new(24, 6)
        .with_causal(true)
        .with_rotary(Some(RotaryConfig::new()));
    let mut first: Option<(&str, Vec<f64>)> = None;
    for backend in backends() {
        let device = &backend.device;
        let mut module = config.init(device);
        set(&mut module, device);
        let x = floats::<3>(&Random::new(3).normals(9 * 24), [1, 9, 24], device);
        let mut cache = KvCache::growing();
        let steps = (0..9).map(|token| {
            let step = x.clone().narrow(1, token, 1);
            module.forward(MhaInput::self_attn(step).cache(&mut cache))
        });
        let found = values(Tensor::cat(steps.collect(), 1));
        let Some((other, expected)) = &first else {
            first = Some((backend.name, found));
            continue;
        };
        let label = format!("{} and {other}", backend.name);
        let tolerance = Tolerance::absolute(1e-5);
        assert_close(&label, &found, expected, &[9, 24], tolerance);
    }
}

#[test]
fn one_seed_drops_the_same_weights_in_every_run() {
    // Not across backends: each has a generator of its own.
    for backend in backends() {
        let device = &backend.device.autodiff();
        let mut module = MultiHeadAttentionConfig::new(24, 6)
            .with_dropout(0.5)
            .init(device);
        set(&mut module, device);
        let x = floats::<3>(&Random::new(4).normals(9 * 24), [1, 9, 24], device);
        let run = || {
            device.seed(5);
            values(module.forward(MhaInput::self_attn(x.clone())))
        };
        assert_eq!(run(), run(), "on {}", backend.name);
    }
}
