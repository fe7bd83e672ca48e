//! The model: embeddings, attention blocks, and a projection to the answer.

use std::sync::Mutex;

use burn::config::Config;
use burn::module::{Module, Param};
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Tensor, TensorData};
use clap::ValueEnum;
use layers::{AttentionError, MhaInput, MultiHeadAttention, MultiHeadAttentionConfig, Scale};
use serde::{Deserialize, Serialize};

use crate::data::{Batch, KEYS, TOKENS, VALUES};
use crate::random::{Stream, generator, normals};

/// Configuration of [`Model`].
///
/// # Example
///
/// ```
/// use layers::Scale;
/// use train::{Init, ModelConfig};
///
/// let config = ModelConfig::new(64).with_scale(Scale::Unscaled);
/// assert_eq!(config.d_model(), 64);
/// let model = config.try_init(Init::Unit, 0, &Default::default()).unwrap();
/// assert_eq!(model.blocks[0].attention.query.weight.dims(), [64, 64]);
/// ```
#[derive(Config, Debug)]
pub struct ModelConfig {
    /// The width of one head.
    pub d_k: usize,
    /// The number of heads. Default: 1.
    #[config(default = 1)]
    pub heads: usize,
    /// The number of attention blocks. Default: 1.
    #[config(default = 1)]
    pub layers: usize,
    /// The factor on the scores. Default: `1 / sqrt(d_k)`.
    #[config(default = "Scale::InvSqrtDim")]
    pub scale: Scale,
}

/// How a model starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Init {
    /// Unit variance throughout: embeddings N(0, 1), projections N(0, 1 / fan in), drawn on the
    /// host. Queries and keys then have unit variance at step 0, and raw scores variance `d_k`.
    #[default]
    Unit,
    /// [`Unit`](Self::Unit) with query and key projections smaller by `d_k^(1/4)` each, so that
    /// raw scores, not queries and keys, start with unit variance.
    UnitScores,
    /// Burn's own initialisers: projections uniform in ±1 / sqrt(fan in), a third of that
    /// variance, drawn on the device.
    Burn,
}

/// Answers a [`Batch`].
///
/// A pair is one token, the sum of its key's and its value's embedding; the question is a token
/// that is its key's embedding alone. Each [`Block`] adds attention to its tokens. What the last
/// one leaves at the question is projected to a logit for each value.
#[derive(Module, Debug)]
pub struct Model {
    /// `[KEYS, d_model]`.
    pub keys: Embedding,
    /// `[VALUES, d_model]`.
    pub values: Embedding,
    /// One after the other.
    pub blocks: Vec<Block>,
    /// `d_model` to `VALUES`, a matrix of its own: not tied to the values' embedding.
    pub answer: Linear,
}

/// A residual attention block, normalised before the attention.
#[derive(Module, Debug)]
pub struct Block {
    /// Brings each token to unit variance.
    pub norm: LayerNorm,
    /// Its projections have no bias, so that the gradient of `query` is that of its weights.
    pub attention: MultiHeadAttention,
}

impl ModelConfig {
    /// The width of a token.
    pub fn d_model(&self) -> usize {
        self.d_k * self.heads
    }

    /// The model of a seed on a device.
    ///
    /// # Errors
    ///
    /// If a size is 0, or a fixed scale is not finite.
    pub fn try_init(
        &self,
        init: Init,
        seed: u64,
        device: &Device,
    ) -> Result<Model, AttentionError> {
        // A device's seed may be shared by all threads.
        static SEED: Mutex<()> = Mutex::new(());
        let _alone = SEED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        device.seed(seed);
        let model = self.burn_init(device)?;
        match init {
            Init::Unit => Ok(model.unit_variance(1.0, seed, device)),
            Init::UnitScores => {
                let smaller = (self.d_k as f64).powf(-0.25);
                Ok(model.unit_variance(smaller, seed, device))
            }
            // Cloning draws what Burn has put off until first use.
            Init::Burn => Ok(model.clone()),
        }
    }

    fn burn_init(&self, device: &Device) -> Result<Model, AttentionError> {
        let width = self.d_model();
        let attention = MultiHeadAttentionConfig::new(width, self.heads)
            .with_query_bias(false)
            .with_key_bias(false)
            .with_value_bias(false)
            .with_output_bias(false)
            .with_scale(self.scale);
        let block = |_| {
            Ok(Block {
                norm: LayerNormConfig::new(width).init(device),
                attention: attention.try_init(device)?,
            })
        };
        Ok(Model {
            keys: EmbeddingConfig::new(KEYS, width).init(device),
            values: EmbeddingConfig::new(VALUES, width).init(device),
            blocks: (0..self.layers).map(block).collect::<Result<_, _>>()?,
            answer: LinearConfig::new(width, VALUES)
                .with_bias(false)
                .init(device),
        })
    }
}

