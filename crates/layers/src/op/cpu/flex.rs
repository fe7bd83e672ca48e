//! Flex: any strides are read without a copy.

use std::borrow::Cow;

use burn::backend::flex::{FlexTensor, Layout};
use burn::backend::ops::ModuleOps;
use burn::backend::{BoolStore, Bytes, DType, Flex, Shape, bf16, f16};

use super::{Float, Inputs, Made, Strided, four, kept};
use crate::op::projection::{ProjectionBackend, project_by_primitives};
use crate::op::{
    AttentionBackend, AttentionGradients, AttentionOptions, MaybeBool, MaybeFloat, Modifiers,
    Wanted, tiled,
};

/// An element of a Flex buffer.
trait Stored: Float {
    fn stored(tensor: &FlexTensor) -> &[Self];
    fn bytes(data: Vec<Self>) -> Bytes;
}

macro_rules! stored {
    ($($type:ty),*) => {$(
        impl Stored for $type {
            fn stored(tensor: &FlexTensor) -> &[Self] {
                tensor.storage::<$type>()
            }

            fn bytes(data: Vec<Self>) -> Bytes {
                Bytes::from_elems(data)
            }
        }
    )*};
}

stored!(f32, f64, f16, bf16);

/// The tensors of a call, in the element type that the kernels are compiled for.
macro_rules! with_element {
    ($dtype:expr, $mask:expr, |$type:ident| $kernels:expr, $default:expr) => {
        match ($dtype, mask_is_bytes($mask)) {
            (DType::F32, true) => {
                type $type = f32;
                $kernels
            }
            (DType::F64, true) => {
                type $type = f64;
                $kernels
            }
            (DType::F16, true) => {
                type $type = f16;
                $kernels
            }
            (DType::BF16, true) => {
                type $type = bf16;
                $kernels
            }
            _ => $default,
        }
    };
}

impl AttentionBackend for Flex {
    fn attention_forward(
        query: FlexTensor,
        key: FlexTensor,
        value: FlexTensor,
        modifiers: Modifiers<Self>,
        options: AttentionOptions,
    ) -> (FlexTensor, FlexTensor) {
        with_element!(
            query.dtype(),
            &modifiers.mask,
            |T| {
                let inputs = inputs::<T>(&query, &key, &value, &modifiers);
                let (context, logsumexp) = inputs.forward(&options);
                let [batch, heads, query_len, _] = context.shape;
                (
                    made(context),
                    row_numbers::<T>(logsumexp, [batch, heads, query_len]),
                )
            },
            tiled::forward::<Self>(query, key, value, modifiers, &options)
        )
    }

