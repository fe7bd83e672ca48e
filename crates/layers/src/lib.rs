//! Attention layers for [Burn](https://burn.dev) that train in memory linear in the length, on
//! every backend.
//!
//! - [`ScaledDotProductAttention`]: attention on heads.
//! - [`MultiHeadAttention`]: the same with projections around it.
//! - [`Probes`] and [`Probe`]: what the softmax of each layer did, query by query.
//! - [`Doctor`]: what looks wrong in that.
//!
//! [`features`] lists every feature with an example and the names that others have for it.
//!
//! # Features
//!
//! One for each backend: `flex` (default), `ndarray`, `wgpu`, `vulkan`, `cuda`. Burn's own feature
//! of the same name is switched on with it. A backend that is switched on in Burn alone works too,
//! with gradients by composition, which keep more memory.
//!
//! `metrics` (off by default, as it compiles burn-train) makes metrics of burn-train's learner of
//! what a probe read.
//!
//! `store` (off by default, as it compiles readers of three formats) loads weights from files: see
//! [`interop`].
//!
//! # Example
//!
//! ```
//! use burn::tensor::{Device, Distribution, Tensor};
//! use layers::{MhaInput, MultiHeadAttentionConfig};
//!
//! let device = Device::default().autodiff();
//! let attention = MultiHeadAttentionConfig::new(32, 4).with_causal(true).init(&device);
//! assert!(attention.to_string().contains("scale: inv_sqrt_dim"));
//! let x = Tensor::<3>::random([2, 10, 32], Distribution::Default, &device);
//! let gradients = attention.forward(MhaInput::self_attn(x)).sum().backward();
//! let gradient = attention.query.weight.grad(&gradients).expect("a gradient");
//! assert_eq!(gradient.dims(), [32, 32]);
//! ```

mod attention;
mod cache;
pub mod doctor;
mod error;
mod extra_keys;
pub mod interop;
mod mask;
#[cfg(feature = "metrics")]
pub mod metrics;
mod multi_head;
mod op;
mod position;
pub mod probe;
mod qk_norm;
mod rotary;
mod rows;
mod scale;
mod segments;

pub use attention::{
    AttentionInput, AttentionOutput, ScaledDotProductAttention, ScaledDotProductAttentionConfig,
};
pub use cache::KvCache;
pub use doctor::{Doctor, Fault, Finding};
pub use error::AttentionError;
#[cfg(feature = "store")]
pub use interop::{Checkpoint, Layout, LoadError};
pub use mask::{Alignment, Mask, Window};
pub use multi_head::{MhaInput, MhaOutput, MultiHeadAttention, MultiHeadAttentionConfig};
pub use op::Stage;
pub use position::alibi_slopes;
pub use probe::{
    AttentionStatistics, HeadStatistics, LayerStatistics, Probe, Probes, Quantiles, RowStatistics,
};
pub use qk_norm::{QkNorm, QkNormalization};
pub use rotary::{RotaryConfig, RotaryEmbedding, RotaryLayout, RotaryScaling};
pub use scale::Scale;
pub use segments::Segments;

#[doc = include_str!("../../../docs/features.md")]
pub mod features {}
