//! The model, and the training step that measures.

use std::sync::Arc;

use burn::config::Config;
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, ExecutionError, Int, Tensor};
use burn::train::metric::{AccuracyInput, Adaptor, ItemLazy, LossInput};
use burn::train::{InferenceStep, TrainOutput, TrainStep};
use gradnorm::{GradientNormInput, GradientNorms};
use layers::metrics::AttentionMetricInput;
use layers::{LayerStatistics, MhaInput, MultiHeadAttention, MultiHeadAttentionConfig, Probes};

use crate::data::{Batch, LENGTH, TOKENS};

/// The sizes of a [`Model`].
#[derive(Config, Debug)]
pub struct ModelConfig {
    /// The width. Default: 32.
    #[config(default = 32)]
    pub d_model: usize,
    /// The number of heads. Default: 2.
    #[config(default = 2)]
    pub heads: usize,
    /// The number of blocks. Default: 2.
    #[config(default = 2)]
    pub blocks: usize,
}

/// Blocks of attention over embedded tokens, read out at the last one.
#[derive(Module, Debug)]
pub struct Model {
    tokens: Embedding,
    places: Embedding,
    blocks: Vec<Block>,
    head: Linear,
}

/// Attention with a residual.
#[derive(Module, Debug)]
struct Block {
    norm: LayerNorm,
    attention: MultiHeadAttention,
}

impl ModelConfig {
    /// The model on a device.
    pub fn init(&self, device: &Device) -> Model {
        let attention = MultiHeadAttentionConfig::new(self.d_model, self.heads);
        let block = |_| Block {
            norm: LayerNormConfig::new(self.d_model).init(device),
            attention: attention.init(device),
        };
        Model {
            tokens: EmbeddingConfig::new(2 * TOKENS, self.d_model).init(device),
            places: EmbeddingConfig::new(LENGTH, self.d_model).init(device),
            blocks: (0..self.blocks).map(block).collect(),
            head: LinearConfig::new(self.d_model, TOKENS).init(device),
        }
    }
}

impl Model {
    /// `[batch, LENGTH]` to `[batch, TOKENS]`.
    pub fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<2> {
        let places = Tensor::arange(0..LENGTH as i64, &tokens.device()).unsqueeze();
        let x = self.tokens.forward(tokens) + self.places.forward(places);
        let x = self.blocks.iter().fold(x, |x, block| {
            let input = MhaInput::self_attn(block.norm.forward(x.clone()));
            x + block.attention.forward(input)
        });
        self.head.forward(x.narrow(1, LENGTH - 1, 1).squeeze_dim(1))
    }

    fn step(&self, batch: Batch) -> Step {
        let logits = self.forward(batch.tokens);
        let loss = CrossEntropyLossConfig::new().init(&logits.device());
        Step {
            loss: loss.forward(logits.clone(), batch.answers.clone()),
            logits,
            answers: batch.answers,
            norms: GradientNormInput::default(),
            attention: AttentionMetricInput::default(),
        }
    }
}

/// What a step gives to the metrics.
pub struct Step {
    loss: Tensor<1>,
    logits: Tensor<2>,
    answers: Tensor<1, Int>,
    /// Of a training step.
    norms: GradientNormInput,
    /// Of a training step.
    attention: AttentionMetricInput,
}

impl TrainStep for Model {
    type Input = Batch;
    type Output = Step;

    fn step(&self, batch: Batch) -> TrainOutput<Step> {
        let probes = Probes::of(self);
        probes.on();
        let mut step = self.step(batch);
        let gradients = step.loss.backward();
        step.norms = GradientNormInput::new(GradientNorms::of(self, &gradients));
        let attention: Arc<[LayerStatistics]> = probes.take().into();
        step.attention = AttentionMetricInput::new(attention);
        TrainOutput::new(self, gradients, step)
    }
}

impl InferenceStep for Model {
    type Input = Batch;
    type Output = Step;

    fn step(&self, batch: Batch) -> Step {
        self.step(batch)
    }
}

impl ItemLazy for Step {
    fn sync(self) -> Result<Self, ExecutionError> {
        self.loss.device().flush()?;
        Ok(Self {
            loss: self.loss.without_autodiff(),
            logits: self.logits.without_autodiff(),
            answers: self.answers.without_autodiff(),
            ..self
        })
    }
}

impl Adaptor<LossInput> for Step {
    fn adapt(&self) -> LossInput {
        LossInput::new(self.loss.clone())
    }
}

impl Adaptor<AccuracyInput> for Step {
    fn adapt(&self) -> AccuracyInput {
        AccuracyInput::new(self.logits.clone(), self.answers.clone())
    }
}

impl Adaptor<GradientNormInput> for Step {
    fn adapt(&self) -> GradientNormInput {
        self.norms.clone()
    }
}

impl Adaptor<AttentionMetricInput> for Step {
    fn adapt(&self) -> AttentionMetricInput {
        self.attention.clone()
    }
}