    fn attention_backward(
        query: FlexTensor,
        key: FlexTensor,
        value: FlexTensor,
        context: FlexTensor,
        logsumexp: FlexTensor,
        context_gradient: FlexTensor,
        logsumexp_gradient: MaybeFloat<Self>,
        modifiers: Modifiers<Self>,
        options: AttentionOptions,
        wanted: Wanted,
    ) -> AttentionGradients<Self> {
        let logsumexp_gradient = logsumexp_gradient.into_option();
        with_element!(
            query.dtype(),
            &modifiers.mask,
            |T| {
                let inputs = inputs::<T>(&query, &key, &value, &modifiers);
                let (context, gradient) = (strided::<T>(&context), strided::<T>(&context_gradient));
                let rows = in_order::<<T as kernels::Element>::Acc>;
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
                        let shape = Shape::new([sink.len()]);
                        FlexTensor::new(T::bytes(sink), Layout::contiguous(shape), T::DTYPE)
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

impl ProjectionBackend for Flex {
    fn project(input: FlexTensor, weight: FlexTensor, bias: MaybeFloat<Self>) -> FlexTensor {
        match input.dtype() {
            DType::F32 => project::<f32>(&input, &weight, bias.into_option()),
            DType::F64 => project::<f64>(&input, &weight, bias.into_option()),
            _ => project_by_primitives::<Self>(input, weight, bias),
        }
    }

    fn weight_gradient(input: FlexTensor, gradient: FlexTensor) -> FlexTensor {
        match input.dtype() {
            DType::F32 => weight_gradient::<f32>(&input, &gradient),
            DType::F64 => weight_gradient::<f64>(&input, &gradient),
            _ => Self::linear_weight_backward(input, gradient),
        }
    }
}

fn project<T: Stored + kernels::Real>(
    input: &FlexTensor,
    weight: &FlexTensor,
    bias: Option<FlexTensor>,
) -> FlexTensor {
    let bias = bias.as_ref().map(in_order::<T>);
    tensor(super::project(
        &strided(input),
        &strided(weight),
        bias.as_deref(),
    ))
}

fn weight_gradient<T: Stored + kernels::Real>(
    input: &FlexTensor,
    gradient: &FlexTensor,
) -> FlexTensor {
    tensor(super::weight_gradient::<T>(
        &strided(input),
        &strided(gradient),
    ))
}

fn tensor<T: Stored, const D: usize>((data, shape): (Vec<T>, [usize; D])) -> FlexTensor {
    FlexTensor::new(
        T::bytes(data),
        Layout::contiguous(Shape::new(shape)),
        T::DTYPE,
    )
}

/// All elements, in the order of the axes.
fn in_order<T: Stored>(tensor: &FlexTensor) -> Vec<T> {
    let tensor = tensor.to_contiguous();
    let start = tensor.layout().start_offset();
    T::stored(&tensor)[start..start + tensor.layout().num_elements()].to_vec()
}

/// Whether the kernels can read the mask: one byte an entry, as the device's settings have it by
/// default.
fn mask_is_bytes(mask: &MaybeBool<Flex>) -> bool {
    match mask {
        MaybeBool::None => true,
        MaybeBool::Some(mask) => {
            matches!(mask.dtype(), DType::Bool(BoolStore::Native | BoolStore::U8))
        }
    }
}

fn inputs<'a, T: Stored>(
    query: &'a FlexTensor,
    key: &'a FlexTensor,
    value: &'a FlexTensor,
    modifiers: &'a Modifiers<Flex>,
) -> Inputs<'a, T> {
    Inputs {
        query: strided(query),
        key: strided(key),
        value: strided(value),
        mask: match &modifiers.mask {
            MaybeBool::None => None,
            MaybeBool::Some(mask) => Some(lying(mask, mask.storage::<u8>())),
        },
        bias: match &modifiers.bias {
            MaybeFloat::None => None,
            MaybeFloat::Some(bias) => Some(strided(bias)),
        },
        sink: match &modifiers.sink {
            MaybeFloat::None => None,
            MaybeFloat::Some(sink) => {
                let sink = in_order::<T>(sink);
                Some(sink.into_iter().map(Float::widen).collect())
            }
        },
    }
}

fn strided<T: Stored>(tensor: &FlexTensor) -> Strided<'_, T> {
    lying(tensor, T::stored(tensor))
}

fn lying<'a, T: Clone>(tensor: &FlexTensor, data: &'a [T]) -> Strided<'a, T> {
    let layout = tensor.layout();
    Strided {
        data: Cow::Borrowed(data),
        shape: four(layout.shape(), 1),
        strides: four(layout.strides(), 0),
        offset: layout.start_offset(),
    }
}

fn made<T: Stored>(made: Made<T>) -> FlexTensor {
    let layout = Layout::new(Shape::new(made.shape), made.strides.to_vec(), 0);
    FlexTensor::new(T::bytes(made.data), layout, T::DTYPE)
}

fn row_numbers<T: Stored>(numbers: Vec<T::Acc>, shape: [usize; 3]) -> FlexTensor
where
    T::Acc: Stored,
{
    let layout = Layout::contiguous(Shape::new(shape));
    FlexTensor::new(Stored::bytes(numbers), layout, T::ACC_DTYPE)
}
