//! A checkpoint that does not fit is refused by name, and the module stays as it was.

use std::fs;

use burn::module::Module;
use burn::tensor::{DType, Device, TensorData};
use layers::{Checkpoint, Layout, MultiHeadAttention, MultiHeadAttentionConfig, QkNorm};
use safetensors::Dtype;

use crate::support::{Scratch, count, data};

type Tensors<'a> = [(&'a str, &'a [usize], Vec<f32>)];

/// A packed layer of width 2, without biases.
fn layer<'a>() -> Vec<(&'a str, &'a [usize], Vec<f32>)> {
    vec![
        ("in_proj_weight", &[6, 2], count(0, 12)),
        ("out_proj.weight", &[2, 2], count(30, 4)),
    ]
}

fn without_biases() -> MultiHeadAttentionConfig {
    MultiHeadAttentionConfig::new(2, 1)
        .with_query_bias(false)
        .with_key_bias(false)
        .with_value_bias(false)
        .with_output_bias(false)
}

/// The message for these tensors, without the path that it begins with.
fn refusal(tensors: &Tensors, config: &MultiHeadAttentionConfig, layout: Layout) -> String {
    let file = Scratch::safetensors(tensors);
    let mut module = config.init(&Device::default());
    let before = weights(&module);
    let checkpoint = Checkpoint::open(file.path()).unwrap();
    let error = checkpoint.load(&mut module, layout, "").unwrap_err();
    for (after, before) in weights(&module).iter().zip(&before) {
        after.assert_eq(before, true);
    }
    let message = error.to_string();
    let path = format!("{}: ", file.path().display());
    message.strip_prefix(&path).unwrap().to_string()
}

fn weights(module: &MultiHeadAttention) -> [TensorData; 4] {
    [&module.query, &module.key, &module.value, &module.output]
        .map(|linear| linear.weight.to_data())
}

#[test]
fn a_missing_file_gives_path_and_reason() {
    let error = Checkpoint::open("nowhere/weights.safetensors").unwrap_err();
    assert_eq!(
        error.to_string(),
        "nowhere/weights.safetensors: I/O error: No such file or directory (os error 2)"
    );
    let error = Checkpoint::open("nowhere/weights.pt").unwrap_err();
    assert_eq!(
        error.to_string(),
        "nowhere/weights.pt: PyTorch reader error: IO error: No such file or directory (os error 2)"
    );
    let error = Checkpoint::open("nowhere/weights.bpk").unwrap_err();
    assert_eq!(
        error.to_string(),
        "nowhere/weights.bpk: I/O error: cannot open 'nowhere/weights.bpk': No such file or \
         directory (os error 2)"
    );
}

#[test]
fn a_file_that_is_something_else_gives_path_and_reason() {
    for extension in ["pt", "safetensors", "bpk"] {
        let file = Scratch::new(extension);
        fs::write(file.path(), "no weights here, only words, and more of them").unwrap();
        let message = Checkpoint::open(file.path()).unwrap_err().to_string();
        let path = format!("{}: ", file.path().display());
        let reason = message.strip_prefix(&path).unwrap();
        assert!(!reason.is_empty());
    }
}

#[test]
fn a_missing_tensor_is_named_with_the_shape_it_should_have() {
    let tensors = &layer()[..1];
    assert_eq!(
        refusal(tensors, &without_biases(), Layout::Torch),
        "tensor out_proj.weight of shape [2, 2] is missing for output.weight"
    );
}

#[test]
fn a_wrong_prefix_is_told_by_what_the_file_has() {
    let mut module = MultiHeadAttentionConfig::new(6, 2).init(&Device::default());
    let path = data("bert.safetensors");
    let checkpoint = Checkpoint::open(&path).unwrap();
    let error = checkpoint
        .load(&mut module, Layout::Bert, "encoder.layer.1.attention")
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "{}: tensor encoder.layer.1.attention.self.query.weight of shape [6, 6] is missing for \
             query.weight; the file has bert.encoder.layer.1.attention.self.query.weight",
            path.display()
        )
    );
}

#[test]
fn a_wrong_shape_is_named_with_the_shape_it_should_have() {
    let mut tensors = layer();
    tensors[0] = ("in_proj_weight", &[6, 3], count(0, 18));
    assert_eq!(
        refusal(&tensors, &without_biases(), Layout::Torch),
        "tensor in_proj_weight has shape [6, 3], but query.weight needs [6, 2]"
    );
    let config = without_biases().with_d_key(Some(3));
    assert_eq!(
        refusal(&layer(), &config, Layout::Torch),
        "tensor in_proj_weight has shape [6, 2], but key.weight needs [6, 3]"
    );
}

#[test]
fn biases_that_the_module_lacks_are_refused() {
    let mut tensors = layer();
    tensors.push(("in_proj_bias", &[6], count(40, 6)));
    assert_eq!(
        refusal(&tensors, &without_biases(), Layout::Torch),
        "tensor in_proj_bias of shape [6] has no query.bias in the module; build it with query_bias"
    );
}

