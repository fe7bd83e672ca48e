//! The linear layers around attention.
//!
//! CPU backends make the products with the `kernels` crate, which reads rows and turned matrices
//! where they lie; the default bodies are Burn's own.

// The backend trait's expansion names NdArray, whose crate is deprecated as a whole.
#![cfg_attr(feature = "ndarray", allow(deprecated))]

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Shape, TensorMetadata, backend_extension};
use burn::nn::Linear;
use burn::tensor::Tensor;

use super::MaybeFloat;
use super::wrapper::is_listed;

/// A Burn backend that projections run on.
///
/// Implementations may leave everything to the default bodies. All tensors of a call have one
/// element type.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    NdArray: cfg(feature = "ndarray"),
    Cube: cfg(feature = "cube"),
    Autodiff,
)]
pub trait ProjectionBackend: Backend {
    /// `input * weight + bias`.
    ///
    /// # Shapes
    ///
    /// - input: `[batch, length, d_input]`, no axis of size 0
    /// - weight: `[d_input, d_output]`
    /// - bias: `[d_output]`
    /// - output: `[batch, length, d_output]`
    fn project(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        #[extension_type] bias: MaybeFloat<Self>,
    ) -> FloatTensor<Self> {
        project_by_primitives::<Self>(input, weight, bias)
    }

    /// The gradient at the weight, `[d_input, d_output]`, from that at the output.
    fn weight_gradient(input: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::linear_weight_backward(input, gradient)
    }
}

/// The projection, as one product of all rows.
///
/// With a batch axis, Burn 0.22.1 makes a product a sample of it where the length is a multiple of
/// 32 or the batch large.
pub(crate) fn project_by_primitives<B: Backend>(
    input: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: MaybeFloat<B>,
) -> FloatTensor<B> {
    let [batch, length, d_input] = input.shape().dims();
    let [_, d_output] = weight.shape().dims();
    let rows = B::float_reshape(input, Shape::new([batch * length, d_input]));
    let output = B::linear(rows, weight, bias.into_option());
    B::float_reshape(output, Shape::new([batch, length, d_output]))
}

/// `[batch, length, d_input]` through a linear layer.
pub(crate) fn project(layer: &Linear, input: Tensor<3>) -> Tensor<3> {
    let [batch, length, d_input] = input.dims();
    let weight = layer.weight.val();
    let shape = [batch, length, weight.dims()[1]];
    // Burn's products of no rows crash on CPU.
    if batch * length == 0 {
        return Tensor::zeros(shape, (&input.device(), input.dtype()));
    }
    let bias = layer.bias.as_ref().map(|bias| bias.val());
    let mut types = bias.iter().map(|bias| bias.dtype()).chain([weight.dtype()]);
    // Quantised weights and mixed types are Burn's to refuse or to convert.
    let alike = types.all(|dtype| dtype == input.dtype());
    if !alike || !is_listed(input.device().inner().as_dispatch()) {
        let rows = input.reshape([batch * length, d_input]);
        return layer.forward(rows).reshape(shape);
    }
    Tensor::from_dispatch(Dispatch::project(
        input.into_dispatch(),
        weight.into_dispatch(),
        MaybeFloat::from_option(bias.map(Tensor::into_dispatch)),
    ))
}

/// The backward step of a projection.
#[derive(Debug)]
struct Projection;

/// What it needs. The tensors stay with the graph, which may recompute them.
#[derive(Clone, Debug)]
struct State {
    /// Kept if the weight has a gradient.
    input: Option<NodeId>,
    /// Kept if the input has a gradient.
    weight: Option<NodeId>,
    /// Without a bias the third parent is the input once more.
    has_bias: bool,
}

impl<B: ProjectionBackend> Backward<B, 3> for Projection {
    type State = State;

    fn backward(
        self,
        ops: Ops<State, 3>,
        gradients: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let gradient = gradients.consume::<B>(&ops.node);
        let mut retrieve = |id| checkpointer.retrieve_node_output::<FloatTensor<B>>(id);
        let input = ops.state.input.map(&mut retrieve);
        let weight = ops.state.weight.map(&mut retrieve);
        let [input_node, weight_node, bias_node] = ops.parents;
        if let (Some(node), Some(weight)) = (input_node, weight) {
            let turned = B::float_swap_dims(weight, 0, 1);
            let at_input = B::project(gradient.clone(), turned, MaybeFloat::None);
            gradients.register::<B>(node.id, at_input);
        }
        if let (Some(node), Some(input)) = (weight_node, input) {
            let at_weight = B::weight_gradient(input, gradient.clone());
            gradients.register::<B>(node.id, at_weight);
        }
        if let Some(node) = bias_node.filter(|_| ops.state.has_bias) {
            gradients.register::<B>(node.id, B::linear_bias_backward(gradient));
        }
    }
}

impl<B: ProjectionBackend, C: CheckpointStrategy> ProjectionBackend for Autodiff<B, C> {
    fn project(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: MaybeFloat<Self>,
    ) -> FloatTensor<Self> {
        let bias = bias.into_option();
        let has_bias = bias.is_some();
        let third = bias.as_ref().map_or(input.node(), |bias| bias.node());
        let nodes = [input.node(), weight.node(), third];
        let output = B::project(
            input.primitive().clone(),
            weight.primitive().clone(),
            MaybeFloat::from_option(bias.map(|bias| bias.primitive().clone())),
        );
        match Projection.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(mut preparation) => {
                let state = State {
                    input: weight.is_tracked().then(|| preparation.checkpoint(&input)),
                    weight: input.is_tracked().then(|| preparation.checkpoint(&weight)),
                    has_bias,
                };
                preparation.finish(state, output)
            }
            OpsKind::UnTracked(preparation) => preparation.finish(output),
        }
    }
}
