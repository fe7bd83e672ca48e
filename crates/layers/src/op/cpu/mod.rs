//! CPU backends onto the `kernels` crate: their buffers are read where they lie.

#[cfg(feature = "flex")]
mod flex;
#[cfg(feature = "ndarray")]
mod ndarray;

use std::borrow::Cow;

use burn::backend::DType;
use kernels::{
    Dropout, Element, Gradients, KeptWeights, KeyRanges, Matmul, Problem, Real, Saved, View,
    ViewMut, forward_keeping, matmul_vec,
};

use super::{AttentionOptions, Wanted};

/// An element type that the kernels compute with.
trait Float: Element {
    const DTYPE: DType;
    const ACC_DTYPE: DType;

    /// To the type of the arithmetic.
    fn widen(self) -> Self::Acc;

    /// Back from it.
    fn narrow(acc: Self::Acc) -> Self;
}

macro_rules! float {
    ($($type:ty, $acc:ty, $dtype:ident, $acc_dtype:ident, $narrow:expr;)*) => {$(
        impl Float for $type {
            const DTYPE: DType = DType::$dtype;
            const ACC_DTYPE: DType = DType::$acc_dtype;

            fn widen(self) -> $acc {
                self.into()
            }

            fn narrow(acc: $acc) -> Self {
                $narrow(acc)
            }
        }
    )*};
}

float! {
    f32, f32, F32, F32, core::convert::identity;
    f64, f64, F64, F64, core::convert::identity;
}
#[cfg(feature = "flex")]
float! {
    burn::backend::f16, f32, F16, F32, burn::backend::f16::from_f32;
    burn::backend::bf16, f32, BF16, F32, burn::backend::bf16::from_f32;
}

/// A tensor as it lies in memory.
struct Strided<'a, T: Clone> {
    data: Cow<'a, [T]>,
    shape: [usize; 4],
    strides: [isize; 4],
    offset: usize,
}

impl<T: Clone> Strided<'_, T> {
    fn view(&self) -> View<'_, T>
    where
        T: Copy,
    {
        self.ordered([0, 1, 2, 3])
    }

    /// The samples of `[1, batch, length, width]` as the kernels count them.
    fn samples(&self) -> View<'_, T>
    where
        T: Copy,
    {
        self.ordered([1, 0, 2, 3])
    }

    /// With the axes in another order.
    fn ordered(&self, axes: [usize; 4]) -> View<'_, T>
    where
        T: Copy,
    {
        let (shape, strides) = (
            axes.map(|axis| self.shape[axis]),
            axes.map(|axis| self.strides[axis]),
        );
        View::new(&self.data, shape, strides, self.offset)
            .expect("a backend's tensor lies inside of its buffer")
    }
}

/// `input * weight + bias`, row after row.
fn project<T: Float + Real>(
    input: &Strided<T>,
    weight: &Strided<T>,
    bias: Option<&[T]>,
) -> (Vec<T>, [usize; 3]) {
    let [_, batch, length, _] = input.shape;
    let d_output = weight.shape[3];
    let mut problem = Matmul::new(input.samples(), weight.view());
    problem.bias = bias;
    (product(&problem), [batch, length, d_output])
}

/// The gradient at a projection's weight.
fn weight_gradient<T: Float + Real>(
    input: &Strided<T>,
    gradient: &Strided<T>,
) -> (Vec<T>, [usize; 2]) {
    let shape = [input.shape[3], gradient.shape[3]];
    let mut problem = Matmul::new(input.samples(), gradient.samples());
    problem.turn_left = true;
    (product(&problem), shape)
}

fn product<T: Float + Real>(problem: &Matmul<T>) -> Vec<T> {
    matmul_vec(problem).expect("the modules check what they pass on")
}

/// The sizes or strides of four axes, of which the first may be missing.
fn four<N: Copy>(numbers: &[N], missing: N) -> [N; 4] {
    let mut four = [missing; 4];
    four[4 - numbers.len()..].copy_from_slice(numbers);
    four
}

/// A tensor made here.
struct Made<T> {
    data: Vec<T>,
    shape: [usize; 4],
    strides: [isize; 4],
}

/// Room for a tensor. The kernels write all of it, so that nothing need clear it first.
struct Room<T>(Made<T>);

impl<T: Float> Room<T> {
    /// In the order of the axes that another tensor has: where that was split into heads without a
    /// copy, this joins back without one.
    fn like(shape: [usize; 4], other: [isize; 4]) -> Self {
        let [_, heads, length, width] = shape.map(|size| size as isize);
        let heads_inside = other[1] < other[2];
        let strides = match heads_inside {
            true => [heads * length * width, width, heads * width, 1],
            false => [heads * length * width, length * width, width, 1],
        };
        Self(Made {
            data: Vec::with_capacity(shape.iter().product()),
            shape,
            strides,
        })
    }

