//! The one differentiable operation under all modules.
//!
//! `attention_forward` gives the context and the logsumexp of each query row;
//! `attention_backward` recomputes the probabilities from them, so nothing of size
//! query_len x key_len is kept between the two
//! ([FlashAttention](https://arxiv.org/abs/2205.14135)); where there are 64 keys at most, the
//! CPU backends keep the probabilities, which is faster and still linear in the queries. The
//! default bodies are written with backend primitives alone ([`tiled`]); CPU backends override
//! them with the `kernels` crate ([`cpu`]); [`autodiff`] registers the hand-written backward for
//! all of them.

// The backend trait's expansion names NdArray, whose crate is deprecated as a whole.
#![cfg_attr(feature = "ndarray", allow(deprecated))]

#[cfg(all(test, feature = "flex"))]
mod agreement;
mod autodiff;
#[cfg(any(feature = "flex", feature = "ndarray"))]
mod cpu;
mod dropout;
mod kept;
mod others;
mod projection;
mod statistics;
mod tiled;
mod tiles;
mod wrapper;

use std::sync::Arc;

use burn::backend::tensor::{BoolTensor, FloatTensor};
use burn::backend::{Backend, ExtensionType, backend_extension};

use crate::rows::Rows;

pub(crate) use dropout::draw_seed;
pub(crate) use kept::Kept;
pub(crate) use projection::project;
pub(crate) use statistics::{NO_GRADIENT, PER_ROW, column};
pub use wrapper::Stage;
pub(crate) use wrapper::{Attended, Call, attend, scores, weights};

/// The plain numbers of one attention call; tensors travel beside them.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionOptions {
    pub(crate) scale: f64,
    pub(crate) softcap: Option<f64>,
    pub(crate) rows: Option<Arc<Rows>>,
    /// One slope a query head.
    pub(crate) alibi: Option<Arc<[f32]>>,
    pub(crate) dropout: Option<DropoutOptions>,
    /// Where what the softmax did is left for whoever measures it.
    pub(crate) probe: Option<crate::probe::Recorder>,
    /// Whether a gradient may arrive at the logsumexp.
    pub(crate) lse_gradient: bool,
    /// Where the forward pass may leave something, if a backward pass is to come.
    pub(crate) kept: Option<Kept>,
}

/// Dropout on the weights: its probability and the seed that its mask is regenerated from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DropoutOptions {
    pub probability: f64,
    pub seed: [u32; 2],
}

/// Which gradients the backward pass must compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub(crate) query: bool,
    pub(crate) key: bool,
    pub(crate) value: bool,
    pub(crate) bias: bool,
    pub(crate) sink: bool,
}

/// A boolean tensor that a call may lack.
#[derive(ExtensionType, Clone, Debug)]
pub enum MaybeBool<B: Backend> {
    /// Absent.
    None,
    /// Present.
    Some(BoolTensor<B>),
}

/// A float tensor that a call may lack.
#[derive(ExtensionType, Clone, Debug)]
pub enum MaybeFloat<B: Backend> {
    /// Absent.
    None,
    /// Present.
    Some(FloatTensor<B>),
}

/// What changes the scores beside query and key.
#[derive(ExtensionType, Clone, Debug)]
pub struct Modifiers<B: Backend> {
    /// True where blocked, `[1|batch, 1|heads, 1|query_len, 1|key_len]`.
    #[extension_type]
    pub mask: MaybeBool<B>,
    /// Added to the scores, `[1|batch, 1|heads, 1|query_len, 1|key_len]`.
    #[extension_type]
    pub bias: MaybeFloat<B>,
    /// One logit a query head that joins the softmax's denominator, `[heads]`.
    #[extension_type]
    pub sink: MaybeFloat<B>,
}

/// The gradients of one backward pass; those that were not wanted are absent.
#[derive(ExtensionType, Clone, Debug)]
pub struct AttentionGradients<B: Backend> {
    /// That of the query.
    #[extension_type]
    pub query: MaybeFloat<B>,
    /// That of the key.
    #[extension_type]
    pub key: MaybeFloat<B>,
    /// That of the value.
    #[extension_type]
    pub value: MaybeFloat<B>,
    /// That of the bias, in its own shape.
    #[extension_type]
    pub bias: MaybeFloat<B>,
    /// That of the sink.
    #[extension_type]
    pub sink: MaybeFloat<B>,
}

impl<B: Backend> MaybeBool<B> {
    pub(crate) fn into_option(self) -> Option<BoolTensor<B>> {
        match self {
            Self::None => None,
            Self::Some(tensor) => Some(tensor),
        }
    }

    pub(crate) fn from_option(tensor: Option<BoolTensor<B>>) -> Self {
        tensor.map_or(Self::None, Self::Some)
    }
}

impl<B: Backend> MaybeFloat<B> {
    pub(crate) fn into_option(self) -> Option<FloatTensor<B>> {
        match self {
            Self::None => None,
            Self::Some(tensor) => Some(tensor),
        }
    }

    pub(crate) fn from_option(tensor: Option<FloatTensor<B>>) -> Self {
        tensor.map_or(Self::None, Self::Some)
    }
}

/// A Burn backend that attention runs on.
///
/// Implementations may leave everything to the default bodies, which use backend primitives
/// alone. Tensors are `[batch, heads, length, width]`; the key and the value may have fewer heads.
/// The logsumexp is `[batch, heads, query_len]`, f64 for f64 inputs and f32 for all others, minus
/// infinity for a row that sees nothing.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    NdArray: cfg(feature = "ndarray"),
    Cube: cfg(feature = "cube"),
    Autodiff,
)]
pub trait AttentionBackend: Backend {
    /// The context `[batch, heads, query_len, d_v]` and the logsumexp.
    fn attention_forward(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        #[extension_type] modifiers: Modifiers<Self>,
        options: AttentionOptions,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        tiled::forward::<Self>(query, key, value, modifiers, &options)
    }

    /// The gradients, from what the forward pass left and the gradient at its outputs.
    #[allow(clippy::too_many_arguments)] // One name for each tensor; a struct would only move them.
    fn attention_backward(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        context: FloatTensor<Self>,
        logsumexp: FloatTensor<Self>,
        context_gradient: FloatTensor<Self>,
        #[extension_type] logsumexp_gradient: MaybeFloat<Self>,
        #[extension_type] modifiers: Modifiers<Self>,
        options: AttentionOptions,
        wanted: Wanted,
    ) -> AttentionGradients<Self> {
        let saved = tiled::Saved {
            context,
            logsumexp,
            context_gradient,
            logsumexp_gradient: logsumexp_gradient.into_option(),
        };
        tiled::backward::<Self>(query, key, value, saved, modifiers, &options, wanted)
    }
}
