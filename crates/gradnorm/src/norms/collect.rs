//! One walk over a model's parameters, and one read of what it summed on the device.

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Gradients, Tensor};

use super::squares::{self, Squares};
use super::{GradientNorms, ParamNorm};

/// Where a parameter's gradient is found.
pub(super) trait Source {
    fn gradient<const D: usize>(&self, param: &Param<Tensor<D>>) -> Option<Tensor<D>>;
}

impl Source for Gradients {
    fn gradient<const D: usize>(&self, param: &Param<Tensor<D>>) -> Option<Tensor<D>> {
        param.val().grad(self)
    }
}

impl Source for GradientsParams {
    fn gradient<const D: usize>(&self, param: &Param<Tensor<D>>) -> Option<Tensor<D>> {
        self.get(param.id)
    }
}

pub(super) fn collect<M: Module>(model: &M, source: &impl Source) -> GradientNorms {
    let mut walk = Walk {
        source,
        path: Vec::new(),
        found: Vec::new(),
        devices: Vec::new(),
        missing: Vec::new(),
        frozen: Vec::new(),
    };
    model.visit(&mut walk);
    let norms = read(walk.devices, walk.found.len());
    GradientNorms {
        params: walk
            .found
            .into_iter()
            .zip(norms)
            .map(|((path, id), norm)| ParamNorm { path, id, norm })
            .collect(),
        missing: walk.missing,
        frozen: walk.frozen,
    }
}

struct Walk<'a, S> {
    source: &'a S,
    path: Vec<String>,
    found: Vec<(String, ParamId)>,
    devices: Vec<Pending>,
    missing: Vec<String>,
    frozen: Vec<String>,
}

/// The sums that wait on one device.
struct Pending {
    device: Device,
    sums: Vec<Tensor<1>>,
    /// For each of the sums: the place of its parameter in `Walk::found`, and how to read it.
    params: Vec<(usize, Squares)>,
}

impl<S: Source> ModuleVisitor for Walk<'_, S> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let path = self.path.join(".");
        match self.source.gradient(param) {
            Some(grad) => {
                self.found.push((path, param.id));
                self.add(grad.inner());
            }
            None if param.is_require_grad() => self.missing.push(path),
            None => self.frozen.push(path),
        }
    }
}

impl<S> Walk<'_, S> {
    /// Sums the squares of the gradient of the parameter found last.
    fn add<const D: usize>(&mut self, grad: Tensor<D>) {
        // Nothing to sum, and not every backend sums nothing: the norm stays 0.
        if grad.shape().num_elements() == 0 {
            return;
        }
        let device = grad.device();
        let at = match self.devices.iter().position(|p| p.device == device) {
            Some(at) => at,
            None => {
                self.devices.push(Pending {
                    device: device.clone(),
                    sums: Vec::new(),
                    params: Vec::new(),
                });
                self.devices.len() - 1
            }
        };
        let (sums, how) = squares::sum(grad, squares::sum_dtype(&device));
        let pending = &mut self.devices[at];
        pending.sums.push(sums);
        pending.params.push((self.found.len() - 1, how));
    }
}

/// The norms of all parameters: one transfer from each device that holds any of them.
fn read(devices: Vec<Pending>, len: usize) -> Vec<f64> {
    let mut norms = vec![0.0; len];
    for pending in devices {
        let sums: Vec<f64> = Tensor::cat(pending.sums, 0)
            .into_data()
            .iter::<f64>()
            .collect();
        let mut rest = sums.as_slice();
        for (param, how) in pending.params {
            let (own, others) = rest.split_at(how.len());
            norms[param] = how.norm(own);
            rest = others;
        }
    }
    norms
}
