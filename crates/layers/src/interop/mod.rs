//! Weights from elsewhere: the modules of burn-nn, and files of PyTorch, safetensors and burnpack.
//!
//! # burn-nn
//!
//! `burn::nn::attention::MultiHeadAttention` and `CrossAttention` become a
//! [`MultiHeadAttention`](crate::MultiHeadAttention) by `From`, without a copy. A record or a file
//! that burn-nn saved loads through Burn's own `load_record` and `load_file`: the parameters have
//! the same paths.
//!
//! # Files
//!
//! With the feature `store`, a `Checkpoint` gives a module the weights of a layer. The prefix is
//! the path of the attention layer in the checkpoint; below it stand
//!
//! | layout | query, key, value | output | more |
//! | --- | --- | --- | --- |
//! | `Burn` | `query`, `key`, `value`, each `.weight` `[inputs, outputs]` and `.bias` | `output.weight`, `.bias` | `bias_key`, `bias_value`, `qk_norm.query.gamma`, `qk_norm.key.gamma`, `attention.sink`, `attention.learned_scale` |
//! | `Torch` | `in_proj_weight` `[3 * outputs, inputs]`, or `q_proj_weight`, `k_proj_weight`, `v_proj_weight` `[outputs, inputs]`; `in_proj_bias` | `out_proj.weight`, `.bias` | `bias_k`, `bias_v` `[1, 1, outputs]` for `add_bias_kv` |
//! | `Bert` | `self.query`, `self.key`, `self.value`, each `.weight` `[outputs, inputs]` and `.bias` | `output.dense.weight`, `.bias` | |
//! | `Gpt2` | `c_attn.weight` `[inputs, 3 * outputs]`, `c_attn.bias` | `c_proj.weight` `[inputs, outputs]`, `.bias` | |
//! | `Llama` | `q_proj`, `k_proj`, `v_proj`, each `.weight` `[outputs, inputs]` and `.bias` | `o_proj.weight`, `.bias` | `q_norm.weight`, `k_norm.weight` for an RMS `qk_norm`; `sinks` for `sink` |
//!
//! Whether there are biases, gains or sinks is the configuration's word: a checkpoint that has more
//! or less is refused. What a checkpoint does not tell is the configuration's business too:
//!
//! | layout | configuration |
//! | --- | --- |
//! | `Torch` | `add_zero_attn` where it was given |
//! | `Gpt2` | `causal` |
//! | `Llama` | `causal`; `n_kv_heads`; `d_head` where it is not `d_model / n_heads`; `rotary` with the layout half-split and the checkpoint's base and scaling; biases false unless the model has them; `qk_norm` with the model's epsilon (Qwen3) |
//!
//! Tensors below the prefix that a layout does not know are an error, as the layer then does
//! something that the module would not. Known and left alone are the norm of the residual (BERT's
//! `output.LayerNorm`), the causal mask that older GPT-2 checkpoints keep (`bias`, `masked_bias`)
//! and Llama's `rotary_emb.inv_freq`.

mod burn_nn;
#[cfg(feature = "store")]
mod checkpoint;
#[cfg(feature = "store")]
mod error;
#[cfg(feature = "store")]
mod hugging_face;
#[cfg(feature = "store")]
mod layout;
#[cfg(feature = "store")]
mod parameters;
#[cfg(feature = "store")]
mod torch;

#[cfg(feature = "store")]
pub use checkpoint::Checkpoint;
#[cfg(feature = "store")]
pub use error::LoadError;
#[cfg(feature = "store")]
pub use layout::Layout;
