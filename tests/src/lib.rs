//! Helpers of the tests that cross crates: the backends compiled in, comparison that says where it
//! fails, a plain f64 reference of attention, and a way to run the layers on the same problem.

mod backend;
mod call;
mod compare;
mod multi_head_call;
mod random;
pub mod reference;
mod tensors;

pub use backend::{
    TestBackend, backends, computes_in, on_each_backend, on_each_backend_with, panic_message,
};
pub use call::{Answer, Call, attend, attend_and_differentiate, config, input, module};
pub use compare::{Difference, Tolerance, assert_bits, assert_close, compare};
pub use multi_head_call::{multi_head_input, multi_head_module};
pub use random::Random;
pub use tensors::{bools, filled, floats, floats_as, leaf, values};

/// The README's example runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
