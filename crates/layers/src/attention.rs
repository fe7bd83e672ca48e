//! `ScaledDotProductAttention`: checks a call, resolves it to numbers, and has it computed.

use core::fmt;
use std::sync::Arc;

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::{Device, Tensor};

use crate::error::{AttentionError, check_axis, expect, value_error};
use crate::extra_keys::ExtraKeys;
use crate::mask::{Alignment, Mask, Window, check_score_shape};
use crate::op::{self, AttentionOptions, Call, DropoutOptions, Stage};
use crate::position::alibi_slopes;
use crate::probe::{CallFacts, Probe, Recorder, Slot};
use crate::rows::{Documents, Visibility};
use crate::scale::Scale;

/// Configuration of [`ScaledDotProductAttention`].
///
/// # Example
///
/// ```
/// use layers::{Scale, ScaledDotProductAttentionConfig, Window};
///
/// let attention = ScaledDotProductAttentionConfig::new()
///     .with_causal(true)
///     .with_window(Some(Window::before(255)))
///     .init(&Default::default());
/// assert_eq!(attention.scale, Scale::InvSqrtDim);
/// ```
#[derive(Config, Debug, PartialEq)]
pub struct ScaledDotProductAttentionConfig {
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
    /// `c` in `c tanh(score / c)`, which keeps scores within `-c..c`
    /// ([Gemma 2](https://arxiv.org/abs/2408.00118), section 2). Default: none.
    pub softcap: Option<f64>,
    /// The probability of dropping a weight in training. Default: 0.
    #[config(default = 0.0)]
    pub dropout: f64,
    /// The number of query heads that learn a sink, a logit that joins the softmax's denominator
    /// only ([StreamingLLM](https://arxiv.org/abs/2309.17453), section 3.3;
    /// [gpt-oss](https://arxiv.org/abs/2508.10925)). They start at 0. Default: none.
    pub sink_heads: Option<usize>,
    /// A sink of logit 0 that is not learned: the weights of a row may sum to less than 1
    /// ([softmax1](https://www.evanmiller.org/attention-is-off-by-one.html)). Default: false.
    #[config(default = false)]
    pub quiet_softmax: bool,
    /// Adds `-slope * |place of the query - place of the key|` to the scores, one slope a head
    /// ([ALiBi](https://arxiv.org/abs/2108.12409), section 3). Default: false.
    #[config(default = false)]
    pub alibi: bool,
}

/// Scaled dot-product attention on heads: `softmax(scale * query key^T) value`
/// ([Attention Is All You Need](https://arxiv.org/abs/1706.03762), section 3.2.1), in memory linear
/// in the length.
///
/// Query head `h` reads key and value head `h / (heads / kv_heads)`, without a copy
/// ([grouped-query attention](https://arxiv.org/abs/2305.13245)). Scores, softmax and sums are
/// computed in f32 for f16, bf16 and f32 inputs and in f64 for f64 inputs. A query that sees no key
/// gives 0. Keys and values past a sample's `key_lengths` are never read, so an unfilled cache may
/// hold anything; a NaN at a key that some other query of the sample sees does spread.
///
/// Created with [`ScaledDotProductAttentionConfig`].
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct ScaledDotProductAttention {
    /// The factor on the scores.
    #[module(skip)]
    pub scale: Scale,
    /// Whether a query sees no key after its own place.
    pub causal: bool,
    /// Where the queries stand among the keys.
    #[module(skip)]
    pub alignment: Alignment,
    /// How many keys before and after its place a query sees.
    #[module(skip)]
    pub window: Option<Window>,
    /// The bound of the scores.
    #[module(skip)]
    pub softcap: Option<f64>,
    /// Dropout on the weights; decides whether it acts as Burn's own dropout does.
    pub dropout: Dropout,
    /// The learned sink `[heads]`.
    pub sink: Option<Param<Tensor<1>>>,
    /// The learned factor `[1]` of [`Scale::Learned`].
    pub learned_scale: Option<Param<Tensor<1>>>,
    /// Whether a fixed sink of logit 0 joins the softmax.
    pub quiet_softmax: bool,
    /// Whether scores fall with the distance.
    pub alibi: bool,
    /// Who measures this layer.
    pub(crate) slot: Slot,
}

