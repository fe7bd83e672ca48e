//! `MultiHeadAttention`: projections around [`ScaledDotProductAttention`].

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Initializer, Module, ModuleDisplay, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

use crate::attention::{
    AttentionInput, CallModifiers, ScaledDotProductAttention, ScaledDotProductAttentionConfig,
    attention_content, modifier_methods,
};
use crate::cache::KvCache;
use crate::error::{AttentionError, check_axis, expect, value_error};
use crate::extra_keys::ExtraKeys;
use crate::mask::{Alignment, Window};
use crate::op;
use crate::qk_norm::{QkNorm, QkNormalization};
use crate::rotary::{RotaryConfig, RotaryEmbedding};
use crate::scale::Scale;

/// Configuration of [`MultiHeadAttention`].
///
/// # Example
///
/// ```
/// use layers::{MultiHeadAttentionConfig, Scale};
///
/// let attention = MultiHeadAttentionConfig::new(512, 8)
///     .with_n_kv_heads(Some(2))
///     .with_causal(true)
///     .init(&Default::default());
/// assert_eq!(attention.d_head, 64);
/// assert_eq!(attention.key.weight.dims(), [512, 2 * 64]);
/// assert_eq!(attention.attention.scale, Scale::InvSqrtDim);
/// ```
#[derive(Config, Debug)]
pub struct MultiHeadAttentionConfig {
    /// The width of the query input and of the output.
    pub d_model: usize,
    /// The number of query heads.
    pub n_heads: usize,
    /// The number of key and value heads, each shared by `n_heads / n_kv_heads` query heads.
    /// Default: `n_heads`.
    pub n_kv_heads: Option<usize>,
    /// The width of the key input. Default: `d_model`.
    pub d_key: Option<usize>,
    /// The width of the value input. Default: `d_model`.
    pub d_value: Option<usize>,
    /// The width of one head of query and key, the `d_k` of the scale. Default:
    /// `d_model / n_heads`.
    pub d_head: Option<usize>,
    /// The width of one head of value. Default: `d_head`.
    pub d_value_head: Option<usize>,
    /// Whether the query projection has a bias. Default: true.
    #[config(default = true)]
    pub query_bias: bool,
    /// Whether the key projection has a bias. Default: true.
    #[config(default = true)]
    pub key_bias: bool,
    /// Whether the value projection has a bias. Default: true.
    #[config(default = true)]
    pub value_bias: bool,
    /// Whether the output projection has a bias. Default: true.
    #[config(default = true)]
    pub output_bias: bool,
    /// How the projections are initialised. Default: uniform in `±1 / sqrt(fan in)`, as Burn's
    /// linear layer.
    #[config(
        default = "Initializer::KaimingUniform{gain: 1.0 / 3.0f64.sqrt(), fan_out_only: false}"
    )]
    pub initializer: Initializer,
    /// The factor on the scores. Default: `1 / sqrt(d_k)`.
    #[config(default = "Scale::InvSqrtDim")]
    pub scale: Scale,
    /// Whether a query sees no key after its own place. Default: false.
    #[config(default = false)]
    pub causal: bool,
    /// Where the queries stand among the keys. Default: the last query at the last key.
    #[config(default = "Alignment::BottomRight")]
    pub alignment: Alignment,
    /// How many keys before and after its place a query sees. Default: all.
    pub window: Option<Window>,
    /// `c` in `c tanh(score / c)`. Default: none.
    pub softcap: Option<f64>,
    /// The probability of dropping a weight in training. Default: 0.
    #[config(default = 0.0)]
    pub dropout: f64,
    /// Whether each query head learns a sink. Default: false.
    #[config(default = false)]
    pub sink: bool,
    /// Whether a fixed sink of logit 0 joins the softmax. Default: false.
    #[config(default = false)]
    pub quiet_softmax: bool,
    /// Whether scores fall linearly with the distance. Default: false.
    #[config(default = false)]
    pub alibi: bool,
    /// Turns queries and keys by their positions. Default: none.
    pub rotary: Option<RotaryConfig>,
    /// Normalises queries and keys. Default: none.
    pub qk_norm: Option<QkNorm>,
    /// Whether one learned key and value is seen by every query, as PyTorch's `add_bias_kv`; it
    /// starts at 0. Default: false.
    #[config(default = false)]
    pub add_bias_kv: bool,
    /// Whether a key and value of zeros is seen by every query, as PyTorch's `add_zero_attn`.
    /// Default: false.
    #[config(default = false)]
    pub add_zero_attn: bool,
}

