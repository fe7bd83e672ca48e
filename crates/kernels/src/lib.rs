//! Exact attention on CPU slices: forward and backward, in memory linear in the length.
//!
//! [`forward`] and [`backward`] work on strided [`View`]s of rank 4, so that inputs and outputs stay where a projection
//! left them. [`Problem`] has every option; none of them leaves the fast path. [`forward_keeping`] spares the backward
//! pass computing the weights again where they are [few](KeptWeights). [`matmul`] makes the products of the
//! projections around attention. No result depends, by a bit, on the number of threads.
//!
//! ```
//! use kernels::{Problem, View, ViewMut};
//!
//! // One query, two keys that it likes equally.
//! let (q, k, v) = ([1.0_f32, 0.0], [0.0; 4], [1.0, 2.0, 3.0, 4.0]);
//! let problem = Problem::new(
//!     View::contiguous(&q, [1, 1, 1, 2])?,
//!     View::contiguous(&k, [1, 1, 2, 2])?,
//!     View::contiguous(&v, [1, 1, 2, 2])?,
//! );
//! let (mut out, mut lse) = ([0.0; 2], [0.0]);
//! kernels::forward(&problem, ViewMut::contiguous(&mut out, [1, 1, 1, 2])?, &mut lse)?;
//! assert_eq!(out, [2.0, 3.0]);
//! assert_eq!(lse, [2.0_f32.ln()]);
//! # Ok::<(), kernels::Error>(())
//! ```
//!
//! # Features
//!
//! - `rayon` (default): threads of the rayon pool that the caller is in, or of the global one. Who calls often does so
//!   from a thread of the pool (`rayon::scope`): one that is not works beside as many as there are cores. Without the
//!   feature, one thread.

// Loops by index over arrays of constant length are unrolled and kept in registers; iterators over vectors of a type that
// is not known yet are not always.
#![allow(clippy::needless_range_loop)]

mod backward;
mod bias;
mod block;
mod context;
mod decode;
pub mod dropout;
mod element;
mod erased;
mod error;
mod factors;
mod forward;
mod gradient;
mod held;
mod isa;
mod kept;
mod matmul;
mod micro;
mod pack;
mod parallel;
mod problem;
mod product;
mod real;
mod scores;
mod scratch;
mod sink;
mod transpose;
mod turns;
mod view;

pub use backward::backward;
pub use element::Element;
pub use error::Error;
pub use forward::{forward, forward_keeping};
pub use isa::Isa;
pub use kept::KeptWeights;
pub use matmul::{Matmul, matmul, matmul_vec};
pub use problem::{Dropout, Gradients, KeyRanges, Problem, Saved};
pub use real::Real;
pub use view::{View, ViewMut};
