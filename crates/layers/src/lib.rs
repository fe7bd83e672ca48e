//! Attention layers for [Burn](https://burn.dev) that train in memory linear in the length, on
//! every backend.

mod attention;
mod error;
mod mask;
mod multi_head;
mod op;
mod position;
mod probe;
mod rows;
mod scale;
mod segments;

pub use attention::{
    AttentionInput, AttentionOutput, ScaledDotProductAttention, ScaledDotProductAttentionConfig,
};
pub use error::AttentionError;
pub use mask::{Alignment, Mask, Window};
pub use multi_head::{MhaInput, MhaOutput, MultiHeadAttention, MultiHeadAttentionConfig};
pub use op::{AttentionBackend, Stage};
pub use position::alibi_slopes;
pub use probe::{AttentionStatistics, Probe, Quantiles, RowStatistics};
pub use scale::Scale;
pub use segments::Segments;
