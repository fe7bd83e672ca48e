//! PyTorch's `nn.MultiheadAttention`.

use burn::tensor::{Bool, Device, Tensor, TensorData};
use layers::{Checkpoint, Layout, Mask, MhaInput, MultiHeadAttentionConfig};

use crate::support::{Scratch, assert_close, count, data, stored, tensor};

#[test]
fn packed_projections_are_cut_and_turned() {
    let file = Scratch::safetensors(&[
        ("in_proj_weight", &[6, 2], count(0, 12)),
        ("in_proj_bias", &[6], count(20, 6)),
        ("out_proj.weight", &[2, 2], count(30, 4)),
        ("out_proj.bias", &[2], count(40, 2)),
        ("bias_k", &[1, 1, 2], count(50, 2)),
        ("bias_v", &[1, 1, 2], count(60, 2)),
    ]);
    let mut module = MultiHeadAttentionConfig::new(2, 1)
        .with_add_bias_kv(true)
        .init(&Device::default());
    let checkpoint = Checkpoint::open(file.path()).unwrap();
    checkpoint.load(&mut module, Layout::Torch, "").unwrap();

    let matrix = |values: [[f32; 2]; 2]| TensorData::from(values);
    let vector = |values: [f32; 2]| TensorData::from(values);
    for (linear, weight, bias) in [
        (&module.query, [[0., 2.], [1., 3.]], [20., 21.]),
        (&module.key, [[4., 6.], [5., 7.]], [22., 23.]),
        (&module.value, [[8., 10.], [9., 11.]], [24., 25.]),
        (&module.output, [[30., 32.], [31., 33.]], [40., 41.]),
    ] {
        linear.weight.to_data().assert_eq(&matrix(weight), true);
        let found = linear.bias.as_ref().unwrap();
        found.to_data().assert_eq(&vector(bias), true);
    }
    for (found, expected) in [
        (&module.bias_key, [50., 51.]),
        (&module.bias_value, [60., 61.]),
    ] {
        let found = found.as_ref().unwrap();
        found.to_data().assert_eq(&vector(expected), true);
    }
}

#[test]
fn separate_projections_without_biases_are_turned() {
    let file = Scratch::safetensors(&[
        ("q_proj_weight", &[2, 2], count(0, 4)),
        ("k_proj_weight", &[2, 3], count(10, 6)),
        ("v_proj_weight", &[2, 1], count(20, 2)),
        ("out_proj.weight", &[2, 2], count(30, 4)),
    ]);
    let mut module = MultiHeadAttentionConfig::new(2, 1)
        .with_d_key(Some(3))
        .with_d_value(Some(1))
        .with_query_bias(false)
        .with_key_bias(false)
        .with_value_bias(false)
        .with_output_bias(false)
        .init(&Device::default());
    let checkpoint = Checkpoint::open(file.path()).unwrap();
    checkpoint.load(&mut module, Layout::Torch, "").unwrap();
    let key = TensorData::from([[10f32, 13.], [11., 14.], [12., 15.]]);
    module.key.weight.to_data().assert_eq(&key, true);
    let value = TensorData::from([[20f32, 21.]]);
    module.value.weight.to_data().assert_eq(&value, true);
}

#[test]
fn a_packed_file_of_pytorch_gives_its_outputs() {
    let path = data("torch_packed.pt");
    let mut module = MultiHeadAttentionConfig::new(6, 2)
        .with_add_bias_kv(true)
        .init(&Device::default());
    let checkpoint = Checkpoint::open(&path).unwrap();
    checkpoint
        .load(&mut module, Layout::Torch, "model.layer.attention")
        .unwrap();
    let output = module.forward(MhaInput::self_attn(tensor(&path, "input")));
    assert_close(output, stored(&path, "output"));
}

#[test]
fn a_file_of_pytorch_with_other_key_and_value_widths_gives_its_outputs() {
    let path = data("torch_separate.pt");
    let mut module = MultiHeadAttentionConfig::new(6, 2)
        .with_d_key(Some(7))
        .with_d_value(Some(5))
        .with_query_bias(false)
        .with_key_bias(false)
        .with_value_bias(false)
        .with_output_bias(false)
        .init(&Device::default());
    let checkpoint = Checkpoint::open(&path).unwrap();
    checkpoint
        .load(&mut module, Layout::Torch, "state_dict.")
        .unwrap();
    let [query, key, value] = ["query", "key", "value"].map(|name| format!("case.{name}"));
    let output = module.forward(MhaInput::new(
        tensor(&path, &query),
        tensor(&path, &key),
        tensor(&path, &value),
    ));
    assert_close(output, stored(&path, "case.output"));
}

#[test]
fn the_learned_and_the_zero_key_of_pytorch_give_its_outputs() {
    let path = data("torch_bias_kv.safetensors");
    let mut module = MultiHeadAttentionConfig::new(12, 3)
        .with_add_bias_kv(true)
        .with_add_zero_attn(true)
        .init(&Device::default());
    let checkpoint = Checkpoint::open(&path).unwrap();
    checkpoint
        .load(&mut module, Layout::Torch, "param")
        .unwrap();
    let padding = stored(&path, "in.key_padding_mask");
    let padding = Tensor::<2, Bool>::from_data(padding, &Device::default());
    let input = MhaInput::new(
        tensor(&path, "in.query"),
        tensor(&path, "in.key"),
        tensor(&path, "in.value"),
    );
    let output = module.forward(input.mask(Mask::blocked_keys(padding)));
    assert_close(output, stored(&path, "out.out"));
}

#[test]
fn packed_biases_beside_separate_projections_give_the_outputs_of_pytorch() {
    let path = data("torch_kdim.safetensors");
    let mut module = MultiHeadAttentionConfig::new(12, 3)
        .with_d_key(Some(9))
        .with_d_value(Some(5))
        .init(&Device::default());
    let checkpoint = Checkpoint::open(&path).unwrap();
    checkpoint
        .load(&mut module, Layout::Torch, "param")
        .unwrap();
    let output = module.forward(MhaInput::new(
        tensor(&path, "in.query"),
        tensor(&path, "in.key"),
        tensor(&path, "in.value"),
    ));
    assert_close(output, stored(&path, "out.out"));
}
