//! The layers on a problem of the reference.

use burn::module::Param;
use burn::tensor::{DType, Device, Tensor};
use layers::{
    AttentionInput, Mask, ScaledDotProductAttention, ScaledDotProductAttentionConfig, Segments,
};

use crate::compare::assert_bits;
use crate::reference::{Gradients, Problem, Sink, Upstream};
use crate::tensors::{bools, floats_as, values};

/// The tensors of a call and the input made of them.
#[derive(Clone, Debug)]
pub struct Call {
    /// `[batch, heads, query_len, d_k]`.
    pub query: Tensor<4>,
    /// `[batch, kv_heads, key_len, d_k]`.
    pub key: Tensor<4>,
    /// `[batch, kv_heads, key_len, d_v]`.
    pub value: Tensor<4>,
    /// Added to the scores.
    pub bias: Option<Tensor<4>>,
    /// All of it.
    pub input: AttentionInput,
}

/// What the layers give.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// `[batch, heads, query_len, d_v]`.
    pub context: Vec<f64>,
    /// `[batch, heads, query_len, key_len]`.
    pub weights: Vec<f64>,
    /// `[batch, heads, query_len]`.
    pub logsumexp: Vec<f64>,
}

/// The configuration of a problem.
pub fn config(problem: &Problem) -> ScaledDotProductAttentionConfig {
    let sink_heads = match &problem.sink {
        Sink::Learned(logits) => Some(logits.len()),
        Sink::None | Sink::Quiet => None,
    };
    ScaledDotProductAttentionConfig::new()
        .with_scale(problem.scale)
        .with_causal(problem.causal)
        .with_alignment(problem.alignment)
        .with_window(problem.window)
        .with_softcap(problem.softcap)
        .with_sink_heads(sink_heads)
        .with_quiet_softmax(problem.sink == Sink::Quiet)
        .with_alibi(problem.alibi)
}

/// The module of a problem, its parameters in an element type.
pub fn module(problem: &Problem, dtype: DType, device: &Device) -> ScaledDotProductAttention {
    let mut module = config(problem).init(device);
    let parameter =
        |numbers: &[f64]| Param::from_tensor(floats_as(numbers, [numbers.len()], dtype, device));
    if let Sink::Learned(logits) = &problem.sink {
        module.sink = Some(parameter(logits));
    }
    if module.learned_scale.is_some() {
        module.learned_scale = Some(parameter(&[problem.learned_factor]));
    }
    module
}

/// The tensors of a problem in an element type; leaves that get a gradient on an autodiff device.
pub fn input(problem: &Problem, dtype: DType, device: &Device) -> Call {
    let sizes = problem.sizes;
    let tensor = |numbers: &[f64], shape| {
        let tensor = floats_as(numbers, shape, dtype, device);
        match device.is_autodiff() {
            true => tensor.require_grad(),
            false => tensor,
        }
    };
    let query = tensor(&problem.query, sizes.query());
    let key = tensor(&problem.key, sizes.key());
    let value = tensor(&problem.value, sizes.value());
    let bias = problem
        .bias
        .as_ref()
        .map(|bias| tensor(&bias.values, bias.shape));
    let mut input = AttentionInput::new(query.clone(), key.clone(), value.clone());
    if let Some(bias) = &bias {
        input = input.bias(bias.clone());
    }
    if let Some(blocked) = &problem.blocked {
        input = input.mask(Mask::blocked(bools(&blocked.values, blocked.shape, device)));
    }
    if let Some(lengths) = &problem.key_lengths {
        input = input.key_lengths(lengths.clone());
    }
    if let Some(lengths) = &problem.query_lengths {
        input = input.query_lengths(lengths.clone());
    }
    if let Some(documents) = &problem.segments {
        input = input.segments(
            Segments::from_ids(documents.queries.clone()),
            Segments::from_ids(documents.keys.clone()),
        );
    }
    Call {
        query,
        key,
        value,
        bias,
        input,
    }
}

/// Runs a problem, and checks that asking for weights does not change the context by a bit.
pub fn attend(problem: &Problem, dtype: DType, device: &Device) -> Answer {
    let module = module(problem, dtype, device);
    let input = input(problem, dtype, device).input;
    let context = values(module.forward(input.clone()));
    let output = module.forward_with_weights(input);
    assert_bits(
        "context with weights asked",
        &values(output.context),
        &context,
    );
    Answer {
        context,
        weights: values(output.weights),
        logsumexp: values(output.logsumexp),
    }
}

/// Runs and differentiates a problem on the autodiff device of a device.
pub fn attend_and_differentiate(
    problem: &Problem,
    upstream: &Upstream,
    dtype: DType,
    device: &Device,
) -> (Answer, Gradients) {
    let device = &device.clone().autodiff();
    let module = module(problem, dtype, device);
    let call = input(problem, dtype, device);
    let output = module.forward_with_weights(call.input);
    let answer = Answer {
        context: values(output.context.clone()),
        weights: values(output.weights.clone()),
        logsumexp: values(output.logsumexp.clone()),
    };
    let sizes = problem.sizes;
    let upstream_tensor =
        |list: &[f64], shape: [usize; 4], dtype| floats_as(list, shape, dtype, device);
    // Sums in f32 at least, so that the loss itself does not overflow.
    let wide = output.logsumexp.dtype();
    let mut loss = (output.context * upstream_tensor(&upstream.context, sizes.context(), dtype))
        .cast(wide)
        .sum();
    if let Some(list) = &upstream.weights {
        let gradient = upstream_tensor(list, sizes.scores(), dtype);
        loss = loss + (output.weights * gradient).cast(wide).sum();
    }
    if let Some(list) = &upstream.logsumexp {
        // A row that sees nothing has a logsumexp of minus infinity, and no gradient.
        let empty = output.logsumexp.clone().equal_elem(f32::NEG_INFINITY);
        let gradient = floats_as(list, sizes.rows(), wide, device);
        loss = loss + (output.logsumexp.mask_fill(empty, 0.0) * gradient).sum();
    }
    let found = loss.backward();
    let gradient = |tensor: &Tensor<4>| {
        let gradient = tensor.grad(&found);
        gradient.map_or_else(|| vec![0.0; tensor.shape().num_elements()], values)
    };
    let parameter = |parameter: &Option<Param<Tensor<1>>>| {
        let parameter = parameter.as_ref()?.val();
        let gradient = parameter.grad(&found);
        Some(gradient.map_or_else(|| vec![0.0; parameter.dims()[0]], values))
    };
    let gradients = Gradients {
        query: gradient(&call.query),
        key: gradient(&call.key),
        value: gradient(&call.value),
        bias: call.bias.as_ref().map(gradient),
        sink: parameter(&module.sink),
        learned_factor: parameter(&module.learned_scale).map(|list| list[0]),
        scores: Vec::new(),
    };
    (answer, gradients)
}