/// The input of one call of [`ScaledDotProductAttention`].
///
/// # Example
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use layers::{AttentionInput, ScaledDotProductAttentionConfig};
///
/// let device = Device::default();
/// let zeros = Tensor::<4>::zeros([4, 1, 5, 1], &device);
/// let value = Tensor::<1>::from_floats([1., 2., 3., 4., 5.], &device)
///     .reshape([1, 1, 5, 1])
///     .expand([4, 1, 5, 1]);
/// let input = AttentionInput::new(zeros.clone(), zeros, value).key_lengths([5, 3, 1, 0]);
/// let context = ScaledDotProductAttentionConfig::new().init(&device).forward(input);
/// // The mean of the valid values; 0 for the sample without a key.
/// let first: Vec<f32> = context.slice([0..4, 0..1, 0..1, 0..1]).into_data().iter().collect();
/// assert_eq!(first, [3., 2., 1., 0.]);
/// ```
#[derive(Clone, Debug)]
pub struct AttentionInput {
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    modifiers: CallModifiers,
}

/// What a call may add to query, key and value, shared by both modules' inputs.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallModifiers {
    pub mask: Option<Mask>,
    pub bias: Option<Tensor<4>>,
    pub key_lengths: Option<Vec<usize>>,
    pub query_lengths: Option<Vec<usize>>,
    pub documents: Option<Documents>,
    pub probe: Option<Probe>,
    /// In place of the layer's own, where a cache knows better.
    pub alignment: Option<Alignment>,
    pub extra_keys: Option<ExtraKeys>,
    /// The width of the model, where the caller knows it.
    pub d_model: Option<usize>,
}

impl CallModifiers {
    pub fn add_mask(&mut self, mask: Mask) {
        self.mask = Some(match self.mask.take() {
            Some(other) => other.and(mask),
            None => mask,
        });
    }
}

/// The builder methods that both modules' inputs have.
macro_rules! modifier_methods {
    () => {
        /// Blocks what the mask blocks, and what earlier masks of this input block.
        pub fn mask(mut self, mask: $crate::Mask) -> Self {
            self.modifiers.add_mask(mask);
            self
        }

        /// Added to the scores, `[1 | batch, 1 | heads, 1 | query_len, 1 | key_len]`, after scale
        /// and softcap; gets a gradient. Minus infinity blocks.
        pub fn bias(mut self, bias: ::burn::tensor::Tensor<4>) -> Self {
            self.modifiers.bias = Some(bias);
            self
        }

        /// How many keys of each sample are valid; those behind are never read.
        pub fn key_lengths(mut self, lengths: impl Into<Vec<usize>>) -> Self {
            self.modifiers.key_lengths = Some(lengths.into());
            self
        }

        /// How many queries of each sample are valid; those behind give 0.
        pub fn query_lengths(mut self, lengths: impl Into<Vec<usize>>) -> Self {
            self.modifiers.query_lengths = Some(lengths.into());
            self
        }

        /// Several documents packed in one row: a query sees only keys of its own segment.
        pub fn segments(
            mut self,
            query: impl Into<$crate::Segments>,
            key: impl Into<$crate::Segments>,
        ) -> Self {
            self.modifiers.documents = Some($crate::rows::Documents {
                queries: query.into().into_ids(),
                keys: key.into().into_ids(),
            });
            self
        }

        /// Leaves what the softmax did in the probe.
        pub fn probe(mut self, probe: &$crate::Probe) -> Self {
            self.modifiers.probe = Some(probe.clone());
            self
        }
    };
}
pub(crate) use modifier_methods;

impl AttentionInput {
    /// A call without masks or bias.
    ///
    /// # Shapes
    ///
    /// - query: `[batch, heads, query_len, d_k]`
    /// - key: `[batch, kv_heads, key_len, d_k]`
    /// - value: `[batch, kv_heads, key_len, d_v]`
    pub fn new(query: Tensor<4>, key: Tensor<4>, value: Tensor<4>) -> Self {
        Self {
            query,
            key,
            value,
            modifiers: CallModifiers::default(),
        }
    }

    modifier_methods!();

    pub(crate) fn with_modifiers(mut self, modifiers: CallModifiers) -> Self {
        self.modifiers = modifiers;
        self
    }
}

/// What [`ScaledDotProductAttention::forward_with_weights`] gives.
#[derive(Clone, Debug)]
pub struct AttentionOutput {
    /// `[batch, heads, query_len, d_v]`, equal to that of the plain forward.
    pub context: Tensor<4>,
    /// `[batch, heads, query_len, key_len]`, before dropout: rows sum to 1, to less with a sink, or
    /// to 0 where a query sees no key.
    pub weights: Tensor<4>,
    /// `[batch, heads, query_len]`: the natural logarithm of the sum of the exponentials of a row's
    /// scores, minus infinity where a query sees no key and there is no sink. f32 at least.
    pub logsumexp: Tensor<3>,
}

