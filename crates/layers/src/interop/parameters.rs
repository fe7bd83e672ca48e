//! The parameters of a module by path: what they need, and setting them.

use std::collections::{BTreeMap, HashMap};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{DType, Tensor, TensorData};

use crate::multi_head::MultiHeadAttention;

/// Shape and element type of every parameter.
pub(super) fn parameters(module: &MultiHeadAttention) -> BTreeMap<String, (Vec<usize>, DType)> {
    let mut list = List::default();
    module.visit(&mut list);
    list.found
}

/// Gives parameters new values, which must fit; they keep identity, device and gradient setting.
pub(super) fn set_parameters(module: &mut MultiHeadAttention, values: HashMap<String, TensorData>) {
    let mut set = Set {
        path: Vec::new(),
        values,
    };
    *module = module.clone().map(&mut set);
}

#[derive(Default)]
struct List {
    path: Vec<String>,
    found: BTreeMap<String, (Vec<usize>, DType)>,
}

impl ModuleVisitor for List {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let needs = (param.dims().to_vec(), param.dtype());
        self.found.insert(self.path.join("."), needs);
    }
}

struct Set {
    path: Vec<String>,
    values: HashMap<String, TensorData>,
}

impl ModuleMapper for Set {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(data) = self.values.remove(&self.path.join(".")) else {
            return param;
        };
        let require_grad = param.is_require_grad();
        param.map(|old| {
            let options = (&old.device(), data.dtype());
            Tensor::from_data(data, options).set_require_grad(require_grad)
        })
    }
}