impl Model {
    /// The logits `[batch, VALUES]`.
    pub fn forward(&self, batch: &Batch) -> Tensor<2> {
        self.forward_with(batch, |_, input| input)
    }

    /// The logits, with `call` applied to each block's attention input first: to attach a probe
    /// or to add a bias.
    ///
    /// The last block's output is read at the question only, so the question is its only query;
    /// a block before it has a query for every token.
    pub fn forward_with(
        &self,
        batch: &Batch,
        call: impl Fn(usize, MhaInput) -> MhaInput,
    ) -> Tensor<2> {
        self.pass(batch, |place, attention, input| {
            attention.forward(call(place, input))
        })
    }

    /// The weights of each block's attention, `[batch, heads, queries, keys]`.
    pub fn weights(&self, batch: &Batch) -> Vec<Tensor<4>> {
        let mut weights = Vec::with_capacity(self.blocks.len());
        self.pass(batch, |_, attention, input| {
            let output = attention.forward_with_weights(input);
            weights.push(output.weights);
            output.context
        });
        weights
    }

    /// The logits, where `attend` does what an attention does with its input.
    fn pass(
        &self,
        batch: &Batch,
        mut attend: impl FnMut(usize, &MultiHeadAttention, MhaInput) -> Tensor<3>,
    ) -> Tensor<2> {
        let pairs = self.keys.forward(batch.keys.clone()) // [batch, PAIRS, d_model]
            + self.values.forward(batch.values.clone());
        let question = self.keys.forward(batch.question.clone()); // [batch, 1, d_model]
        let mut tokens = Tensor::cat(vec![pairs, question], 1); // [batch, TOKENS, d_model]
        for (place, block) in self.blocks.iter().enumerate() {
            let last = place + 1 == self.blocks.len();
            let from = if last { TOKENS - 1 } else { 0 };
            tokens = block.pass(tokens, from, |attention, input| {
                attend(place, attention, input)
            });
        }
        self.answer.forward(tokens.squeeze_dim::<2>(1)) // [batch, VALUES]
    }

    /// The same structure with weights drawn on the host; those of queries and keys times `factor`.
    fn unit_variance(mut self, factor: f64, seed: u64, device: &Device) -> Self {
        let generator = &mut generator(seed, Stream::Weights);
        let width = self.keys.weight.dims()[1];
        let fan_in = (width as f64).sqrt().recip();
        let mut redraw = |weight: &mut Param<Tensor<2>>, std| {
            let shape = weight.dims();
            let draws = normals(generator, std, shape[0] * shape[1]);
            *weight = Param::from_data(TensorData::new(draws, shape), device);
        };
        redraw(&mut self.keys.weight, 1.0);
        redraw(&mut self.values.weight, 1.0);
        for block in &mut self.blocks {
            let attention = &mut block.attention;
            for (projection, std) in [
                (&mut attention.query, fan_in * factor),
                (&mut attention.key, fan_in * factor),
                (&mut attention.value, fan_in),
                (&mut attention.output, fan_in),
            ] {
                redraw(&mut projection.weight, std);
            }
        }
        redraw(&mut self.answer.weight, fan_in);
        self
    }
}

impl Block {
    /// Tokens from place `from` on, plus what they read from the tokens before `from`, or from all
    /// tokens if that is 0.
    ///
    /// # Shapes
    ///
    /// - tokens: `[batch, length, d_model]`
    /// - output: `[batch, length - from, d_model]`
    pub fn forward(
        &self,
        tokens: Tensor<3>,
        from: usize,
        call: impl FnOnce(MhaInput) -> MhaInput,
    ) -> Tensor<3> {
        self.pass(tokens, from, |attention, input| {
            attention.forward(call(input))
        })
    }

    /// The same, where `attend` does what the attention does with its input.
    fn pass(
        &self,
        tokens: Tensor<3>,
        from: usize,
        attend: impl FnOnce(&MultiHeadAttention, MhaInput) -> Tensor<3>,
    ) -> Tensor<3> {
        let normed = self.norm.forward(tokens.clone());
        let queries = normed.clone().slice_dim(1, from..);
        // The question asks the pairs; itself among the keys, it would mostly read itself.
        let keys = if from == 0 {
            normed
        } else {
            normed.slice_dim(1, ..from)
        };
        let input = MhaInput::cross_attn(queries, keys);
        tokens.slice_dim(1, from..) + attend(&self.attention, input)
    }
}
