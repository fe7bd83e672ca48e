//! The operator `Attention` of ONNX.

use burn::tensor::{DType, Device, Tensor};
use layers::{
    Alignment, AttentionInput, Mask, Scale, ScaledDotProductAttention,
    ScaledDotProductAttentionConfig, Stage, Window,
};
use tests::{bools, floats_as, values};

use crate::case::{Array, Case, Kind};

/// The module and the input of a case on a device.
struct Call {
    module: ScaledDotProductAttention,
    input: AttentionInput,
    present: Option<(Tensor<4>, Tensor<4>)>,
    /// Whether query, key and value have three axes, and so has the output.
    packed: bool,
}

pub fn run(case: &Case, device: &Device) -> Result<(), String> {
    let call = self::call(case, device)?;
    let context = call.module.forward(call.input.clone());
    let bits = values(context.clone());
    let output = call.module.forward_with_weights(call.input.clone());
    case.check_same(
        "the context with weights asked",
        &values(output.context),
        &bits,
    );
    match call.packed {
        true => {
            let [batch, heads, length, width] = context.dims();
            let joined = context.swap_dims(1, 2);
            case.check("out.Y", joined.reshape([batch, length, heads * width]));
        }
        false => case.check("out.Y", context),
    }
    let scores = |stage| call.module.scores(call.input.clone(), stage);
    let products = match case.attribute::<u8>("qk_matmul_output_mode")? {
        None | Some(0) => scores(Stage::Scaled),
        Some(1) => scores(Stage::Capped),
        Some(2) => scores(Stage::Masked),
        Some(3) => output.weights,
        Some(mode) => return Err(format!("not supported: qk_matmul_output_mode {mode}")),
    };
    case.check("out.qk_matmul_output", products);
    if let Some((key, value)) = call.present {
        case.check("out.present_key", key);
        case.check("out.present_value", value);
    }

    let device = device.clone().autodiff();
    let call = self::call(case, &device)?;
    let context = values(call.module.forward(call.input.clone()));
    case.check_same("the context with autodiff", &context, &bits);
    let context = values(call.module.forward_with_weights(call.input).context);
    case.check_same(
        "the context with autodiff and weights asked",
        &context,
        &bits,
    );
    Ok(())
}

fn call(case: &Case, device: &Device) -> Result<Call, String> {
    let packed = case.needed("in.Q")?.shape.len() == 3;
    let query = heads(case, "in.Q", "q_num_heads", device)?;
    let mut key = heads(case, "in.K", "kv_num_heads", device)?;
    let mut value = heads(case, "in.V", "kv_num_heads", device)?;

    let mut alignment = Alignment::TopLeft;
    let mut present = None;
    if let Some(past) = case.array("in.past_key") {
        let past_key = past.floats::<4>(device)?;
        let past_value = case.needed("in.past_value")?.floats::<4>(device)?;
        alignment = Alignment::Offset(past_key.dims()[2] as i64);
        key = Tensor::cat(vec![past_key, key], 2);
        value = Tensor::cat(vec![past_value, value], 2);
        present = Some((key.clone(), value.clone()));
    }
    let lengths = case.array("in.nonpad_kv_seqlen").map(Array::sizes);
    if lengths.is_some() {
        alignment = Alignment::ValidBottomRight;
    }

    let dtype = softmax_type(case, query.dtype(), device)?;
    let keys = key.dims()[2];
    let mut input = AttentionInput::new(query.cast(dtype), key.cast(dtype), value.cast(dtype));
    if let Some(lengths) = lengths {
        input = input.key_lengths(lengths);
    }
    if let Some(mask) = case.array("in.attn_mask") {
        let blocked = match mask.dtype {
            Kind::Bool => 0.0,
            _ => f64::NEG_INFINITY,
        };
        let (numbers, shape) = padded(mask, keys, blocked)?;
        input = match mask.dtype {
            Kind::Bool => {
                let visible: Vec<bool> = numbers.iter().map(|number| *number != 0.0).collect();
                input.mask(Mask::visible(bools(&visible, shape, device)))
            }
            Kind::Float(_) => input.bias(floats_as(&numbers, shape, dtype, device)),
            Kind::Int => return Err("not supported: attn_mask of integers".into()),
        };
    }
    let limit = |name| -> Result<Option<usize>, String> {
        let size: Option<i64> = case.attribute(name)?;
        Ok(size.and_then(|size| usize::try_from(size).ok()))
    };
    let scale: Option<f64> = case.attribute("scale")?;
    let softcap: Option<f64> = case.attribute("softcap")?;
    let module = ScaledDotProductAttentionConfig::new()
        .with_scale(scale.map_or(Scale::InvSqrtDim, Scale::Fixed))
        .with_softcap(softcap.filter(|cap| *cap != 0.0))
        .with_causal(case.attribute::<u8>("is_causal")? == Some(1))
        .with_alignment(alignment)
        .with_window(Some(Window {
            before: limit("left_window_size")?,
            after: limit("right_window_size")?,
        }))
        .init(device);
    Ok(Call {
        module,
        input,
        present,
        packed,
    })
}

/// `[batch, heads, length, width]`, which is how it is given or `[batch, length, heads * width]`.
fn heads(case: &Case, name: &str, count: &str, device: &Device) -> Result<Tensor<4>, String> {
    let array = case.needed(name)?;
    let count: Option<usize> = case.attribute(count)?;
    match (array.shape.as_slice(), count) {
        (&[batch, length, width], Some(heads)) => Ok(array
            .floats::<3>(device)?
            .reshape([batch, length, heads, width / heads])
            .swap_dims(1, 2)),
        (&[_, _, _, _], _) => array.floats::<4>(device),
        (shape, _) => Err(format!("not supported: {name} of shape {shape:?}")),
    }
}

/// A mask with four axes, and with "blocked" at the keys that it is too narrow for.
fn padded(mask: &Array, keys: usize, blocked: f64) -> Result<(Vec<f64>, [usize; 4]), String> {
    let mut shape = mask.shape_of_rank::<4>()?;
    let width = shape[3];
    shape[3] = keys.max(width);
    let rows = mask.numbers.chunks(width.max(1));
    let numbers = rows.flat_map(|row| {
        let missing = shape[3] - width;
        row.iter()
            .copied()
            .chain(std::iter::repeat_n(blocked, missing))
    });
    Ok((numbers.collect(), shape))
}

/// The element type to compute in, so that the softmax has at least the precision asked for.
///
/// The layers compute the softmax of half and single precision in f32, and of double in f64.
fn softmax_type(case: &Case, dtype: DType, device: &Device) -> Result<DType, String> {
    const FLOAT: u8 = 1;
    const FLOAT16: u8 = 10;
    const DOUBLE: u8 = 11;
    const BFLOAT16: u8 = 16;
    match case.attribute::<u8>("softmax_precision")? {
        None | Some(FLOAT | FLOAT16 | BFLOAT16) => Ok(dtype),
        // A device without f64 comes as close as it can: the tolerance decides.
        Some(DOUBLE) if tests::computes_in(device, DType::F64) => Ok(DType::F64),
        Some(DOUBLE) => Ok(dtype),
        Some(other) => Err(format!("not supported: softmax_precision {other}")),
    }
}
