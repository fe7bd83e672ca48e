//! The backends by their names on the command line.

use std::fmt;
use std::panic::{self, AssertUnwindSafe};

use burn::tensor::{Device, Tensor};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::Error;

/// What computes. Each needs the feature of its name; `flex` is there by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// The CPU, with Burn's own kernels.
    Flex,
    /// The CPU, with ndarray; deprecated by Burn, which ends it with 0.22.
    #[value(name = "ndarray")]
    #[serde(rename = "ndarray")]
    NdArray,
    /// Any graphics adapter, through WebGPU.
    Wgpu,
    /// Any graphics adapter, through Vulkan.
    Vulkan,
    /// An NVIDIA card.
    Cuda,
}

impl Backend {
    /// Its device, which keeps track of gradients.
    ///
    /// # Errors
    ///
    /// [`Error::NotBuilt`] if its feature is off; [`Error::NoDevice`] if no device answers.
    pub fn device(self) -> Result<Device, Error> {
        let make = match self {
            #[cfg(feature = "flex")]
            Self::Flex => Device::flex,
            #[cfg(feature = "ndarray")]
            #[allow(deprecated)] // Deprecated as a whole; offered while it lasts.
            Self::NdArray => Device::ndarray,
            #[cfg(feature = "wgpu")]
            Self::Wgpu => || Device::wgpu(burn::tensor::DeviceKind::DefaultDevice),
            #[cfg(feature = "vulkan")]
            Self::Vulkan => || Device::vulkan(burn::tensor::DeviceKind::DefaultDevice),
            #[cfg(feature = "cuda")]
            Self::Cuda => || Device::cuda(0usize),
            #[allow(unreachable_patterns)] // With all features on, none is left.
            _ => return Err(Error::NotBuilt(self)),
        };
        let make: fn() -> Device = make;
        answering(make).map_err(|why| Error::NoDevice { backend: self, why })
    }

    /// Whether it computes on the CPU.
    pub fn is_cpu(self) -> bool {
        matches!(self, Self::Flex | Self::NdArray)
    }

    fn is_built(self) -> bool {
        match self {
            Self::Flex => cfg!(feature = "flex"),
            Self::NdArray => cfg!(feature = "ndarray"),
            Self::Wgpu => cfg!(feature = "wgpu"),
            Self::Vulkan => cfg!(feature = "vulkan"),
            Self::Cuda => cfg!(feature = "cuda"),
        }
    }
}

/// The first that is part of this build, in the order of the variants.
impl Default for Backend {
    fn default() -> Self {
        let built = Self::value_variants()
            .iter()
            .find(|backend| backend.is_built());
        built.copied().unwrap_or(Self::Flex)
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value().expect("no backend is hidden");
        f.write_str(value.get_name())
    }
}

/// A device that a number came back from. Burn's constructors are lazy, and where there is no
/// adapter or driver the first use panics.
fn answering(make: fn() -> Device) -> Result<Device, String> {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| ()));
    let device = panic::catch_unwind(AssertUnwindSafe(|| {
        let device = make();
        let one: f32 = Tensor::<1>::ones([1], &device).into_scalar();
        assert_eq!(one, 1.0);
        device.autodiff()
    }));
    panic::set_hook(hook);
    device.map_err(|payload| {
        let text = payload.downcast_ref::<String>().cloned();
        let text = text.or_else(|| payload.downcast_ref::<&str>().map(|text| text.to_string()));
        text.unwrap_or_else(|| "the driver gives no reason".to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_that_is_not_built_is_an_error_that_names_its_feature() {
        let Some(missing) = Backend::value_variants()
            .iter()
            .find(|backend| !backend.is_built())
        else {
            return;
        };
        let error = missing.device().unwrap_err().to_string();
        assert!(error.starts_with(&format!("--backend {missing}: not part of this build")));
        assert!(error.contains(&format!("--features {missing}")), "{error}");
    }

    #[test]
    fn a_device_that_panics_when_used_is_an_error_with_its_reason() {
        let error = answering(|| panic!("no adapter found")).unwrap_err();
        assert_eq!(error, "no adapter found");
    }
}
