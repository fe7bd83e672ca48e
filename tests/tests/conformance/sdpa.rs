//! PyTorch's `scaled_dot_product_attention`, with what was added to it in the cases.

use burn::module::Param;
use burn::tensor::{Device, Tensor};
use layers::{
    Alignment, AttentionInput, Mask, Scale, ScaledDotProductAttention,
    ScaledDotProductAttentionConfig, Window,
};
use tests::values;

use crate::case::Case;

/// The leaves of a case on a device, the module and the input made of them.
struct Call {
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    bias: Option<Tensor<4>>,
    module: ScaledDotProductAttention,
    input: AttentionInput,
}

pub fn run(case: &Case, device: &Device) -> Result<(), String> {
    let plain = call(case, device)?;
    let context = plain.module.forward(plain.input.clone());
    let bits = values(context.clone());
    let output = plain.module.forward_with_weights(plain.input);
    case.check_same(
        "the context with weights asked",
        &values(output.context),
        &bits,
    );
    case.check("out.out", context);
    case.check("out.weights", output.weights);
    case.check("out.lse", output.logsumexp);

    let device = device.clone().autodiff();
    let asked = call(case, &device)?;
    let output = asked.module.forward_with_weights(asked.input.clone());
    case.check_same(
        "the context with autodiff and weights asked",
        &values(output.context.clone()),
        &bits,
    );
    let gradients = differentiate(case, &asked, output.context, &device)?;

    let call = call(case, &device)?;
    let context = call.module.forward(call.input.clone());
    case.check_same("the context with autodiff", &values(context.clone()), &bits);
    for ((name, found), (_, other)) in differentiate(case, &call, context, &device)?
        .into_iter()
        .zip(gradients)
    {
        case.check_same(
            &format!("{name} with weights asked"),
            &found.numbers,
            &other.numbers,
        );
        case.check_numbers(name, &found.numbers, &found.shape);
    }
    Ok(())
}

/// The numbers and the shape of a gradient.
struct Gradient {
    numbers: Vec<f64>,
    shape: Vec<usize>,
}

fn differentiate(
    case: &Case,
    call: &Call,
    context: Tensor<4>,
    device: &Device,
) -> Result<Vec<(&'static str, Gradient)>, String> {
    let upstream = case.needed("in.grad_out")?.floats::<4>(device)?;
    let gradients = (context * upstream).sum().backward();
    fn gradient<const D: usize>(tensor: Option<Tensor<D>>) -> Option<Gradient> {
        tensor.map(|tensor| Gradient {
            shape: tensor.dims().to_vec(),
            numbers: values(tensor),
        })
    }
    let sink = call.module.sink.as_ref().map(Param::val);
    let bias = call.bias.as_ref();
    let found = [
        ("grad.q", gradient(call.query.grad(&gradients))),
        ("grad.k", gradient(call.key.grad(&gradients))),
        ("grad.v", gradient(call.value.grad(&gradients))),
        (
            "grad.bias",
            gradient(bias.and_then(|bias| bias.grad(&gradients))),
        ),
        (
            "grad.sink",
            gradient(sink.and_then(|sink| sink.grad(&gradients))),
        ),
    ];
    Ok(found
        .into_iter()
        .filter_map(|(name, gradient)| Some((name, gradient?)))
        .collect())
}

fn call(case: &Case, device: &Device) -> Result<Call, String> {
    let leaf = |name: &str| -> Result<Tensor<4>, String> {
        let tensor = case.needed(name)?.floats::<4>(device)?;
        Ok(match device.is_autodiff() {
            true => tensor.require_grad(),
            false => tensor,
        })
    };
    let (query, key, value) = (leaf("in.q")?, leaf("in.k")?, leaf("in.v")?);
    let bias = match case.array("in.bias") {
        Some(_) => Some(leaf("in.bias")?),
        None => None,
    };
    let sink = match case.array("in.sink") {
        Some(sink) => Some(sink.floats::<1>(device)?),
        None => None,
    };
    let mut module = ScaledDotProductAttentionConfig::new()
        .with_scale(scale(case, query.dims()[3])?)
        .with_softcap(case.attribute("softcap")?)
        .with_causal(case.attribute("causal")?.unwrap_or(false))
        .with_alignment(alignment(case)?)
        .with_window(Some(Window {
            before: case.attribute("window_left")?,
            after: case.attribute("window_right")?,
        }))
        .with_sink_heads(sink.as_ref().map(|sink| sink.dims()[0]))
        .init(device);
    if let Some(sink) = sink {
        module.sink = Some(Param::from_tensor(sink));
    }
    let mut input = AttentionInput::new(query.clone(), key.clone(), value.clone());
    if let Some(bias) = &bias {
        input = input.bias(bias.clone());
    }
    if let Some(mask) = case.array("in.mask") {
        input = input.mask(Mask::visible(mask.bools::<4>(device)?));
    }
    if let Some(lengths) = case.attribute::<Vec<usize>>("kv_lengths")? {
        input = input.key_lengths(lengths);
    }
    Ok(Call {
        query,
        key,
        value,
        bias,
        module,
        input,
    })
}

fn scale(case: &Case, d_k: usize) -> Result<Scale, String> {
    let given: Option<f64> = case.attribute("scale")?;
    let policy: Option<String> = case.attribute("scale_policy")?;
    let scale = match (policy.as_deref(), given) {
        (Some("inv_sqrt") | None, None) => Scale::InvSqrtDim,
        (Some("inv_sqrt"), _) => Scale::InvSqrtDim,
        (Some("none"), _) => Scale::Unscaled,
        (Some("inv_dim"), _) => Scale::InvDim,
        (Some("fixed") | None, Some(number)) => Scale::Fixed(number),
        (Some(policy), _) => return Err(format!("not supported: scale_policy {policy}")),
    };
    // The policy must mean the number that PyTorch was given.
    match given {
        Some(number) if (scale.factor(d_k) - number).abs() > 1e-12 * number.abs() => Err(format!(
            "the scale {scale} is {}, but the case says {number}",
            scale.factor(d_k)
        )),
        _ => Ok(scale),
    }
}

fn alignment(case: &Case) -> Result<Alignment, String> {
    match case.attribute::<String>("alignment")?.as_deref() {
        None | Some("bottom_right") => Ok(Alignment::BottomRight),
        Some("top_left") => Ok(Alignment::TopLeft),
        Some(other) => Err(format!("not supported: alignment {other}")),
    }
}