impl ScaledDotProductAttentionConfig {
    /// The module on a device.
    ///
    /// # Panics
    ///
    /// With the message of the error that [`try_init`](Self::try_init) returns.
    pub fn init(&self, device: &Device) -> ScaledDotProductAttention {
        expect(self.try_init(device))
    }

    /// The module on a device, or what is wrong with the configuration.
    ///
    /// # Errors
    ///
    /// If `dropout` is not in [0, 1), `softcap` is not positive and finite, a fixed scale is not
    /// finite, `sink_heads` is 0, or both `sink_heads` and `quiet_softmax` are given.
    ///
    /// ```
    /// use layers::ScaledDotProductAttentionConfig;
    ///
    /// let error = ScaledDotProductAttentionConfig::new()
    ///     .with_dropout(1.5)
    ///     .try_init(&Default::default())
    ///     .unwrap_err();
    /// assert_eq!(error.to_string(), "dropout is 1.5, but must be in [0, 1)");
    /// ```
    pub fn try_init(&self, device: &Device) -> Result<ScaledDotProductAttention, AttentionError> {
        self.scale.check()?;
        if !(0.0..1.0).contains(&self.dropout) {
            return Err(value_error(
                "dropout",
                self.dropout,
                "but must be in [0, 1)",
            ));
        }
        if let Some(softcap) = self.softcap
            && !(softcap > 0.0 && softcap.is_finite())
        {
            return Err(value_error(
                "softcap",
                softcap,
                "but must be positive and finite",
            ));
        }
        if let (Some(heads), true) = (self.sink_heads, self.quiet_softmax) {
            return Err(AttentionError::Contradiction {
                first: format!("sink_heads {heads}"),
                second: "quiet_softmax true".into(),
                reason: "a quiet softmax is a sink that stays 0",
            });
        }
        if self.sink_heads == Some(0) {
            return Err(value_error("sink_heads", 0, "but must be at least 1"));
        }
        Ok(ScaledDotProductAttention {
            scale: self.scale,
            causal: self.causal,
            alignment: self.alignment,
            window: self.window,
            softcap: self.softcap,
            dropout: DropoutConfig::new(self.dropout).init(),
            sink: self
                .sink_heads
                .map(|heads| Param::from_tensor(Tensor::zeros([heads], device))),
            learned_scale: match self.scale {
                Scale::Learned { initial } => {
                    Some(Param::from_tensor(Tensor::full([1], initial, device)))
                }
                _ => None,
            },
            quiet_softmax: self.quiet_softmax,
            alibi: self.alibi,
            slot: Slot::default(),
        })
    }
}

impl ScaledDotProductAttention {
    /// The context: each query's weighted sum of values.
    ///
    /// # Shapes
    ///
    /// - query: `[batch, heads, query_len, d_k]`
    /// - key: `[batch, kv_heads, key_len, d_k]`
    /// - value: `[batch, kv_heads, key_len, d_v]`
    /// - output: `[batch, heads, query_len, d_v]`
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
    /// use layers::{AttentionInput, ScaledDotProductAttentionConfig};
    ///
    /// let device = Device::default();
    /// let q = Tensor::<4>::zeros([1, 1, 2, 1], &device);
    /// let k = Tensor::<4>::zeros([1, 1, 3, 1], &device);
    /// let v = Tensor::<4>::from_floats([[[[1.], [2.], [6.]]]], &device);
    /// let causal = ScaledDotProductAttentionConfig::new().with_causal(true).init(&device);
    /// let context = causal.forward(AttentionInput::new(q, k, v));
    /// // The last query sees the last key: means of [1, 2] and of [1, 2, 6].
    /// assert_eq!(context.into_data().iter::<f32>().collect::<Vec<_>>(), [1.5, 3.0]);
    /// ```
    pub fn forward(&self, input: AttentionInput) -> Tensor<4> {
        self.attend(input, false).0
    }

    /// Context, weights and logsumexp.
    ///
    /// The context is that of [`forward`](Self::forward), bit for bit. The weights take memory
    /// quadratic in the length. All three pass gradients.
    ///
    /// # Panics
    ///
    /// As [`forward`](Self::forward).
    ///
    /// # Example
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use layers::{AttentionInput, ScaledDotProductAttentionConfig};
    ///
    /// let device = Device::default();
    /// let zeros = Tensor::<4>::zeros([1, 1, 2, 4], &device);
    /// let input = AttentionInput::new(zeros.clone(), zeros.clone(), zeros);
    /// let output = ScaledDotProductAttentionConfig::new().init(&device).forward_with_weights(input);
    /// let weights: Vec<f32> = output.weights.into_data().iter().collect();
    /// assert_eq!(weights, [0.5, 0.5, 0.5, 0.5]);
    /// ```
    pub fn forward_with_weights(&self, input: AttentionInput) -> AttentionOutput {
        let (context, details) = self.attend(input, true);
        let (weights, logsumexp) = details.expect("they were asked for");
        AttentionOutput {
            context,
            weights,
            logsumexp,
        }
    }

