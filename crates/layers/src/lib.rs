//! Attention layers for [Burn](https://burn.dev) that train in memory linear in the length, on
//! every backend.

mod attention;
mod cache;
mod error;
mod extra_keys;
mod mask;
mod multi_head;
mod op;
mod position;
mod probe;
mod qk_norm;
mod rotary;
mod rows;
mod scale;
mod segments;

pub use attention::{
    AttentionInput, AttentionOutput, ScaledDotProductAttention, ScaledDotProductAttentionConfig,
};
pub use cache::KvCache;
pub use error::AttentionError;
pub use mask::{Alignment, Mask, Window};
pub use multi_head::{MhaInput, MhaOutput, MultiHeadAttention, MultiHeadAttentionConfig};
pub use op::{AttentionBackend, Stage};
pub use position::alibi_slopes;
pub use probe::{AttentionStatistics, Probe, Quantiles, RowStatistics};
pub use qk_norm::{QkNorm, QkNormalization};
pub use rotary::{RotaryConfig, RotaryEmbedding, RotaryLayout, RotaryScaling};
pub use scale::Scale;
pub use segments::Segments;
