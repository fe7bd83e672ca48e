//! Weights.
