//! Weights from elsewhere give the outputs that they gave there.

mod burn_nn;
mod errors;
mod hugging_face;
mod support;
mod torch;
