//! Attention in plain f64 loops, forward and backward, with every option.
//!
//! Written for the tests alone, straight from the rules: query times scale, dot product, softcap,
//! bias, mask, softmax with a sink in the denominator, dropout, times value. It shares no code with
//! the layers, and its own gradients are held against finite differences.

mod backward;
mod forward;
mod multi_head;
mod problem;
mod visible;

pub use backward::{Gradients, Upstream, backward};
pub use forward::{Forward, forward};
pub use multi_head::{MultiHead, Normalization, Positions, Projection};
pub use problem::{Broadcast, Documents, Problem, Sink, Sizes};
