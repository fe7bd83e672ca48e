//! One case: its attributes and its tensors, and which of them the runner has used.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use burn::tensor::{Bool, DType, Device, Tensor};
use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use serde_json::{Map, Value};
use tests::{Tolerance, bools, compare, floats_as, values};

/// A case, with its numbers on the host.
pub struct Case {
    pub operator: String,
    attributes: Map<String, Value>,
    tensors: BTreeMap<String, Array>,
    own_tolerance: Option<Tolerance>,
    unread: RefCell<BTreeSet<String>>,
    wrong: RefCell<Vec<String>>,
}

/// A tensor of a case; booleans are 0 and 1.
#[derive(Clone, Debug)]
pub struct Array {
    pub shape: Vec<usize>,
    pub numbers: Vec<f64>,
    pub dtype: Kind,
}

/// The element type of a tensor of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Float(DType),
    Bool,
    Int,
}

/// The metadata entry of a case.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    #[serde(rename = "name")]
    _name: String,
    operator: String,
    attributes: Map<String, Value>,
    #[serde(rename = "opset")]
    _opset: Option<u32>,
    rtol: Option<f64>,
    atol: Option<f64>,
}

impl Case {
    pub fn read(path: &Path) -> Result<Self, String> {
        let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
        let (_, header) =
            SafeTensors::read_metadata(&bytes).map_err(|error| format!("header: {error}"))?;
        let text = header
            .metadata()
            .as_ref()
            .and_then(|entries| entries.get("case"))
            .ok_or("the metadata has no entry `case`")?;
        let description: Description =
            serde_json::from_str(text).map_err(|error| format!("metadata: {error}"))?;
        let file = SafeTensors::deserialize(&bytes).map_err(|error| error.to_string())?;
        let mut tensors = BTreeMap::new();
        for (name, view) in file.iter() {
            let array = Array::new(view.dtype(), view.shape(), view.data())
                .map_err(|dtype| format!("not supported: {name} of {dtype}"))?;
            tensors.insert(name.to_owned(), array);
        }
        let names = tensors.keys().chain(description.attributes.keys());
        Ok(Self {
            operator: description.operator,
            unread: RefCell::new(names.cloned().collect()),
            own_tolerance: match (description.atol, description.rtol) {
                (Some(absolute), Some(relative)) => Some(Tolerance::new(absolute, relative)),
                _ => None,
            },
            attributes: description.attributes,
            tensors,
            wrong: RefCell::default(),
        })
    }

    /// The half-precision types among its tensors.
    pub fn half_types(&self) -> impl Iterator<Item = DType> {
        self.tensors.values().filter_map(|array| match array.dtype {
            Kind::Float(dtype @ (DType::F16 | DType::BF16)) => Some(dtype),
            _ => None,
        })
    }

    /// A tensor, if the case has it.
    pub fn array(&self, name: &str) -> Option<&Array> {
        self.unread.borrow_mut().remove(name);
        self.tensors.get(name)
    }

    /// A tensor that the case must have.
    pub fn needed(&self, name: &str) -> Result<&Array, String> {
        self.array(name)
            .ok_or_else(|| format!("the tensor {name} is missing"))
    }

