//! Backends that are content with the default bodies.

#[cfg(feature = "cube")]
impl super::AttentionBackend for burn::backend::Cube {}
