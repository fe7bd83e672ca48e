//! Files of weights: those beside the tests, and those that a test writes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::store::{ModuleStore, PytorchStore, SafetensorsStore, bridge};
use burn::tensor::{Device, Tensor, TensorData, Tolerance};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

/// A file that a library wrote.
///
/// `torch_bias_kv` and `torch_kdim` are PyTorch 2.15's cases
/// `mha_add_bias_kv-true_add_zero_attn-true_pad-true_e12h3` and `mha_kdim-9_vdim-5_e12h3` of the
/// conformance cases; `generate.py` beside the files makes the others.
pub fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data/interop")
        .join(name)
}

/// A tensor of such a file that is no weight: an input or the output expected for it.
pub fn stored(path: &Path, name: &str) -> TensorData {
    let stored = match path.extension() {
        Some(extension) if extension == "pt" => PytorchStore::from_file(path)
            .get_tensor(name)
            .unwrap()
            .cloned(),
        _ => SafetensorsStore::from_file(path)
            .get_tensor(name)
            .unwrap()
            .cloned(),
    };
    bridge::to_data(&stored.unwrap()).unwrap()
}

pub fn tensor<const D: usize>(path: &Path, name: &str) -> Tensor<D> {
    Tensor::from_data(stored(path, name), &Device::default())
}

pub fn assert_close<const D: usize>(found: Tensor<D>, expected: TensorData) {
    found
        .into_data()
        .assert_approx_eq::<f32>(&expected, Tolerance::rel_abs(1e-4, 1e-5));
}

/// A path for one test, removed with what is there at the end.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(extension: &str) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!(
            "layers-interop-{}-{}.{extension}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        Self(std::env::temp_dir().join(name))
    }

    /// A safetensors file of f32 tensors.
    pub fn safetensors(tensors: &[(&str, &[usize], Vec<f32>)]) -> Self {
        let bytes: Vec<_> = tensors
            .iter()
            .map(|(name, shape, values)| {
                let bytes = values.iter().flat_map(|value| value.to_le_bytes());
                (*name, Dtype::F32, *shape, bytes.collect::<Vec<u8>>())
            })
            .collect();
        Self::raw(&bytes)
    }

    /// A safetensors file of any element types.
    pub fn raw(tensors: &[(&str, Dtype, &[usize], Vec<u8>)]) -> Self {
        let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
            let view = TensorView::new(*dtype, shape.to_vec(), bytes).unwrap();
            (*name, view)
        });
        let scratch = Self::new("safetensors");
        fs::write(&scratch.0, safetensors::serialize(views, None).unwrap()).unwrap();
        scratch
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// `start`, `start + 1` and so on.
pub fn count(start: usize, length: usize) -> Vec<f32> {
    (start..start + length).map(|value| value as f32).collect()
}
