//! The backward pass.
use crate::{Element, Error, Gradients, Problem, Saved};

/// Gradients of attention.
pub fn backward<T: Element>(
    _problem: &Problem<T>,
    _saved: &Saved<T>,
    _grads: Gradients<T>,
) -> Result<(), Error> {
    unimplemented!("the backward pass follows")
}