#[test]
fn biases_that_the_checkpoint_lacks_are_refused() {
    let config = without_biases().with_output_bias(true);
    assert_eq!(
        refusal(&layer(), &config, Layout::Torch),
        "tensor out_proj.bias of shape [2] is missing for output.bias; for a checkpoint without \
         it, build the module with output_bias false"
    );
    let config = without_biases().with_add_bias_kv(true);
    assert_eq!(
        refusal(&layer(), &config, Layout::Torch),
        "tensor bias_k of shape [1, 1, 2] is missing for bias_key; for a checkpoint without it, \
         build the module with add_bias_kv false"
    );
}

#[test]
fn gains_that_the_module_lacks_are_refused() {
    let mut module = MultiHeadAttentionConfig::new(12, 4)
        .with_n_kv_heads(Some(2))
        .with_d_head(Some(6))
        .with_query_bias(false)
        .with_key_bias(false)
        .with_value_bias(false)
        .with_output_bias(false)
        .init(&Device::default());
    let path = data("qwen3.safetensors");
    let checkpoint = Checkpoint::open(&path).unwrap();
    let error = checkpoint
        .load(&mut module, Layout::Llama, "model.layers.0.self_attn")
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "{}: tensor model.layers.0.self_attn.q_norm.weight of shape [6] has no \
             qk_norm.query.gamma in the module; build it with qk_norm",
            path.display()
        )
    );
}

#[test]
fn a_parameter_that_the_layout_has_no_name_for_is_refused() {
    let config = without_biases().with_qk_norm(Some(QkNorm::Rms { epsilon: 1e-6 }));
    assert_eq!(
        refusal(&layer(), &config, Layout::Torch),
        "layout torch has no tensor for qk_norm.key.gamma of the module"
    );
}

#[test]
fn tensors_that_the_layout_does_not_know_are_refused() {
    let mut tensors = layer();
    tensors.push(("relative.weight", &[1], vec![1.0]));
    tensors.push(("relative.bias", &[1], vec![1.0]));
    assert_eq!(
        refusal(&tensors, &without_biases(), Layout::Torch),
        "layout torch does not know relative.bias, relative.weight"
    );
}

#[test]
fn whole_numbers_are_refused() {
    let bytes = |count: usize| vec![0; 8 * count];
    let file = Scratch::raw(&[
        ("in_proj_weight", Dtype::I64, &[6, 2], bytes(12)),
        ("out_proj.weight", Dtype::F64, &[2, 2], bytes(4)),
    ]);
    let mut module = without_biases().init(&Device::default());
    let checkpoint = Checkpoint::open(file.path()).unwrap();
    let error = checkpoint.load(&mut module, Layout::Torch, "").unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "{}: tensor in_proj_weight holds I64, not floating point",
            file.path().display()
        )
    );
}

#[test]
fn values_are_converted_to_the_elements_of_the_module() {
    let wide = |values: Vec<f32>| {
        values
            .iter()
            .flat_map(|&v| f64::from(v).to_le_bytes())
            .collect()
    };
    // bf16 is the upper half of f32.
    let half = |values: Vec<f32>| {
        let upper = values.iter().flat_map(|v| v.to_le_bytes()[2..].to_vec());
        upper.collect::<Vec<u8>>()
    };
    let file = Scratch::raw(&[
        ("in_proj_weight", Dtype::F64, &[6, 2], wide(count(0, 12))),
        ("out_proj.weight", Dtype::BF16, &[2, 2], half(count(30, 4))),
    ]);
    let checkpoint = Checkpoint::open(file.path()).unwrap();
    for dtype in [DType::F32, DType::F16, DType::F64] {
        let mut module = without_biases().init(&Device::default());
        for linear in [
            &mut module.query,
            &mut module.key,
            &mut module.value,
            &mut module.output,
        ] {
            linear.weight = linear.weight.clone().map(|weight| weight.cast(dtype));
        }
        checkpoint.load(&mut module, Layout::Torch, "").unwrap();
        for (weight, expected) in weights(&module).into_iter().zip([
            [[0f32, 2.], [1., 3.]],
            [[4., 6.], [5., 7.]],
            [[8., 10.], [9., 11.]],
            [[30., 32.], [31., 33.]],
        ]) {
            assert_eq!(weight.dtype(), dtype);
            let expected = TensorData::from(expected).convert_dtype(dtype);
            weight.assert_eq(&expected, true);
        }
    }
}

#[test]
fn parameters_keep_their_identity_and_whether_they_are_trained() {
    let file = Scratch::safetensors(&layer());
    let checkpoint = Checkpoint::open(file.path()).unwrap();
    let device = Device::default().autodiff();
    let mut trained = without_biases().init(&device);
    let mut frozen = without_biases().init(&device).no_grad();
    let id = trained.query.weight.id;
    checkpoint.load(&mut trained, Layout::Torch, "").unwrap();
    checkpoint.load(&mut frozen, Layout::Torch, "").unwrap();
    assert_eq!(trained.query.weight.id, id);
    assert!(trained.query.weight.is_require_grad());
    assert!(!frozen.query.weight.is_require_grad());
}

#[test]
fn names_are_listed_in_order() {
    let file = Scratch::safetensors(&layer());
    let checkpoint = Checkpoint::open(file.path()).unwrap();
    let names: Vec<_> = checkpoint.names().collect();
    assert_eq!(names, ["in_proj_weight", "out_proj.weight"]);
}
