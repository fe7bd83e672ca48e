//! A transformer with the choices that the tests vary, and a task for it.

use burn::module::Module;
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{Device, Distribution, Tensor};
use layers::{
    AttentionInput, Doctor, Finding, LayerStatistics, MhaInput, MultiHeadAttention,
    MultiHeadAttentionConfig, Probes, ScaledDotProductAttention, ScaledDotProductAttentionConfig,
};

/// Blocks of attention with residuals, and a head.
#[derive(Module, Debug)]
pub struct Model {
    pub blocks: Vec<Block>,
    head: Linear,
}

/// Normalisation, attention, residual.
#[derive(Module, Debug)]
pub struct Block {
    norm: LayerNorm,
    pub attention: MultiHeadAttention,
}

impl Model {
    pub fn new(blocks: usize, attention: &MultiHeadAttentionConfig, device: &Device) -> Self {
        let width = attention.d_model;
        let block = || Block {
            norm: LayerNormConfig::new(width).init(device),
            attention: attention.init(device),
        };
        Self {
            blocks: (0..blocks).map(|_| block()).collect(),
            head: LinearConfig::new(width, width).init(device),
        }
    }

    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let mixed = self.blocks.iter().fold(x, |x, block| {
            let input = MhaInput::self_attn(block.norm.forward(x.clone()));
            x + block.attention.forward(input)
        });
        self.head.forward(mixed)
    }

    /// How far the outputs are from the token before.
    pub fn loss(&self, x: Tensor<3>) -> Tensor<1> {
        let [batch, length, width] = x.dims();
        let before = x.clone().narrow(1, 0, length - 1);
        let first = Tensor::zeros([batch, 1, width], &x.device());
        (self.forward(x) - Tensor::cat(vec![first, before], 1))
            .powi_scalar(2)
            .mean()
    }
}

/// Attention on heads with projections of the user's own.
#[derive(Module, Debug)]
pub struct Plain {
    query: Linear,
    key: Linear,
    value: Linear,
    pub attention: ScaledDotProductAttention,
}

impl Plain {
    pub fn new(width: usize, attention: &ScaledDotProductAttentionConfig, device: &Device) -> Self {
        let linear = || LinearConfig::new(width, width).init(device);
        Self {
            query: linear(),
            key: linear(),
            value: linear(),
            attention: attention.init(device),
        }
    }

    /// With the queries multiplied by a number before the layer.
    pub fn forward(&self, x: Tensor<3>, heads: usize, factor: f64) -> Tensor<4> {
        let [batch, length, width] = x.dims();
        let split = |projection: &Linear| {
            projection
                .forward(x.clone())
                .reshape([batch, length, heads, width / heads])
                .swap_dims(1, 2)
        };
        let query = split(&self.query) * factor;
        let input = AttentionInput::new(query, split(&self.key), split(&self.value));
        self.attention.forward(input)
    }
}

/// Tokens of unit variance.
pub fn tokens(shape: [usize; 3], device: &Device) -> Tensor<3> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), device)
}

/// Trains for some steps; what was measured at each of them.
pub fn train(
    mut model: Model,
    shape: [usize; 3],
    steps: usize,
    lr: f64,
    device: &Device,
) -> (Model, Vec<Vec<LayerStatistics>>) {
    let mut optimizer = AdamConfig::new().init();
    let probes = Probes::of(&model);
    let mut measured = Vec::new();
    for _ in 0..steps {
        probes.on();
        let gradients = model.loss(tokens(shape, device)).backward();
        measured.push(probes.take());
        let gradients = GradientsParams::from_grads(gradients, &model);
        model = optimizer.step(lr, model, gradients);
    }
    (model, measured)
}

/// What the doctor says after these steps.
pub fn findings(steps: &[Vec<LayerStatistics>]) -> Vec<Finding> {
    let mut doctor = Doctor::new();
    for layers in steps {
        doctor.observe(layers);
    }
    doctor.findings()
}
