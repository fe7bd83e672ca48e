//! Our module inside a user-defined Burn module.

use burn::module::Module;
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{Device, Tensor};
use gradnorm::GradientNorms;
use layers::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig, RotaryConfig, Scale};
use tests::{Random, assert_bits, floats, on_each_backend, values};

/// A small model: one causal layer of attention with a residual, and a head.
#[derive(Module, Debug)]
struct Model {
    norm: LayerNorm,
    attention: MultiHeadAttention,
    head: Linear,
}

const WIDTH: usize = 16;

impl Model {
    fn new(device: &Device) -> Self {
        let attention = MultiHeadAttentionConfig::new(WIDTH, 4)
            .with_n_kv_heads(Some(2))
            .with_causal(true)
            .with_sink(true)
            .with_scale(Scale::Learned { initial: 0.5 })
            .with_rotary(Some(RotaryConfig::new()))
            .with_add_bias_kv(true)
            .init(device);
        Self {
            norm: LayerNormConfig::new(WIDTH).init(device),
            attention,
            head: LinearConfig::new(WIDTH, 3).init(device),
        }
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let mixed = self
            .attention
            .forward(MhaInput::self_attn(self.norm.forward(x.clone())));
        self.head.forward(x + mixed)
    }
}

/// Inputs, and targets that take another token to predict.
fn task(device: &Device) -> (Tensor<3>, Tensor<3>) {
    let (batch, length) = (4, 6);
    let numbers = Random::new(1).normals(batch * length * WIDTH);
    let x: Tensor<3> = floats(&numbers, [batch, length, WIDTH], device);
    let before = x.clone().narrow(1, 0, length - 1).narrow(2, 0, 3);
    let first = Tensor::zeros([batch, 1, 3], device);
    (x, Tensor::cat(vec![first, before], 1))
}

fn train(mut model: Model, steps: usize, device: &Device) -> (Model, Vec<f64>) {
    let (x, target) = task(device);
    let mut optimizer = AdamConfig::new().init();
    let mut losses = Vec::new();
    for _ in 0..steps {
        let loss = (model.forward(x.clone()) - target.clone())
            .powi_scalar(2)
            .mean();
        losses.push(values(loss.clone())[0]);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(0.01, model, gradients);
    }
    (model, losses)
}

#[test]
fn it_trains_and_is_loaded_as_it_was_saved() {
    on_each_backend(|device| {
        let tracked = &device.clone().autodiff();
        tracked.seed(2);
        let (model, losses) = train(Model::new(tracked), 40, tracked);
        let (first, last) = (losses[0], losses[losses.len() - 1]);
        assert!(last < 0.5 * first, "the loss went from {first} to {last}");

        let (x, _) = task(device);
        let model = model.valid();
        let expected = values(model.forward(x.clone()));
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("model");
        model.save_file(&path).expect("to be saved");
        let fresh = Model::new(device);
        assert_ne!(values(fresh.forward(x.clone())), expected);
        let loaded = fresh.load_file(&path);
        assert_bits("loaded", &values(loaded.forward(x)), &expected);
    });
}

#[test]
fn every_parameter_gets_a_gradient_under_its_own_name() {
    on_each_backend(|device| {
        let device = &device.clone().autodiff();
        let model = Model::new(device);
        let (x, target) = task(device);
        let loss = (model.forward(x) - target).powi_scalar(2).mean();
        let norms = GradientNorms::of(&model, &loss.backward());
        for name in [
            "norm.gamma",
            "norm.beta",
            "attention.query.weight",
            "attention.query.bias",
            "attention.key.weight",
            "attention.value.weight",
            "attention.value.bias",
            "attention.output.weight",
            "attention.output.bias",
            "attention.attention.sink",
            "attention.attention.learned_scale",
            "attention.bias_key",
            "attention.bias_value",
            "head.weight",
            "head.bias",
        ] {
            let norm = norms.get(name).unwrap_or_else(|| panic!("no {name}"));
            // A learned key that starts at 0 gets one from the second step on: see below.
            assert!(norm > 0.0 && norm.is_finite(), "{name}: {norm}");
        }
    });
}

#[test]
fn a_frozen_attention_stays_and_passes_gradients_on() {
    on_each_backend(|device| {
        let device = &device.clone().autodiff();
        let mut model = Model::new(device);
        model.attention = model.attention.no_grad();
        let before = values(model.attention.query.weight.val());
        let norm_before = values(model.norm.gamma.val());
        let (model, losses) = train(model, 3, device);
        assert_bits(
            "frozen",
            &values(model.attention.query.weight.val()),
            &before,
        );
        assert_ne!(values(model.norm.gamma.val()), norm_before);
        assert!(losses[2] < losses[0]);
    });
}
