//! The modules as parts of a user's model: training, saving, loading, decoding.

mod burn_nn;
mod configuration;
mod decoding;
mod projections;
mod training;
