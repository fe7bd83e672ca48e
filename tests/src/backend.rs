//! The backends that the features of this crate compile in.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::{DType, Device, Tensor, TensorData};

/// A backend under test.
#[derive(Clone, Debug)]
pub struct TestBackend {
    /// The name of its feature.
    pub name: &'static str,
    /// Its device, without autodiff.
    pub device: Device,
}

/// Every backend that is compiled in, in the order of the features.
#[allow(deprecated)] // Burn's ndarray backend is deprecated as a whole.
pub fn backends() -> Vec<TestBackend> {
    let mut backends = Vec::new();
    let mut add = |name, device| backends.push(TestBackend { name, device });
    #[cfg(feature = "flex")]
    add("flex", Device::flex());
    #[cfg(feature = "ndarray")]
    add("ndarray", Device::ndarray());
    // The CPU adapter is the software driver's: the one that every machine can have.
    #[cfg(feature = "wgpu")]
    add("wgpu", Device::wgpu(burn::tensor::DeviceKind::Cpu));
    #[cfg(feature = "vulkan")]
    add(
        "vulkan",
        Device::vulkan(burn::tensor::DeviceKind::DefaultDevice),
    );
    #[cfg(feature = "cuda")]
    add("cuda", Device::cuda(0));
    backends
}

/// Runs a test on every backend, and then fails with the names of those that it failed on.
pub fn on_each_backend(test: impl Fn(&Device)) {
    run(backends(), test);
}

/// As [`on_each_backend`], on those backends that compute in the element type; names the others.
pub fn on_each_backend_with(dtype: DType, test: impl Fn(&Device)) {
    let (able, unable): (Vec<_>, Vec<_>) = backends()
        .into_iter()
        .partition(|backend| computes_in(&backend.device, dtype));
    for backend in unable {
        println!("skipped on {}: it has no {dtype:?}", backend.name);
    }
    run(able, test);
}

/// Whether a device computes in an element type. What it says is tried for f64: Mesa's software
/// driver claims it on wgpu, and gets attention wrong by far more than f32 would.
pub fn computes_in(device: &Device, dtype: DType) -> bool {
    if !device.supports_dtype(dtype) {
        return false;
    }
    if dtype != DType::F64 {
        return true;
    }
    let numbers = TensorData::from([[1.0 + f64::EPSILON, 2.0], [3.0, 4.0]]);
    let matrix = Tensor::<2>::from_data(numbers, (device, dtype));
    let found: Vec<f64> = (matrix.clone().matmul(matrix.exp().log()) * 0.5)
        .into_data()
        .iter()
        .collect();
    let close = |found: f64, expected: f64| (found - expected).abs() < 1e-12;
    found.len() == 4
        && [3.5, 5.0, 7.5, 11.0]
            .iter()
            .zip(&found)
            .all(|(expected, found)| close(*found, *expected))
}

fn run(backends: Vec<TestBackend>, test: impl Fn(&Device)) {
    let failed: Vec<_> = backends
        .iter()
        .filter(|backend| {
            println!("on {}:", backend.name);
            catch_unwind(AssertUnwindSafe(|| test(&backend.device))).is_err()
        })
        .map(|backend| backend.name)
        .collect();
    assert!(failed.is_empty(), "failed on {}", failed.join(" and on "));
}

/// The message that a call panics with.
///
/// # Panics
///
/// If it does not.
pub fn panic_message<T>(call: impl FnOnce() -> T) -> String {
    let Err(payload) = catch_unwind(AssertUnwindSafe(call)) else {
        panic!("the call was expected to panic");
    };
    match payload.downcast::<String>() {
        Ok(message) => *message,
        Err(payload) => payload
            .downcast::<&str>()
            .map_or_else(|_| "(no text)".into(), |message| message.to_string()),
    }
}
