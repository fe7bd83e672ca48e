//! What no parameter's gradient shows: what the softmax of each layer did, query by query.
//!
//! [`Probes`] measures every attention layer of any model, in any training loop, without touching
//! the model's code:
//!
//! ```
//! use burn::module::Module;
//! use burn::tensor::{Device, Distribution, Tensor};
//! use layers::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig, Probes};
//!
//! #[derive(Module, Debug)]
//! struct Model {
//!     blocks: Vec<MultiHeadAttention>,
//! }
//!
//! let device = Device::default().autodiff();
//! let config = MultiHeadAttentionConfig::new(16, 4);
//! let model = Model { blocks: vec![config.init(&device), config.init(&device)] };
//! let probes = Probes::of(&model);
//!
//! probes.on();
//! let x = Tensor::<3>::random([2, 5, 16], Distribution::Default, &device);
//! let forward = |x, block: &MultiHeadAttention| block.forward(MhaInput::self_attn(x));
//! model.blocks.iter().fold(x, forward).sum().backward();
//! let layers = probes.take(); // and off
//!
//! assert_eq!(layers[1].path, "blocks.1");
//! assert_eq!(layers[1].heads.len(), 4);
//! assert!(layers[1].statistics.entropy > 0.9);
//! assert!(layers[1].statistics.score_grad.unwrap().p50 > 0.0);
//! ```
//!
//! [`Probe`] measures one call, from where the call is made, and gives each query's numbers.
//!
//! Measuring changes nothing: a measured step computes what an unmeasured one computes, bit for
//! bit. In training the numbers are taken where the gradient passes, so they are there after
//! `backward`; without gradients they are there after the forward pass. They are computed tile by
//! tile, in memory linear in the length, and wait on the device until they are taken.

mod layer;
mod layers;
mod rows;
mod slot;
mod statistics;

pub use layer::{HeadStatistics, LayerStatistics};
pub use layers::Probes;
pub use rows::{Probe, RowStatistics};
pub(crate) use slot::{CallFacts, Recorder, Slot};
pub use statistics::{AttentionStatistics, Quantiles};