    /// The scores `[batch, heads, query_len, key_len]` at one stage on their way to the softmax,
    /// for inspection: memory is quadratic in the length.
    ///
    /// # Panics
    ///
    /// As [`forward`](Self::forward).
    ///
    /// # Example
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use layers::{AttentionInput, ScaledDotProductAttentionConfig, Stage};
    ///
    /// let device = Device::default();
    /// let twos = Tensor::<4>::ones([1, 1, 1, 4], &device) * 2;
    /// let input = AttentionInput::new(twos.clone(), twos.clone(), twos);
    /// let attention = ScaledDotProductAttentionConfig::new().init(&device);
    /// // 4 products of 2 by 2, times 1 / sqrt(4).
    /// assert_eq!(attention.scores(input, Stage::Scaled).into_scalar::<f32>(), 8.0);
    /// ```
    pub fn scores(&self, input: AttentionInput, stage: Stage) -> Tensor<4> {
        let Resolved { call, options, .. } = expect(self.resolve(input));
        op::scores(call, &options, stage)
    }

    /// The one forward behind all entry points: context, and weights and logsumexp if asked for.
    fn attend(
        &self,
        input: AttentionInput,
        with_weights: bool,
    ) -> (Tensor<4>, Option<(Tensor<4>, Tensor<3>)>) {
        let d_model = input.modifiers.d_model;
        let Resolved {
            call,
            mut options,
            extra_keys,
            blind,
        } = expect(self.resolve(input));
        options.lse_gradient = with_weights || extra_keys.is_some();
        let facts = || self.facts(&call, options.scale, d_model);
        options.probe = self.slot.recorder(options.probe.take(), facts);
        let mut attended = op::attend(call.clone(), options.clone());
        let mut extra_weights = None;
        if let Some(extra_keys) = extra_keys {
            let merged = extra_keys.merge(&call, &options, attended, blind, &self.dropout);
            attended = merged.attended;
            extra_weights = Some((merged.share, merged.weights));
        }
        let details = with_weights.then(|| {
            let weights = op::weights(call, &options);
            let weights = match extra_weights {
                Some((share, extra)) => Tensor::cat(vec![weights * share, extra], 3),
                None => weights,
            };
            (weights, attended.logsumexp)
        });
        (attended.context, details)
    }

    /// What a measurement of the call is told of it.
    fn facts(&self, call: &Call, factor: f64, d_model: Option<usize>) -> CallFacts {
        let [batch, heads, query_len, d_k] = call.query.dims();
        CallFacts {
            scale: self.scale,
            factor,
            batch,
            heads,
            query_len,
            d_model: d_model.unwrap_or(heads * d_k),
            d_k,
            d_v: call.value.dims()[3],
            dtype: call.query.dtype(),
        }
    }