/// Multi-head attention ([Attention Is All You Need](https://arxiv.org/abs/1706.03762), section
/// 3.2.2): projections of query, key and value to heads, [`ScaledDotProductAttention`] on them,
/// and a projection back.
///
/// Its parameters have the names of burn-nn's module, so that records of that load. On the CPU
/// backends the `kernels` crate makes the products of f32 and f64 projections: a row has the same
/// bits alone and in any batch, on any number of threads.
///
/// Created with [`MultiHeadAttentionConfig`].
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct MultiHeadAttention {
    /// `d_model` to `n_heads * d_head`.
    pub query: Linear,
    /// `d_key` to `n_kv_heads * d_head`.
    pub key: Linear,
    /// `d_value` to `n_kv_heads * d_value_head`.
    pub value: Linear,
    /// `n_heads * d_value_head` to `d_model`.
    pub output: Linear,
    /// What happens between the projections.
    pub attention: ScaledDotProductAttention,
    /// Turns queries and keys by their positions.
    #[module(skip)]
    pub rotary: Option<RotaryEmbedding>,
    /// Normalises queries and keys.
    pub qk_norm: Option<QkNormalization>,
    /// The learned key `[n_kv_heads * d_head]` that every query sees.
    pub bias_key: Option<Param<Tensor<1>>>,
    /// The learned value `[n_kv_heads * d_value_head]` that every query sees.
    pub bias_value: Option<Param<Tensor<1>>>,
    /// Whether every query sees a key and value of zeros.
    pub zero_attn: bool,
    /// The width of the query input and of the output.
    pub d_model: usize,
    /// The number of query heads.
    pub n_heads: usize,
    /// The number of key and value heads.
    pub n_kv_heads: usize,
    /// The width of one head of query and key.
    pub d_head: usize,
    /// The width of one head of value.
    pub d_value_head: usize,
}

/// The input of one call of [`MultiHeadAttention`].
///
/// # Example
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use layers::{MhaInput, MultiHeadAttentionConfig};
///
/// let device = Device::default();
/// let attention = MultiHeadAttentionConfig::new(8, 2).init(&device);
/// let x = Tensor::<3>::ones([2, 3, 8], &device);
/// let memory = Tensor::<3>::ones([2, 5, 8], &device);
/// let itself = attention.forward(MhaInput::self_attn(x.clone()));
/// let across = attention.forward(MhaInput::cross_attn(x, memory).key_lengths([5, 4]));
/// assert_eq!(itself.dims(), [2, 3, 8]);
/// assert_eq!(across.dims(), [2, 3, 8]);
/// ```
#[derive(Debug)]
pub struct MhaInput<'a> {
    query: Tensor<3>,
    key: Tensor<3>,
    value: Tensor<3>,
    modifiers: CallModifiers,
    positions: Option<Positions>,
    cache: Option<&'a mut KvCache>,
}

/// The positions of queries and keys, one list for all samples or one for each.
#[derive(Clone, Debug)]
struct Positions {
    query: Vec<Vec<i64>>,
    key: Vec<Vec<i64>>,
}

impl<'a> MhaInput<'a> {
    /// Query, key and value from three tensors.
    ///
    /// # Shapes
    ///
    /// - query: `[batch, query_len, d_model]`
    /// - key: `[batch, key_len, d_key]`
    /// - value: `[batch, key_len, d_value]`
    pub fn new(query: Tensor<3>, key: Tensor<3>, value: Tensor<3>) -> Self {
        Self {
            query,
            key,
            value,
            modifiers: CallModifiers::default(),
            positions: None,
            cache: None,
        }
    }

    /// One tensor `[batch, length, d_model]` as query, key and value.
    pub fn self_attn(tensor: Tensor<3>) -> Self {
        Self::new(tensor.clone(), tensor.clone(), tensor)
    }

