//! Normalisation of queries and keys before their product.

use burn::module::Module;
use burn::nn::{RmsNorm, RmsNormConfig};
use burn::tensor::{DType, Device, Tensor};
use serde::{Deserialize, Serialize};

/// How the heads of query and key are normalised before rotation and scale.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QkNorm {
    /// Each head by its root mean square, with a learned gain for each component of query and of
    /// key, shared by the heads ([ViT-22B](https://arxiv.org/abs/2302.05442), section 2, with
    /// [RMSNorm](https://arxiv.org/abs/1910.07467)).
    Rms {
        /// Added to the mean square.
        epsilon: f64,
    },
    /// Each head to L2 norm 1 ([query-key normalisation](https://arxiv.org/abs/2010.04245)). Scores
    /// are then cosines, so the scale must be a temperature: `Scale::Fixed` or `Scale::Learned`.
    L2,
}

/// Keeps the norm of a zero vector from being divided by.
const SMALLEST_NORM: f64 = 1e-6;

/// The parameters of [`QkNorm`].
#[derive(Module, Debug)]
pub struct QkNormalization {
    /// The gain of the query `[d_head]`; absent for L2.
    pub query: Option<RmsNorm>,
    /// The gain of the key `[d_head]`; absent for L2.
    pub key: Option<RmsNorm>,
}

impl QkNormalization {
    pub(crate) fn new(norm: QkNorm, d_head: usize, device: &Device) -> Self {
        let gain = || match norm {
            QkNorm::Rms { epsilon } => Some(
                RmsNormConfig::new(d_head)
                    .with_epsilon(epsilon)
                    .init(device),
            ),
            QkNorm::L2 => None,
        };
        Self {
            query: gain(),
            key: gain(),
        }
    }

    pub(crate) fn normalize_query(&self, query: Tensor<4>) -> Tensor<4> {
        normalize(self.query.as_ref(), query)
    }

    pub(crate) fn normalize_key(&self, key: Tensor<4>) -> Tensor<4> {
        normalize(self.key.as_ref(), key)
    }
}

fn normalize(gain: Option<&RmsNorm>, heads: Tensor<4>) -> Tensor<4> {
    if let Some(gain) = gain {
        return gain.forward(heads);
    }
    let dtype = heads.dtype();
    let wide = match dtype {
        DType::F64 => heads.clone(),
        _ => heads.clone().cast(DType::F32),
    };
    // Added under the root: the gradient at a zero vector stays finite.
    let norm = (wide.square().sum_dim(3) + SMALLEST_NORM * SMALLEST_NORM).sqrt();
    heads / norm.cast(dtype)
}
