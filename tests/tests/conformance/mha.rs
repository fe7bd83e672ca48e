//! PyTorch's `nn.MultiheadAttention`.

use burn::module::Param;
use burn::nn::Linear;
use burn::tensor::{Device, Gradients, Tensor};
use layers::{Mask, MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use tests::{bools, floats_as, values};

use crate::case::{Array, Case, Kind};

/// The leaves of a case on a device, and the module.
struct Call {
    query: Tensor<3>,
    key: Tensor<3>,
    value: Tensor<3>,
    module: MultiHeadAttention,
    blocked: Vec<Mask>,
    bias: Option<Tensor<4>>,
}

pub fn run(case: &Case, device: &Device) -> Result<(), String> {
    let plain = call(case, device)?;
    let context = plain.module.forward(plain.input());
    let bits = values(context.clone());
    let output = plain.module.forward_with_weights(plain.input());
    case.check_same(
        "the context with weights asked",
        &values(output.context),
        &bits,
    );
    case.check("out.out", context);
    case.check("out.weights", output.weights);

    let device = device.clone().autodiff();
    let call = call(case, &device)?;
    let asked = call.module.forward_with_weights(call.input());
    case.check_same(
        "the context with autodiff and weights asked",
        &values(asked.context),
        &bits,
    );
    let context = call.module.forward(call.input());
    case.check_same("the context with autodiff", &values(context.clone()), &bits);
    let upstream = case.needed("in.grad_out")?.floats::<3>(&device)?;
    let gradients = (context * upstream).sum().backward();
    let input = |tensor: &Tensor<3>| tensor.grad(&gradients).expect("a leaf");
    case.check("grad.query", input(&call.query));
    case.check("grad.key", input(&call.key));
    case.check("grad.value", input(&call.value));
    check_parameters(case, &call.module, &gradients);
    Ok(())
}

fn check_parameters(case: &Case, module: &MultiHeadAttention, gradients: &Gradients) {
    // PyTorch's weights are [out, in].
    let weight = |linear: &Linear| {
        let gradient = linear.weight.val().grad(gradients);
        gradient.expect("a parameter").transpose()
    };
    let bias = |linear: &Linear| {
        let gradient = linear.bias.as_ref().map(|bias| bias.val().grad(gradients));
        gradient.map(|gradient| gradient.expect("a parameter"))
    };
    let projections = [
        ("q", &module.query),
        ("k", &module.key),
        ("v", &module.value),
    ];
    for (name, linear) in projections {
        case.check(&format!("grad.param.{name}_proj_weight"), weight(linear));
    }
    if case.array("grad.param.in_proj_weight").is_some() {
        let weights = projections.map(|(_, linear)| weight(linear));
        case.check("grad.param.in_proj_weight", Tensor::cat(weights.into(), 0));
    }
    let biases: Option<Vec<_>> = projections.iter().map(|(_, linear)| bias(linear)).collect();
    if let Some(biases) = biases {
        case.check("grad.param.in_proj_bias", Tensor::cat(biases, 0));
    }
    case.check("grad.param.out_proj.weight", weight(&module.output));
    if let Some(gradient) = bias(&module.output) {
        case.check("grad.param.out_proj.bias", gradient);
    }
    for (name, extra) in [("k", &module.bias_key), ("v", &module.bias_value)] {
        if let Some(extra) = extra {
            let gradient = extra.val().grad(gradients).expect("a parameter");
            let width = gradient.dims()[0];
            let gradient = gradient.reshape([1, 1, width]);
            case.check(&format!("grad.param.bias_{name}"), gradient);
        }
    }
}

impl Call {
    fn input(&self) -> MhaInput<'static> {
        let [query, key, value] = [&self.query, &self.key, &self.value].map(Clone::clone);
        let input = MhaInput::new(query, key, value);
        let input = match &self.bias {
            Some(bias) => input.bias(bias.clone()),
            None => input,
        };
        self.blocked.iter().cloned().fold(input, MhaInput::mask)
    }
}