    /// Queries `[batch, query_len, d_model]` over a memory `[batch, key_len, d_key]` that is both
    /// key and value.
    pub fn cross_attn(query: Tensor<3>, memory: Tensor<3>) -> Self {
        Self::new(query, memory.clone(), memory)
    }

    modifier_methods!();

    /// Where the tokens stand, for the rotary embedding: one list for all samples or one for each.
    /// Without this, keys stand at 0, 1, 2 and so on behind what the cache was fed, and queries
    /// where the layer's alignment says.
    pub fn positions(
        mut self,
        query: impl Into<Vec<Vec<i64>>>,
        key: impl Into<Vec<Vec<i64>>>,
    ) -> Self {
        self.positions = Some(Positions {
            query: query.into(),
            key: key.into(),
        });
        self
    }

    /// Attends over what the cache keeps too, and adds the keys and values of this call to it.
    ///
    /// Masks, biases, key lengths and key segments then count all keys, those kept first. Queries
    /// stand behind the kept positions, whatever the lengths.
    pub fn cache(mut self, cache: &'a mut KvCache) -> Self {
        self.cache = Some(cache);
        self
    }
}

/// What [`MultiHeadAttention::forward_with_weights`] gives.
#[derive(Clone, Debug)]
pub struct MhaOutput {
    /// `[batch, query_len, d_model]`, equal to that of the plain forward.
    pub context: Tensor<3>,
    /// `[batch, n_heads, query_len, key_len]`, before dropout.
    pub weights: Tensor<4>,
    /// `[batch, n_heads, query_len]`, the logarithm of each row's softmax denominator.
    pub logsumexp: Tensor<3>,
}

impl MhaOutput {
    /// The weights averaged over the heads, `[batch, query_len, key_len]`, as PyTorch's
    /// `average_attn_weights`.
    pub fn average_weights(&self) -> Tensor<3> {
        self.weights.clone().mean_dim(1).squeeze_dim(1)
    }
}

impl MultiHeadAttentionConfig {
    /// The module on a device.
    ///
    /// # Panics
    ///
    /// With the message of the error that [`try_init`](Self::try_init) returns.
    pub fn init(&self, device: &Device) -> MultiHeadAttention {
        expect(self.try_init(device))
    }

    /// The module on a device, or what is wrong with the configuration.
    ///
    /// # Errors
    ///
    /// If a size is 0, `n_heads` is not a multiple of `n_kv_heads`, `d_model` is not a multiple of
    /// `n_heads` and no `d_head` is given, or an option of the attention itself is refused.
    ///
    /// ```
    /// use layers::MultiHeadAttentionConfig;
    ///
    /// let error = MultiHeadAttentionConfig::new(8, 4)
    ///     .with_n_kv_heads(Some(3))
    ///     .try_init(&Default::default())
    ///     .unwrap_err();
    /// assert_eq!(error.to_string(), "n_heads 4 is not divisible by n_kv_heads 3");
    /// ```
    pub fn try_init(&self, device: &Device) -> Result<MultiHeadAttention, AttentionError> {
        let n_kv_heads = self.n_kv_heads.unwrap_or(self.n_heads);
        for (argument, size) in [
            ("d_model", Some(self.d_model)),
            ("n_heads", Some(self.n_heads)),
            ("n_kv_heads", self.n_kv_heads),
            ("d_key", self.d_key),
            ("d_value", self.d_value),
            ("d_head", self.d_head),
            ("d_value_head", self.d_value_head),
        ] {
            if size == Some(0) {
                return Err(value_error(argument, 0, "but must be at least 1"));
            }
        }
        let d_head = match self.d_head {
            Some(d_head) => d_head,
            None => divided("d_model", self.d_model, "n_heads", self.n_heads)?,
        };
        divided("n_heads", self.n_heads, "n_kv_heads", n_kv_heads)?;
        let d_value_head = self.d_value_head.unwrap_or(d_head);
        let attention = ScaledDotProductAttentionConfig {
            scale: self.scale,
            causal: self.causal,
            alignment: self.alignment,
            window: self.window,
            softcap: self.softcap,
            dropout: self.dropout,
            sink_heads: self.sink.then_some(self.n_heads),
            quiet_softmax: self.quiet_softmax,
            alibi: self.alibi,
        };
        if let (Some(QkNorm::L2), false) = (
            self.qk_norm,
            matches!(self.scale, Scale::Fixed(_) | Scale::Learned { .. }),
        ) {
            return Err(AttentionError::Contradiction {
                first: "qk_norm l2".into(),
                second: format!("scale {}", self.scale),
                reason: "scores of unit vectors are at most 1, so their scale must be a \
                         temperature, fixed or learned",
            });
        }
        let rotary = self.rotary.as_ref();
        let rotary = rotary.map(|rotary| rotary.try_init(d_head)).transpose()?;
        let zeros = |width: usize| {
            self.add_bias_kv
                .then(|| Param::from_tensor(Tensor::zeros([n_kv_heads * width], device)))
        };
        let linear = |input: Option<usize>, output: usize, bias: bool| {
            LinearConfig::new(input.unwrap_or(self.d_model), output)
                .with_bias(bias)
                .with_initializer(self.initializer.clone())
                .init(device)
        };
        Ok(MultiHeadAttention {
            attention: attention.try_init(device)?,
            rotary,
            qk_norm: self
                .qk_norm
                .map(|norm| QkNormalization::new(norm, d_head, device)),
            bias_key: zeros(d_head),
            bias_value: zeros(d_value_head),
            zero_attn: self.add_zero_attn,
            query: linear(None, self.n_heads * d_head, self.query_bias),
            key: linear(self.d_key, n_kv_heads * d_head, self.key_bias),
            value: linear(self.d_value, n_kv_heads * d_value_head, self.value_bias),
            output: linear(
                Some(self.n_heads * d_value_head),
                self.d_model,
                self.output_bias,
            ),
            d_model: self.d_model,
            n_heads: self.n_heads,
            n_kv_heads,
            d_head,
            d_value_head,
        })
    }
}

