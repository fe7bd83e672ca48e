//! NdArray: f32 and f64; buffers whose axes are only permuted are read without a copy.
#![allow(deprecated)] // The crate is deprecated as a whole.

use std::borrow::Cow;

use burn::backend::ndarray::NdArrayTensor;
use burn::backend::ops::FloatTensorOps;
use burn::backend::{DType, NdArray, TensorData, TensorMetadata};

use super::{Float, Inputs, Made, Strided, four, kept};
use crate::op::projection::ProjectionBackend;
use crate::op::{
    AttentionBackend, AttentionGradients, AttentionOptions, MaybeBool, MaybeFloat, Modifiers,
    Wanted, tiled,
};

/// An element of an NdArray buffer.
trait Stored: Float + burn::tensor::Element {
    /// The tensor as it lies, or a copy in standard order. The shape and the strides have the
    /// tensor's rank.
    fn lying(tensor: &NdArrayTensor) -> (Cow<'_, [Self]>, Vec<isize>);

    /// All elements, row by row.
    fn standard_order(tensor: &NdArrayTensor) -> Vec<Self>;
}

/// The buffer of a view: its own memory if it is dense, whatever the order of its axes.
macro_rules! lying {
    ($storage:expr) => {{
        let view = $storage.view();
        let dense = view.strides().iter().all(|stride| *stride >= 0);
        match view.to_slice_memory_order().filter(|_| dense) {
            Some(slice) => (Cow::Borrowed(slice), view.strides().to_vec()),
            None => {
                let standard = view.as_standard_layout();
                let strides = standard.strides().to_vec();
                (Cow::Owned(standard.iter().copied().collect()), strides)
            }
        }
    }};
}

macro_rules! stored {
    ($($type:ty, $variant:ident;)*) => {$(
        impl Stored for $type {
            fn lying(tensor: &NdArrayTensor) -> (Cow<'_, [Self]>, Vec<isize>) {
                match tensor {
                    NdArrayTensor::$variant(storage) => lying!(storage),
                    other => panic!("expected {:?}, got {:?}", Self::DTYPE, other.dtype()),
                }
            }

            fn standard_order(tensor: &NdArrayTensor) -> Vec<Self> {
                match tensor {
                    NdArrayTensor::$variant(storage) => storage.view().iter().copied().collect(),
                    other => panic!("expected {:?}, got {:?}", Self::DTYPE, other.dtype()),
                }
            }
        }
    )*};
}

stored! {
    f32, F32;
    f64, F64;
}

macro_rules! with_element {
    ($dtype:expr, |$type:ident| $kernels:expr, $default:expr) => {
        match $dtype {
            DType::F32 => {
                type $type = f32;
                $kernels
            }
            DType::F64 => {
                type $type = f64;
                $kernels
            }
            _ => $default,
        }
    };
}

impl AttentionBackend for NdArray {
    fn attention_forward(
        query: NdArrayTensor,
        key: NdArrayTensor,
        value: NdArrayTensor,
        modifiers: Modifiers<Self>,
        options: AttentionOptions,
    ) -> (NdArrayTensor, NdArrayTensor) {
        with_element!(
            query.dtype(),
            |T| {
                let inputs = inputs::<T>(&query, &key, &value, &modifiers);
                let (context, logsumexp) = inputs.forward(&options);
                let [batch, heads, query_len, _] = context.shape;
                let logsumexp = TensorData::new(logsumexp, [batch, heads, query_len]);
                (made(context), NdArrayTensor::from_data(logsumexp))
            },
            tiled::forward::<Self>(query, key, value, modifiers, &options)
        )
    }