    fn len(&self) -> usize {
        self.0.shape.iter().product()
    }

    fn view(&mut self) -> ViewMut<'_, T> {
        let len = self.len();
        let room = &mut self.0.data.spare_capacity_mut()[..len];
        ViewMut::unwritten(room, self.0.shape, self.0.strides, 0)
            .expect("a buffer made for its shape holds it")
    }

    /// The tensor.
    ///
    /// # Safety
    ///
    /// The kernels must have written the view.
    unsafe fn written(mut self) -> Made<T> {
        let len = self.len();
        // SAFETY: strides and shape are such that the view reaches each element.
        unsafe { self.0.data.set_len(len) };
        self.0
    }
}

/// The tensors of a call.
struct Inputs<'a, T: Float> {
    query: Strided<'a, T>,
    key: Strided<'a, T>,
    value: Strided<'a, T>,
    mask: Option<Strided<'a, u8>>,
    bias: Option<Strided<'a, T>>,
    sink: Option<Vec<T::Acc>>,
}

impl<T: Float> Inputs<'_, T> {
    fn problem<'b>(&'b self, options: &'b AttentionOptions) -> Problem<'b, T> {
        let mut problem = Problem::new(self.query.view(), self.key.view(), self.value.view());
        problem.scale = options.scale;
        problem.softcap = options.softcap;
        problem.key_ranges = options.rows.as_deref().map(|rows| KeyRanges {
            first: &rows.first,
            end: &rows.end,
            position: &rows.position,
        });
        problem.blocked = self.mask.as_ref().map(Strided::view);
        problem.bias = self.bias.as_ref().map(Strided::view);
        problem.alibi = options.alibi.as_deref();
        problem.sink = self.sink.as_deref();
        problem.dropout = options.dropout.map(|dropout| Dropout {
            probability: dropout.probability,
            seed: dropout.seed,
        });
        problem
    }

    fn forward(&self, options: &AttentionOptions) -> (Made<T>, Vec<T::Acc>) {
        let [batch, heads, query_len, _] = self.query.shape;
        let d_v = self.value.shape[3];
        let mut context = Room::like([batch, heads, query_len, d_v], self.query.strides);
        let mut logsumexp = vec![T::Acc::default(); batch * heads * query_len];
        let problem = self.problem(options);
        let done = match &options.kept {
            None => kernels::forward(&problem, context.view(), &mut logsumexp),
            Some(slot) => {
                let mut kept = KeptWeights::default();
                let done = forward_keeping(&problem, context.view(), &mut logsumexp, &mut kept);
                if !kept.is_empty() {
                    slot.put(kept);
                }
                done
            }
        };
        done.expect("the modules check what they pass on");
        // SAFETY: the kernels have returned without an error.
        (unsafe { context.written() }, logsumexp)
    }

    fn backward(&self, options: &AttentionOptions, saved: &Saved<T>, wanted: Wanted) -> Found<T> {
        let like = |input: &Strided<T>, wanted: bool| {
            wanted.then(|| Room::like(input.shape, input.strides))
        };
        let mut query = like(&self.query, wanted.query);
        let mut key = like(&self.key, wanted.key);
        let mut value = like(&self.value, wanted.value);
        let mut bias = self.bias.as_ref().and_then(|bias| like(bias, wanted.bias));
        let mut sink = self
            .sink
            .as_ref()
            .filter(|_| wanted.sink)
            .map(|sink| vec![T::Acc::default(); sink.len()]);
        let gradients = Gradients {
            query: query.as_mut().map(Room::view),
            key: key.as_mut().map(Room::view),
            value: value.as_mut().map(Room::view),
            bias: bias.as_mut().map(Room::view),
            sink: sink.as_deref_mut(),
        };
        kernels::backward(&self.problem(options), saved, gradients)
            .expect("the modules check what they pass on");
        // SAFETY: the kernels have returned without an error.
        let written = |room: Option<Room<T>>| room.map(|room| unsafe { room.written() });
        Found {
            query: written(query),
            key: written(key),
            value: written(value),
            bias: written(bias),
            sink: sink.map(|sink| sink.into_iter().map(T::narrow).collect()),
        }
    }
}

/// The weights that the forward pass kept.
fn kept<T: Float>(options: &AttentionOptions) -> Option<&KeptWeights<T::Acc>> {
    options.kept.as_ref()?.get()
}

/// The gradients that were wanted.
struct Found<T> {
    query: Option<Made<T>>,
    key: Option<Made<T>>,
    value: Option<Made<T>>,
    bias: Option<Made<T>>,
    sink: Option<Vec<T>>,
}
