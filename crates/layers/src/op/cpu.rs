//! Flex and NdArray.

#[cfg(feature = "flex")]
impl super::AttentionBackend for burn::backend::Flex {}

#[cfg(feature = "ndarray")]
#[allow(deprecated)] // The crate is deprecated as a whole.
impl super::AttentionBackend for burn::backend::NdArray {}