    fn attention_backward(
        query: NdArrayTensor,
        key: NdArrayTensor,
        value: NdArrayTensor,
        context: NdArrayTensor,
        logsumexp: NdArrayTensor,
        context_gradient: NdArrayTensor,
        logsumexp_gradient: MaybeFloat<Self>,
        modifiers: Modifiers<Self>,
        options: AttentionOptions,
        wanted: Wanted,
    ) -> AttentionGradients<Self> {
        let logsumexp_gradient = logsumexp_gradient.into_option();
        with_element!(
            query.dtype(),
            |T| {
                let inputs = inputs::<T>(&query, &key, &value, &modifiers);
                let (context, gradient) = (strided::<T>(&context), strided::<T>(&context_gradient));
                // The type of the arithmetic is the element's own here.
                let rows = T::standard_order;
                let logsumexp = rows(&logsumexp);
                let logsumexp_gradient = logsumexp_gradient.as_ref().map(rows);
                let saved = kernels::Saved {
                    out: context.view(),
                    lse: &logsumexp,
                    kept: kept::<T>(&options),
                    grad_out: gradient.view(),
                    grad_lse: logsumexp_gradient.as_deref(),
                };
                let found = inputs.backward(&options, &saved, wanted);
                let maybe = |gradient: Option<Made<T>>| MaybeFloat::from_option(gradient.map(made));
                AttentionGradients {
                    query: maybe(found.query),
                    key: maybe(found.key),
                    value: maybe(found.value),
                    bias: maybe(found.bias),
                    sink: MaybeFloat::from_option(found.sink.map(|sink| {
                        let shape = [sink.len()];
                        NdArrayTensor::from_data(TensorData::new(sink, shape))
                    })),
                }
            },
            {
                let saved = tiled::Saved {
                    context,
                    logsumexp,
                    context_gradient,
                    logsumexp_gradient,
                };
                tiled::backward::<Self>(query, key, value, saved, modifiers, &options, wanted)
            }
        )
    }
}

impl ProjectionBackend for NdArray {
    fn project(
        input: NdArrayTensor,
        weight: NdArrayTensor,
        bias: MaybeFloat<Self>,
    ) -> NdArrayTensor {
        match input.dtype() {
            DType::F64 => project::<f64>(&input, &weight, bias.into_option()),
            _ => project::<f32>(&input, &weight, bias.into_option()),
        }
    }

    fn weight_gradient(input: NdArrayTensor, gradient: NdArrayTensor) -> NdArrayTensor {
        match input.dtype() {
            DType::F64 => weight_gradient::<f64>(&input, &gradient),
            _ => weight_gradient::<f32>(&input, &gradient),
        }
    }
}

fn project<T: Stored + kernels::Real>(
    input: &NdArrayTensor,
    weight: &NdArrayTensor,
    bias: Option<NdArrayTensor>,
) -> NdArrayTensor {
    let bias = bias.as_ref().map(T::standard_order);
    tensor(super::project(
        &strided(input),
        &strided(weight),
        bias.as_deref(),
    ))
}

fn weight_gradient<T: Stored + kernels::Real>(
    input: &NdArrayTensor,
    gradient: &NdArrayTensor,
) -> NdArrayTensor {
    tensor(super::weight_gradient::<T>(
        &strided(input),
        &strided(gradient),
    ))
}

fn tensor<T: Stored, const D: usize>((data, shape): (Vec<T>, [usize; D])) -> NdArrayTensor {
    NdArrayTensor::from_data(TensorData::new(data, shape))
}

fn inputs<'a, T: Stored>(
    query: &'a NdArrayTensor,
    key: &'a NdArrayTensor,
    value: &'a NdArrayTensor,
    modifiers: &'a Modifiers<NdArray>,
) -> Inputs<'a, T> {
    Inputs {
        query: strided(query),
        key: strided(key),
        value: strided(value),
        mask: match &modifiers.mask {
            MaybeBool::None => None,
            MaybeBool::Some(mask) => Some(mask_bytes(mask)),
        },
        bias: match &modifiers.bias {
            MaybeFloat::None => None,
            MaybeFloat::Some(bias) => Some(strided(bias)),
        },
        sink: match &modifiers.sink {
            MaybeFloat::None => None,
            MaybeFloat::Some(sink) => {
                let sink = T::standard_order(sink);
                Some(sink.into_iter().map(Float::widen).collect())
            }
        },
    }
}

fn strided<T: Stored>(tensor: &NdArrayTensor) -> Strided<'_, T> {
    let (data, strides) = T::lying(tensor);
    Strided {
        data,
        shape: four(&tensor.shape(), 1),
        strides: four(&strides, 0),
        offset: 0,
    }
}

fn mask_bytes(mask: &NdArrayTensor) -> Strided<'_, u8> {
    let NdArrayTensor::Bool(storage) = mask else {
        panic!("expected a boolean mask, got {:?}", mask.dtype());
    };
    let (data, strides): (Cow<'_, [bool]>, Vec<isize>) = lying!(storage);
    Strided {
        data: match data {
            Cow::Borrowed(slice) => Cow::Borrowed(bytemuck::cast_slice(slice)),
            Cow::Owned(list) => Cow::Owned(list.into_iter().map(u8::from).collect()),
        },
        shape: mask.shape().dims(),
        strides: strides.try_into().expect("rank 4"),
        offset: 0,
    }
}

fn made<T: Stored>(made: Made<T>) -> NdArrayTensor {
    let [batch, heads, length, width] = made.shape;
    // The order of the axes in memory, and the way back to theirs.
    if made.strides[1] < made.strides[2] {
        let data = TensorData::new(made.data, [batch, length, heads, width]);
        return NdArray::float_swap_dims(NdArrayTensor::from_data(data), 1, 2);
    }
    NdArrayTensor::from_data(TensorData::new(made.data, made.shape))
}