    /// An attribute, unless it is absent or null.
    pub fn attribute<T: for<'a> Deserialize<'a>>(&self, name: &str) -> Result<Option<T>, String> {
        self.unread.borrow_mut().remove(name);
        match self.attributes.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => serde_json::from_value(value.clone())
                .map(Some)
                .map_err(|_| format!("not supported: {name} {value}")),
        }
    }

    /// Compares a result with a tensor of the case, if the case has it.
    pub fn check<const D: usize>(&self, name: &str, found: Tensor<D>) {
        let shape = found.dims();
        self.check_numbers(name, &values(found), &shape);
    }

    /// As [`check`](Self::check), with numbers of a shape.
    pub fn check_numbers(&self, name: &str, found: &[f64], shape: &[usize]) {
        let Some(expected) = self.array(name) else {
            return;
        };
        if expected.shape != shape {
            let message = format!("{name}: shape {shape:?} instead of {:?}", expected.shape);
            return self.wrong(message);
        }
        let tolerance = self.tolerance(name, expected.dtype);
        if let Err(difference) = compare(found, &expected.numbers, shape, tolerance) {
            self.wrong(format!("{name}: {difference}"));
        }
    }

    fn tolerance(&self, name: &str, dtype: Kind) -> Tolerance {
        // The expectation of a half-precision case is itself rounded to that type, so a result on
        // the other side of a rounding boundary is one unit off without being less right.
        let half = |epsilon: f64| {
            let own = self.own_tolerance.unwrap_or(Tolerance::new(1e-7, 1e-3));
            own.or_neighbour(epsilon)
        };
        match dtype {
            Kind::Float(DType::F16) => half(f16::EPSILON.to_f64()),
            Kind::Float(DType::BF16) => half(bf16::EPSILON.to_f64()),
            _ if name.starts_with("grad.") => Tolerance::new(1e-4, 1e-3),
            _ => Tolerance::new(1e-5, 1e-4),
        }
    }

    /// Notes what is wrong, so that one run shows all of it.
    pub fn wrong(&self, message: String) {
        self.wrong.borrow_mut().push(message);
    }

    /// Notes two results that should be the same to the last bit and are not.
    pub fn check_same(&self, name: &str, one: &[f64], other: &[f64]) {
        let same = one.len() == other.len()
            && one
                .iter()
                .zip(other)
                .all(|(one, other)| one.to_bits() == other.to_bits());
        if !same {
            self.wrong(format!("{name} is not the same"));
        }
    }

    /// What is wrong with the results, or what the runner did not look at.
    pub fn verdict(&self) -> Result<(), String> {
        let unread = self.unread.borrow();
        let mut wrong = self.wrong.borrow_mut();
        wrong.extend(unread.iter().map(|name| format!("not supported: {name}")));
        match wrong.is_empty() {
            true => Ok(()),
            false => Err(wrong.join("\n")),
        }
    }
}

impl Array {
    fn new(dtype: Dtype, shape: &[usize], bytes: &[u8]) -> Result<Self, String> {
        fn each<const N: usize>(bytes: &[u8], read: impl Fn([u8; N]) -> f64) -> Vec<f64> {
            let chunks = bytes.as_chunks::<N>().0;
            chunks.iter().map(|chunk| read(*chunk)).collect()
        }
        let (dtype, numbers) = match dtype {
            Dtype::F64 => (Kind::Float(DType::F64), each(bytes, f64::from_le_bytes)),
            Dtype::F32 => (
                Kind::Float(DType::F32),
                each(bytes, |b| f32::from_le_bytes(b).into()),
            ),
            Dtype::F16 => (
                Kind::Float(DType::F16),
                each(bytes, |b| f16::from_le_bytes(b).into()),
            ),
            Dtype::BF16 => (
                Kind::Float(DType::BF16),
                each(bytes, |b| bf16::from_le_bytes(b).into()),
            ),
            Dtype::BOOL => (Kind::Bool, each(bytes, |[byte]| f64::from(byte))),
            Dtype::I64 => (Kind::Int, each(bytes, |b| i64::from_le_bytes(b) as f64)),
            other => return Err(format!("{other:?}")),
        };
        Ok(Self {
            shape: shape.to_vec(),
            numbers,
            dtype,
        })
    }

    /// The shape with axes of 1 before it.
    pub fn shape_of_rank<const D: usize>(&self) -> Result<[usize; D], String> {
        let mut shape = [1; D];
        let given = self.shape.len();
        if given > D {
            return Err(format!("not supported: rank {given}"));
        }
        shape[D - given..].copy_from_slice(&self.shape);
        Ok(shape)
    }

    /// As a float tensor of its own type, with axes of 1 before its own.
    pub fn floats<const D: usize>(&self, device: &Device) -> Result<Tensor<D>, String> {
        let Kind::Float(dtype) = self.dtype else {
            return Err(format!("not supported: {:?} instead of floats", self.dtype));
        };
        Ok(floats_as(
            &self.numbers,
            self.shape_of_rank()?,
            dtype,
            device,
        ))
    }

    /// As a boolean tensor, with axes of 1 before its own.
    pub fn bools<const D: usize>(&self, device: &Device) -> Result<Tensor<D, Bool>, String> {
        let values: Vec<bool> = self.numbers.iter().map(|number| *number != 0.0).collect();
        Ok(bools(&values, self.shape_of_rank()?, device))
    }

    /// As sizes.
    pub fn sizes(&self) -> Vec<usize> {
        self.numbers.iter().map(|number| *number as usize).collect()
    }
}
