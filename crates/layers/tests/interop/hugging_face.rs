//! The layouts of Hugging Face's transformers.

use burn::tensor::{Device, TensorData};
use layers::{
    Checkpoint, Layout, MhaInput, MultiHeadAttention, MultiHeadAttentionConfig, QkNorm,
    RotaryConfig,
};

use crate::support::{Scratch, assert_close, count, data, stored, tensor};

fn assert_outputs(config: &MultiHeadAttentionConfig, name: &str, layout: Layout, prefix: &str) {
    let path = data(name);
    let mut module = config.init(&Device::default());
    let checkpoint = Checkpoint::open(&path).unwrap();
    checkpoint.load(&mut module, layout, prefix).unwrap();
    let output = module.forward(MhaInput::self_attn(tensor(&path, "input")));
    assert_close(output, stored(&path, "output"));
}

fn without_biases(config: MultiHeadAttentionConfig) -> MultiHeadAttentionConfig {
    config
        .with_query_bias(false)
        .with_key_bias(false)
        .with_value_bias(false)
        .with_output_bias(false)
}

/// Of a layer with 4 heads of width 6, two a key, on a model of width 12.
fn rotated() -> MultiHeadAttentionConfig {
    MultiHeadAttentionConfig::new(12, 4)
        .with_n_kv_heads(Some(2))
        .with_d_head(Some(6))
        .with_causal(true)
        .with_rotary(Some(RotaryConfig::new()))
}

fn assert_weights(module: &MultiHeadAttention, [query, key, value, output]: [TensorData; 4]) {
    module.query.weight.to_data().assert_eq(&query, true);
    module.key.weight.to_data().assert_eq(&key, true);
    module.value.weight.to_data().assert_eq(&value, true);
    module.output.weight.to_data().assert_eq(&output, true);
}

#[test]
fn the_weights_of_bert_are_turned() {
    let file = Scratch::safetensors(&[
        ("layer.0.attention.self.query.weight", &[2, 2], count(0, 4)),
        ("layer.0.attention.self.key.weight", &[2, 2], count(10, 4)),
        ("layer.0.attention.self.value.weight", &[2, 2], count(20, 4)),
        (
            "layer.0.attention.output.dense.weight",
            &[2, 2],
            count(30, 4),
        ),
    ]);
    let config = without_biases(MultiHeadAttentionConfig::new(2, 1));
    let mut module = config.init(&Device::default());
    let checkpoint = Checkpoint::open(file.path()).unwrap();
    checkpoint
        .load(&mut module, Layout::Bert, "layer.0.attention.")
        .unwrap();
    let expected = [
        TensorData::from([[0f32, 2.], [1., 3.]]),
        TensorData::from([[10f32, 12.], [11., 13.]]),
        TensorData::from([[20f32, 22.], [21., 23.]]),
        TensorData::from([[30f32, 32.], [31., 33.]]),
    ];
    assert_weights(&module, expected);
}

#[test]
fn the_weights_of_gpt2_are_cut_but_not_turned() {
    let file = Scratch::safetensors(&[
        ("c_attn.weight", &[2, 6], count(0, 12)),
        ("c_proj.weight", &[2, 2], count(30, 4)),
    ]);
    let config = without_biases(MultiHeadAttentionConfig::new(2, 1));
    let mut module = config.init(&Device::default());
    let checkpoint = Checkpoint::open(file.path()).unwrap();
    checkpoint.load(&mut module, Layout::Gpt2, "").unwrap();
    let expected = [
        TensorData::from([[0f32, 1.], [6., 7.]]),
        TensorData::from([[2f32, 3.], [8., 9.]]),
        TensorData::from([[4f32, 5.], [10., 11.]]),
        TensorData::from([[30f32, 31.], [32., 33.]]),
    ];
    assert_weights(&module, expected);
}

#[test]
fn the_weights_of_llama_are_turned_and_its_frequencies_left_alone() {
    let file = Scratch::safetensors(&[
        ("q_proj.weight", &[4, 1], count(0, 4)),
        ("k_proj.weight", &[2, 1], count(10, 2)),
        ("v_proj.weight", &[2, 1], count(20, 2)),
        ("o_proj.weight", &[1, 4], count(30, 4)),
        ("rotary_emb.inv_freq", &[1], vec![1.0]),
    ]);
    let config = MultiHeadAttentionConfig::new(1, 2)
        .with_n_kv_heads(Some(1))
        .with_d_head(Some(2));
    let mut module = without_biases(config).init(&Device::default());
    let checkpoint = Checkpoint::open(file.path()).unwrap();
    checkpoint.load(&mut module, Layout::Llama, "").unwrap();
    let expected = [
        TensorData::from([[0f32, 1., 2., 3.]]),
        TensorData::from([[10f32, 11.]]),
        TensorData::from([[20f32, 21.]]),
        TensorData::from([[30f32], [31.], [32.], [33.]]),
    ];
    assert_weights(&module, expected);
}

#[test]
fn bert_gives_its_outputs() {
    let config = MultiHeadAttentionConfig::new(6, 2);
    let prefix = "bert.encoder.layer.1.attention";
    assert_outputs(&config, "bert.safetensors", Layout::Bert, prefix);
}

#[test]
fn gpt2_gives_its_outputs() {
    let config = MultiHeadAttentionConfig::new(6, 2).with_causal(true);
    let prefix = "transformer.h.0.attn";
    assert_outputs(&config, "gpt2.safetensors", Layout::Gpt2, prefix);
}

#[test]
fn llama_gives_its_outputs() {
    let config = without_biases(rotated());
    let prefix = "model.layers.0.self_attn";
    assert_outputs(&config, "llama.safetensors", Layout::Llama, prefix);
}

#[test]
fn qwen3_gives_its_outputs_with_the_gains_of_its_norms() {
    let config = without_biases(rotated()).with_qk_norm(Some(QkNorm::Rms { epsilon: 1e-6 }));
    let prefix = "model.layers.0.self_attn";
    assert_outputs(&config, "qwen3.safetensors", Layout::Llama, prefix);
}

#[test]
fn gpt_oss_gives_its_outputs_with_its_biases_and_sinks() {
    let config = rotated().with_sink(true);
    let prefix = "model.layers.0.self_attn";
    assert_outputs(&config, "gpt_oss.safetensors", Layout::Llama, prefix);
}
