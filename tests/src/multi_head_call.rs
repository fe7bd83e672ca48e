//! The layers' multi-head attention with the parameters of the reference's.

use burn::module::Param;
use burn::nn::{Linear, RmsNorm};
use burn::tensor::{Bool, Device, Tensor};
use layers::{Mask, MhaInput, MultiHeadAttention, MultiHeadAttentionConfig, QkNorm};

use crate::reference::{MultiHead, Normalization, Projection, Sink};
use crate::tensors::{bools, floats};

/// The module of a problem on a device.
pub fn multi_head_module(problem: &MultiHead, device: &Device) -> MultiHeadAttention {
    let options = &problem.template;
    let sizes = options.sizes;
    let parameter = |numbers: &[f64]| Param::from_tensor(floats(numbers, [numbers.len()], device));
    let mut module = MultiHeadAttentionConfig::new(problem.query.input, sizes.heads)
        .with_n_kv_heads(Some(sizes.kv_heads))
        .with_d_key(Some(problem.key.input))
        .with_d_value(Some(problem.value.input))
        .with_d_head(Some(sizes.d_k))
        .with_d_value_head(Some(sizes.d_v))
        .with_scale(options.scale)
        .with_causal(options.causal)
        .with_alignment(options.alignment)
        .with_window(options.window)
        .with_softcap(options.softcap)
        .with_sink(matches!(options.sink, Sink::Learned(_)))
        .with_quiet_softmax(options.sink == Sink::Quiet)
        .with_alibi(options.alibi)
        .with_rotary(problem.rotary.clone())
        .with_qk_norm(match &problem.normalization {
            Normalization::None => None,
            Normalization::L2 => Some(QkNorm::L2),
            Normalization::Rms { epsilon, .. } => Some(QkNorm::Rms { epsilon: *epsilon }),
        })
        .with_add_bias_kv(problem.extra.is_some())
        .with_add_zero_attn(problem.zero)
        .init(device);
    for (linear, projection) in [
        (&mut module.query, &problem.query),
        (&mut module.key, &problem.key),
        (&mut module.value, &problem.value),
        (&mut module.output, &problem.output),
    ] {
        *linear = self::linear(projection, device);
    }
    if let Sink::Learned(logits) = &options.sink {
        module.attention.sink = Some(parameter(logits));
    }
    if module.attention.learned_scale.is_some() {
        module.attention.learned_scale = Some(parameter(&[options.learned_factor]));
    }
    if let (Normalization::Rms { query, key, .. }, Some(norm)) =
        (&problem.normalization, &mut module.qk_norm)
    {
        let set = |norm: &mut Option<RmsNorm>, gain: &[f64]| {
            norm.as_mut().expect("a gain").gamma = parameter(gain);
        };
        set(&mut norm.query, query);
        set(&mut norm.key, key);
    }
    if let Some((key, value)) = &problem.extra {
        module.bias_key = Some(parameter(key));
        module.bias_value = Some(parameter(value));
    }
    module
}

fn linear(projection: &Projection, device: &Device) -> Linear {
    let shape = [projection.input, projection.output];
    let bias = |bias: &Vec<f64>| floats(bias, [bias.len()], device);
    Linear {
        weight: Param::from_tensor(floats(&projection.weight, shape, device)),
        bias: projection.bias.as_ref().map(bias).map(Param::from_tensor),
    }
}

/// The input of a problem, with query, key and value `[batch, length, width]`.
pub fn multi_head_input(
    problem: &MultiHead,
    [query, key, value]: [Tensor<3>; 3],
    device: &Device,
) -> MhaInput<'static> {
    let options = &problem.template;
    let mut input = MhaInput::new(query, key, value);
    if let Some(bias) = &options.bias {
        input = input.bias(floats(&bias.values, bias.shape, device));
    }
    if let Some(blocked) = &options.blocked {
        let blocked: Tensor<4, Bool> = bools(&blocked.values, blocked.shape, device);
        input = input.mask(Mask::blocked(blocked));
    }
    if let Some(lengths) = &options.key_lengths {
        input = input.key_lengths(lengths.clone());
    }
    if let Some(lengths) = &options.query_lengths {
        input = input.query_lengths(lengths.clone());
    }
    if let Some(documents) = &options.segments {
        input = input.segments(documents.queries.clone(), documents.keys.clone());
    }
    if let Some(positions) = &problem.positions {
        input = input.positions(positions.query.clone(), positions.key.clone());
    }
    input
}