fn divided(
    dividend: &'static str,
    size: usize,
    divisor: &'static str,
    parts: usize,
) -> Result<usize, AttentionError> {
    if !size.is_multiple_of(parts) {
        return Err(AttentionError::NotDivisible {
            dividend,
            size,
            divisor,
            parts,
        });
    }
    Ok(size / parts)
}

impl MultiHeadAttention {
    /// The context.
    ///
    /// # Shapes
    ///
    /// - query: `[batch, query_len, d_model]`
    /// - key: `[batch, key_len, d_key]`
    /// - value: `[batch, key_len, d_value]`
    /// - output: `[batch, query_len, d_model]`
    ///
    /// # Panics
    ///
    /// If a shape, a length or an element type does not fit; the message names the argument, the
    /// axis and both sizes.
    ///
    /// # Example
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use layers::{MhaInput, MultiHeadAttentionConfig};
    ///
    /// let device = Device::default();
    /// let attention = MultiHeadAttentionConfig::new(16, 4).init(&device);
    /// let x = Tensor::<3>::zeros([2, 7, 16], &device);
    /// assert_eq!(attention.forward(MhaInput::self_attn(x)).dims(), [2, 7, 16]);
    /// ```
    pub fn forward(&self, input: MhaInput) -> Tensor<3> {
        let heads = expect(self.project(input));
        self.join(self.attention.forward(heads))
    }

    /// Context, weights and logsumexp.
    ///
    /// The context is that of [`forward`](Self::forward), bit for bit. The weights take memory
    /// quadratic in the length.
    ///
    /// # Panics
    ///
    /// As [`forward`](Self::forward).
    ///
    /// # Example
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use layers::{MhaInput, MultiHeadAttentionConfig};
    ///
    /// let device = Device::default();
    /// let attention = MultiHeadAttentionConfig::new(16, 4).init(&device);
    /// let x = Tensor::<3>::zeros([2, 7, 16], &device);
    /// let output = attention.forward_with_weights(MhaInput::self_attn(x));
    /// assert_eq!(output.weights.dims(), [2, 4, 7, 7]);
    /// assert_eq!(output.average_weights().dims(), [2, 7, 7]);
    /// ```
    pub fn forward_with_weights(&self, input: MhaInput) -> MhaOutput {
        let heads = expect(self.project(input));
        let output = self.attention.forward_with_weights(heads);
        MhaOutput {
            context: self.join(output.context),
            weights: output.weights,
            logsumexp: output.logsumexp,
        }
    }

