//! Backends that are content with the default bodies.

#[cfg(feature = "cube")]
impl super::AttentionBackend for burn::backend::Cube {}

#[cfg(feature = "cube")]
impl super::projection::ProjectionBackend for burn::backend::Cube {}
