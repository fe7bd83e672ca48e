//! Keys that every query sees, whatever the masks say: PyTorch's `add_bias_kv` and `add_zero_attn`.
//!
//! They would break the run of keys that a row sees, so they are attended to apart and merged by
//! the logsumexp, exactly as two halves of one softmax are
//! ([FlashAttention](https://arxiv.org/abs/2205.14135), section 3.1).

use burn::nn::Dropout;
use burn::tensor::{Bool, DType, Tensor};

use crate::op::{Attended, AttentionOptions, Call};

/// A few keys and values `[batch, kv_heads, extra, width]`.
#[derive(Clone, Debug)]
pub(crate) struct ExtraKeys {
    pub key: Tensor<4>,
    pub value: Tensor<4>,
}

/// Both parts of the softmax together.
pub(crate) struct Merged {
    pub attended: Attended,
    /// What is left of the other keys' weights, `[batch, heads, query_len, 1]`.
    pub share: Tensor<4>,
    /// The weights of the extra keys, `[batch, heads, query_len, extra]`, before dropout.
    pub weights: Tensor<4>,
}

impl ExtraKeys {
    /// `valid` is the number of queries of each sample that see anything.
    pub fn merge(
        self,
        call: &Call,
        options: &AttentionOptions,
        attended: Attended,
        valid: Option<Vec<usize>>,
        dropout: &Dropout,
    ) -> Merged {
        let dtype = call.query.dtype();
        let compute = match dtype {
            DType::F64 => DType::F64,
            _ => DType::F32,
        };
        let [batch, heads, length, d_k] = call.query.dims();
        let [_, kv_heads, extra, d_v] = self.value.dims();
        let rows = heads / kv_heads.max(1) * length;
        let query = call.query.clone().cast(compute) * options.scale;
        let products = query
            .reshape([batch, kv_heads, rows, d_k])
            .matmul(self.key.cast(compute).swap_dims(2, 3));
        let mut scores = products.reshape([batch, heads, length, extra]);
        if let Some(cap) = options.softcap {
            scores = (scores / cap).tanh() * cap;
        }

        let nothing = attended.logsumexp.clone().equal_elem(f32::NEG_INFINITY);
        let own = attended.logsumexp.mask_fill(nothing, f64::from(f32::MIN));
        let own: Tensor<4> = own.unsqueeze_dim(3);
        let highest = Tensor::cat(vec![own.clone(), scores.clone()], 3).max_dim(3);
        let sum = (own.clone() - highest.clone()).exp()
            + (scores.clone() - highest.clone()).exp().sum_dim(3);
        let total = highest + sum.log();
        let mut weights = (scores - total.clone()).exp();
        let mut share = (own - total.clone()).exp();
        let mut logsumexp: Tensor<3> = total.squeeze_dim(3);
        if let Some(valid) = valid {
            let blind = blind_rows(&valid, length, &logsumexp.device());
            let column = blind.clone().expand([batch, heads, length, 1]);
            share = share.mask_fill(column.clone(), 0);
            weights = weights.mask_fill(column.clone().expand([batch, heads, length, extra]), 0);
            logsumexp = logsumexp.mask_fill(column.squeeze_dim(3), f32::NEG_INFINITY);
        }
        let applied = dropout
            .forward(weights.clone())
            .reshape([batch, kv_heads, rows, extra]);
        let part = applied
            .matmul(self.value.cast(compute))
            .reshape([batch, heads, length, d_v]);
        let context = attended.context.cast(compute) * share.clone() + part;
        Merged {
            attended: Attended {
                context: context.cast(dtype),
                logsumexp,
            },
            share: share.cast(dtype),
            weights: weights.cast(dtype),
        }
    }
}

/// True at the rows behind each sample's valid ones, `[batch, 1, length, 1]`.
fn blind_rows(valid: &[usize], length: usize, device: &burn::tensor::Device) -> Tensor<4, Bool> {
    let blind: Vec<bool> = valid
        .iter()
        .flat_map(|valid| (0..length).map(move |row| row >= *valid))
        .collect();
    let data = burn::tensor::TensorData::new(blind, [valid.len(), 1, length, 1]);
    Tensor::from_data(data, device)
}