    /// The heads of query, key and value, normalised, rotated and joined with what a cache keeps.
    fn project(&self, input: MhaInput) -> Result<AttentionInput, AttentionError> {
        let MhaInput {
            query,
            key,
            value,
            mut modifiers,
            positions,
            cache,
        } = input;
        let [batch, query_len, d_model] = query.dims();
        check_width("query", "d_model", d_model, &self.query)?;
        let kept = cache.as_ref().and_then(|cache| cache.fixed_content());
        if kept.is_none() {
            let [key_batch, key_len, d_key] = key.dims();
            let [value_batch, value_len, d_value] = value.dims();
            check_width("key", "d_key", d_key, &self.key)?;
            check_width("value", "d_value", d_value, &self.value)?;
            check_axis("key", 0, "batch", key_batch, batch, "query")?;
            check_axis("value", 0, "batch", value_batch, batch, "query")?;
            check_axis("value", 1, "key_len", value_len, key_len, "key")?;
        }
        if let Some(cache) = &cache {
            self.check_cache(cache)?;
        }
        let key_len = kept
            .as_ref()
            .map_or(key.dims()[1], |(key, _)| key.dims()[2]);
        let positions = match (&self.rotary, positions) {
            (None, _) => None,
            (Some(_), Some(positions)) => Some(positions),
            (Some(_), None) => {
                Some(self.positions([query_len, key_len], cache.as_deref(), &modifiers))
            }
        };

        let mut query = heads(op::project(&self.query, query), self.n_heads);
        if let Some(norm) = &self.qk_norm {
            query = norm.normalize_query(query);
        }
        if let (Some(rotary), Some(positions)) = (&self.rotary, &positions) {
            query = rotary.try_apply("query", query, &positions.query)?;
        }
        let (key, value) = match kept {
            Some(kept) => kept,
            None => {
                let mut key = heads(op::project(&self.key, key), self.n_kv_heads);
                if let Some(norm) = &self.qk_norm {
                    key = norm.normalize_key(key);
                }
                if let (Some(rotary), Some(positions)) = (&self.rotary, &positions) {
                    key = rotary.try_apply("key", key, &positions.key)?;
                }
                let value = heads(op::project(&self.value, value), self.n_kv_heads);
                match cache {
                    None => (key, value),
                    Some(cache) => {
                        let cached = cache.append(key, value)?;
                        if !cache.is_fixed() {
                            let own = match self.attention.alignment {
                                Alignment::Offset(offset) => offset,
                                _ => 0,
                            };
                            modifiers.alignment = Some(Alignment::Offset(cached.past as i64 + own));
                        }
                        (cached.key, cached.value)
                    }
                }
            }
        };
        modifiers.extra_keys = self.extra_keys(batch, &key);
        modifiers.d_model = Some(self.d_model);
        Ok(AttentionInput::new(query, key, value).with_modifiers(modifiers))
    }

    /// Where queries and keys stand if the caller does not say.
    fn positions(
        &self,
        [query_len, key_len]: [usize; 2],
        cache: Option<&KvCache>,
        modifiers: &CallModifiers,
    ) -> Positions {
        let run = |start: i64, length: usize| (0..length as i64).map(|i| start + i).collect();
        let own = match self.attention.alignment {
            Alignment::Offset(offset) => offset,
            _ => 0,
        };
        if let Some(cache) = cache.filter(|cache| !cache.is_fixed()) {
            let fed = cache.position() as i64;
            return Positions {
                query: vec![run(fed + own, query_len)],
                key: vec![run(fed, key_len)],
            };
        }
        let query = match self.attention.alignment {
            Alignment::TopLeft | Alignment::Offset(_) => vec![run(own, query_len)],
            Alignment::BottomRight => vec![run(key_len as i64 - query_len as i64, query_len)],
            Alignment::ValidBottomRight => {
                let lengths = |lengths: &Option<Vec<usize>>, full: usize, samples: usize| {
                    lengths.clone().unwrap_or_else(|| vec![full; samples])
                };
                let samples = [&modifiers.key_lengths, &modifiers.query_lengths]
                    .iter()
                    .find_map(|lengths| lengths.as_ref().map(Vec::len))
                    .unwrap_or(1);
                let keys = lengths(&modifiers.key_lengths, key_len, samples);
                let queries = lengths(&modifiers.query_lengths, query_len, samples);
                keys.iter()
                    .zip(&queries)
                    .map(|(keys, queries)| run(*keys as i64 - *queries as i64, query_len))
                    .collect()
            }
        };
        Positions {
            query,
            key: vec![run(0, key_len)],
        }
    }