fn call(case: &Case, device: &Device) -> Result<Call, String> {
    let leaf = |name: &str| -> Result<Tensor<3>, String> {
        let tensor = case.needed(name)?.floats::<3>(device)?;
        Ok(match device.is_autodiff() {
            true => tensor.require_grad(),
            false => tensor,
        })
    };
    let (query, key, value) = (leaf("in.query")?, leaf("in.key")?, leaf("in.value")?);
    let module = module(case, device)?;
    let mut blocked = Vec::new();
    let mut bias = None;
    if let Some(mask) = case.array("in.key_padding_mask") {
        if mask.dtype != Kind::Bool {
            return Err("not supported: key_padding_mask that is added".into());
        }
        blocked.push(Mask::blocked_keys(mask.bools(device)?));
    }
    if let Some(mask) = case.array("in.attn_mask") {
        let shape = match mask.shape.as_slice() {
            &[queries, keys] => [1, 1, queries, keys],
            &[all, queries, keys] => [all / module.n_heads, module.n_heads, queries, keys],
            shape => return Err(format!("not supported: attn_mask of shape {shape:?}")),
        };
        match mask.dtype {
            Kind::Bool => {
                let mask: Vec<bool> = mask.numbers.iter().map(|number| *number != 0.0).collect();
                blocked.push(Mask::blocked(bools(&mask, shape, device)));
            }
            Kind::Float(dtype) => bias = Some(floats_as(&mask.numbers, shape, dtype, device)),
            Kind::Int => return Err("not supported: attn_mask of integers".into()),
        }
    }
    Ok(Call {
        query,
        key,
        value,
        module,
        blocked,
        bias,
    })
}

fn module(case: &Case, device: &Device) -> Result<MultiHeadAttention, String> {
    let missing = |name: &str| format!("the attribute {name} is missing");
    let d_model: usize = case
        .attribute("embed_dim")?
        .ok_or_else(|| missing("embed_dim"))?;
    let heads: usize = case
        .attribute("num_heads")?
        .ok_or_else(|| missing("num_heads"))?;
    let bias: bool = case.attribute("bias")?.unwrap_or(true);
    let flag = |name| Ok::<_, String>(case.attribute(name)?.unwrap_or(false));
    let mut module = MultiHeadAttentionConfig::new(d_model, heads)
        .with_d_key(case.attribute("kdim")?)
        .with_d_value(case.attribute("vdim")?)
        .with_query_bias(bias)
        .with_key_bias(bias)
        .with_value_bias(bias)
        .with_output_bias(bias)
        .with_add_bias_kv(flag("add_bias_kv")?)
        .with_add_zero_attn(flag("add_zero_attn")?)
        .init(device);

    let packed = case.array("param.in_proj_weight");
    let in_bias = case.array("param.in_proj_bias");
    let projections = [
        ("q", &mut module.query),
        ("k", &mut module.key),
        ("v", &mut module.value),
    ];
    for (index, (name, linear)) in projections.into_iter().enumerate() {
        let weight = match packed {
            Some(packed) => rows(packed, index * d_model, d_model, device)?,
            None => case
                .needed(&format!("param.{name}_proj_weight"))?
                .floats::<2>(device)?,
        };
        let bias = match in_bias {
            Some(bias) => Some(rows(bias, index * d_model, d_model, device)?),
            None => None,
        };
        set(linear, weight, bias);
    }
    let weight = case.needed("param.out_proj.weight")?.floats::<2>(device)?;
    let bias = match case.array("param.out_proj.bias") {
        Some(bias) => Some(bias.floats::<1>(device)?),
        None => None,
    };
    set(&mut module.output, weight, bias);
    for (name, extra) in [("k", &mut module.bias_key), ("v", &mut module.bias_value)] {
        if extra.is_some() {
            let given = case.needed(&format!("param.bias_{name}"))?;
            *extra = Some(Param::from_tensor(given.floats::<3>(device)?.flatten(0, 2)));
        }
    }
    Ok(module)
}

/// Part of a tensor along its first axis.
fn rows<const D: usize>(
    array: &Array,
    start: usize,
    count: usize,
    device: &Device,
) -> Result<Tensor<D>, String> {
    Ok(array.floats::<D>(device)?.narrow(0, start, count))
}

/// Gives a projection PyTorch's weight `[out, in]` and bias.
fn set(linear: &mut Linear, weight: Tensor<2>, bias: Option<Tensor<1>>) {
    linear.weight = Param::from_tensor(weight.transpose());
    linear.bias = bias.map(Param::from_tensor);
}
