//! Between host numbers and tensors.

use burn::tensor::{Bool, DType, Device, Tensor, TensorData};

/// An f32 tensor from its numbers in row-major order.
pub fn floats<const D: usize>(numbers: &[f64], shape: [usize; D], device: &Device) -> Tensor<D> {
    floats_as(numbers, shape, DType::F32, device)
}

/// A tensor of any float type from its numbers in row-major order.
pub fn floats_as<const D: usize>(
    numbers: &[f64],
    shape: [usize; D],
    dtype: DType,
    device: &Device,
) -> Tensor<D> {
    let data = TensorData::new(numbers.to_vec(), shape).convert_dtype(dtype);
    Tensor::from_data(data, (device, dtype))
}

/// A boolean tensor from its values in row-major order.
pub fn bools<const D: usize>(
    values: &[bool],
    shape: [usize; D],
    device: &Device,
) -> Tensor<D, Bool> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), device)
}

/// An f32 tensor of one number.
pub fn filled<const D: usize>(number: f64, shape: [usize; D], device: &Device) -> Tensor<D> {
    floats(&vec![number; shape.iter().product()], shape, device)
}

/// An f32 leaf that a gradient is asked of.
pub fn leaf<const D: usize>(numbers: &[f64], shape: [usize; D], device: &Device) -> Tensor<D> {
    floats(numbers, shape, device).require_grad()
}

/// The numbers of a tensor in row-major order.
pub fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}