    /// An error if the cache forgets what the layer may still look at.
    fn check_cache(&self, cache: &KvCache) -> Result<(), AttentionError> {
        let Some(kept) = cache.window() else {
            return Ok(());
        };
        // A query that stands before its own key looks further back by as much.
        let behind = match self.attention.alignment {
            Alignment::Offset(offset) => offset.min(0).unsigned_abs() as usize,
            _ => 0,
        };
        match self.attention.window.and_then(|window| window.before) {
            Some(before) if before.saturating_add(behind) <= kept => Ok(()),
            window => Err(AttentionError::Contradiction {
                first: format!("a cache rolling over {kept} positions"),
                second: match window {
                    Some(before) if behind > 0 => format!(
                        "a window of {before} keys before a place {behind} behind the newest key"
                    ),
                    Some(before) => format!("a window of {before} keys before"),
                    None => "a layer without a window".into(),
                },
                reason: "the layer may look at keys that the cache has forgotten",
            }),
        }
    }

    /// The keys that every query sees.
    fn extra_keys(&self, batch: usize, key: &Tensor<4>) -> Option<ExtraKeys> {
        let mut parts = Vec::new();
        if let (Some(key), Some(value)) = (&self.bias_key, &self.bias_value) {
            let head = |bias: &Param<Tensor<1>>, width: usize| {
                bias.val().reshape([1, self.n_kv_heads, 1, width]).expand([
                    batch,
                    self.n_kv_heads,
                    1,
                    width,
                ])
            };
            parts.push((head(key, self.d_head), head(value, self.d_value_head)));
        }
        if self.zero_attn {
            let zeros = |width: usize| {
                let options = (&key.device(), key.dtype());
                Tensor::zeros([batch, self.n_kv_heads, 1, width], options)
            };
            parts.push((zeros(self.d_head), zeros(self.d_value_head)));
        }
        let (keys, values): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        (!keys.is_empty()).then(|| ExtraKeys {
            key: Tensor::cat(keys, 2),
            value: Tensor::cat(values, 2),
        })
    }

    /// `[batch, heads, length, width]` back to `[batch, length, d_model]`.
    fn join(&self, context: Tensor<4>) -> Tensor<3> {
        let [batch, heads, length, width] = context.dims();
        let context = context
            .swap_dims(1, 2)
            .reshape([batch, length, heads * width]);
        op::project(&self.output, context)
    }
}

/// An error unless an input has the width that its projection takes.
fn check_width(
    argument: &'static str,
    name: &'static str,
    size: usize,
    projection: &Linear,
) -> Result<(), AttentionError> {
    let width = projection.weight.dims()[0];
    check_axis(argument, 2, name, size, width, "the projection")
}

/// `[batch, length, heads * width]` to `[batch, heads, length, width]`.
fn heads(tensor: Tensor<3>, heads: usize) -> Tensor<4> {
    let [batch, length, width] = tensor.dims();
    tensor
        .reshape([batch, length, heads, width / heads])
        .swap_dims(1, 2)
}

impl ModuleDisplay for MultiHeadAttention {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new()
            .with_new_line_after_attribute(false)
            .optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let mut content = content
            .add("d_model", &self.d_model)
            .add("n_heads", &self.n_heads);
        if self.n_kv_heads != self.n_heads {
            content = content.add("n_kv_heads", &self.n_kv_heads);
        }
        content = content.add("d_head", &self.d_head);
        if self.d_value_head != self.d_head {
            content = content.add("d_value_head", &self.d_value_head);
        }
        attention_content(&self.attention, content).optional()
    }
}