    /// Checks the input and resolves every choice to numbers.
    fn resolve(&self, input: AttentionInput) -> Result<Resolved, AttentionError> {
        let AttentionInput {
            mut query,
            key,
            value,
            modifiers,
        } = input;
        let [batch, heads, query_len, d_k] = query.dims();
        let key_len = key.dims()[2];
        check_shapes(&query, &key, &value)?;
        let scores = [batch, heads, query_len, key_len];
        if let Some(mask) = &modifiers.mask {
            mask.check(scores)?;
        }
        if let Some(bias) = &modifiers.bias {
            check_score_shape("bias", bias.dims(), scores)?;
            check_dtype("bias", bias, &query)?;
        }
        if let Some(sink) = &self.sink {
            check_axis("query", 1, "heads", heads, sink.dims()[0], "the sink")?;
        }

        let visibility = Visibility {
            batch,
            query_len,
            key_len,
            causal: self.causal,
            alignment: modifiers.alignment.unwrap_or(self.alignment),
            window: self.window,
            key_lengths: modifiers.key_lengths.as_deref(),
            query_lengths: modifiers.query_lengths.as_deref(),
            documents: modifiers.documents.as_ref(),
            positions: self.alibi,
        };
        let rows = visibility.rows()?;
        let visible = || match &rows {
            Some(rows) => (rows.samples, rows.visible().collect()),
            None => (1, vec![key_len; query_len]),
        };
        if let Some(factors) = self.scale.per_query(visible, &query) {
            query = query * factors;
        }
        let mut scale = self.scale.factor(d_k);
        if let Some(factor) = &self.learned_scale {
            let factor = factor.val().cast(query.dtype());
            query = query * factor.reshape([1, 1, 1, 1]);
            scale = 1.0;
        }
        let device = query.device();
        let sink = match (&self.sink, self.quiet_softmax) {
            (Some(sink), _) => Some(sink.val().cast(query.dtype())),
            (None, true) => Some(Tensor::zeros([heads], (&device, query.dtype()))),
            (None, false) => None,
        };
        let training = [&query, &key, &value]
            .iter()
            .any(|tensor| tensor.device().is_autodiff());
        let drops = self.dropout.training.is_enabled() && training && self.dropout.prob > 0.0;
        let options = AttentionOptions {
            scale,
            softcap: self.softcap,
            rows: rows.map(Arc::new),
            alibi: self.alibi.then(|| alibi_slopes(heads).into()),
            dropout: drops.then(|| DropoutOptions {
                probability: self.dropout.prob,
                seed: op::draw_seed(&device),
            }),
            probe: modifiers.probe.map(Recorder::from),
            lse_gradient: false,
            kept: None,
        };
        let call = Call {
            query,
            key,
            value,
            mask: modifiers.mask.map(Mask::into_blocked),
            bias: modifiers.bias,
            sink,
        };
        Ok(Resolved {
            call,
            options,
            blind: modifiers
                .query_lengths
                .filter(|_| modifiers.extra_keys.is_some()),
            extra_keys: modifiers.extra_keys,
        })
    }
}

/// A call that passed all checks.
struct Resolved {
    call: Call,
    options: AttentionOptions,
    extra_keys: Option<ExtraKeys>,
    /// The number of valid queries of each sample, where extra keys would be seen by the others.
    blind: Option<Vec<usize>>,
}

fn check_shapes(
    query: &Tensor<4>,
    key: &Tensor<4>,
    value: &Tensor<4>,
) -> Result<(), AttentionError> {
    let [batch, heads, _, d_k] = query.dims();
    let [key_batch, kv_heads, key_len, key_d_k] = key.dims();
    let [value_batch, value_heads, value_len, _] = value.dims();
    check_axis("key", 0, "batch", key_batch, batch, "query")?;
    check_axis("value", 0, "batch", value_batch, batch, "query")?;
    if (kv_heads == 0 && heads > 0) || (kv_heads > 0 && heads % kv_heads != 0) {
        return Err(AttentionError::Axis {
            argument: "key",
            axis: 1,
            name: "kv_heads",
            size: kv_heads,
            clash: format!("which does not divide the {heads} query heads"),
        });
    }
    check_axis("value", 1, "kv_heads", value_heads, kv_heads, "key")?;
    check_axis("value", 2, "key_len", value_len, key_len, "key")?;
    check_axis("key", 3, "d_k", key_d_k, d_k, "query")?;
    if d_k == 0 {
        return Err(value_error(
            "query: axis 3 (d_k)",
            0,
            "but must be at least 1",
        ));
    }
    check_dtype("key", key, query)?;
    check_dtype("value", value, query)
}

fn check_dtype(
    argument: &'static str,
    tensor: &Tensor<4>,
    query: &Tensor<4>,
) -> Result<(), AttentionError> {
    if tensor.dtype() == query.dtype() {
        return Ok(());
    }
    Err(AttentionError::DType {
        argument,
        dtype: format!("{:?}", tensor.dtype()),
        query: format!("{:?}", query.dtype()),
    })
}

/// What every display of attention says, each choice by its name and only where one was made.
pub(crate) fn attention_content(
    attention: &ScaledDotProductAttention,
    content: Content,
) -> Content {
    let mut content = add_text(content, "scale", attention.scale);
    if attention.causal {
        content = add_text(content, "causal", attention.alignment);
    }
    if let Some(window) = attention.window {
        content = add_text(content, "window", window);
    }
    if let Some(softcap) = attention.softcap {
        content = content.add("softcap", &softcap);
    }
    if attention.sink.is_some() {
        content = add_text(content, "sink", "learned");
    }
    if attention.quiet_softmax {
        content = content.add("quiet_softmax", &true);
    }
    if attention.alibi {
        content = content.add("alibi", &true);
    }
    content.add("dropout", &attention.dropout.prob)
}

fn add_text(content: Content, name: &str, value: impl fmt::Display) -> Content {
    content.add(name, &value.to_string())
}

impl ModuleDisplay for ScaledDotProductAttention {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new()
            .with_new_line_after_attribute(false)
            .optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        attention_content(self, content).optional()
    }
}
