//! burn-nn's modules, their records and their files.

use burn::module::Module;
use burn::nn::attention::{
    CrossAttention, CrossAttentionConfig, MhaInput as BurnInput,
    MultiHeadAttention as BurnMultiHeadAttention, MultiHeadAttentionConfig as BurnConfig,
};
use burn::tensor::{Device, Distribution, Tensor};
use layers::{Checkpoint, Layout, MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};

use crate::support::{Scratch, assert_close};

fn random<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), &Device::default())
}

fn their_self_attention() -> BurnMultiHeadAttention {
    BurnConfig::new(12, 3)
        .with_dropout(0.25)
        .with_quiet_softmax(true)
        .with_value_bias(false)
        .init(&Device::default())
}

fn their_cross_attention() -> CrossAttention {
    // d_model, d_context, n_heads, n_heads_kv, d_head
    CrossAttentionConfig::new(10, 7, 6, 2, 5)
        .with_dropout(0.3)
        .with_quiet_softmax(true)
        .init(&Device::default())
}

/// The module of ours that such a cross-attention's file loads into.
fn our_cross_attention() -> MultiHeadAttention {
    MultiHeadAttentionConfig::new(10, 6)
        .with_n_kv_heads(Some(2))
        .with_d_head(Some(5))
        .with_d_key(Some(7))
        .with_d_value(Some(7))
        .with_quiet_softmax(true)
        .init(&Device::default())
}

fn our_self_attention() -> MultiHeadAttention {
    MultiHeadAttentionConfig::new(12, 3)
        .with_quiet_softmax(true)
        .with_value_bias(false)
        .init(&Device::default())
}

fn assert_same_self_attention(ours: &MultiHeadAttention, theirs: &BurnMultiHeadAttention) {
    let x = random([2, 5, 12]);
    let expected = theirs.forward(BurnInput::self_attn(x.clone())).context;
    assert_close(ours.forward(MhaInput::self_attn(x)), expected.into_data());
}

fn assert_same_cross_attention(ours: &MultiHeadAttention, theirs: &CrossAttention) {
    let (query, context) = (random([2, 3, 10]), random([2, 5, 7]));
    let expected = theirs.forward(query.clone(), context.clone(), None);
    let found = ours.forward(MhaInput::cross_attn(query, context));
    assert_close(found, expected.into_data());
}

#[test]
fn multi_head_attention_becomes_ours_with_its_outputs_and_options() {
    let theirs = their_self_attention();
    let ours = MultiHeadAttention::from(theirs.clone());
    assert_same_self_attention(&ours, &theirs);
    assert_eq!(ours.attention.dropout.prob, 0.25);
    assert!(ours.attention.quiet_softmax);
    assert!(ours.value.bias.is_none());
    assert_eq!(ours.query.weight.id, theirs.query.weight.id);
}

#[test]
fn cross_attention_becomes_ours_with_its_outputs_and_options() {
    let theirs = their_cross_attention();
    let ours = MultiHeadAttention::from(theirs.clone());
    assert_same_cross_attention(&ours, &theirs);
    assert_eq!((ours.d_model, ours.n_heads), (10, 6));
    assert_eq!((ours.n_kv_heads, ours.d_head, ours.d_value_head), (2, 5, 5));
    assert_eq!(ours.attention.dropout.prob, 0.3);
    assert!(ours.attention.quiet_softmax);
}

#[test]
fn converted_modules_train_where_theirs_do() {
    let device = Device::default().autodiff();
    let cross = CrossAttentionConfig::new(10, 7, 6, 2, 5);
    let ours = MultiHeadAttention::from(cross.init(&device));
    assert!(ours.query.weight.is_require_grad());
    assert!(ours.attention.dropout.training.is_enabled());
    let frozen = MultiHeadAttention::from(cross.init(&device).freeze());
    assert!(!frozen.query.weight.is_require_grad());
    assert!(!frozen.attention.dropout.training.is_enabled());
    let frozen = MultiHeadAttention::from(BurnConfig::new(12, 3).init(&device).freeze());
    assert!(!frozen.query.weight.is_require_grad());
    assert!(!frozen.attention.dropout.training.is_enabled());
}

#[test]
#[should_panic(expected = "d_model 10 is not n_heads 4 times d_k 2")]
fn heads_that_do_not_fill_the_width_are_refused() {
    let _ = MultiHeadAttention::from(BurnConfig::new(10, 4).init(&Device::default()));
}

#[test]
fn records_of_burn_nn_load_into_ours() {
    let theirs = their_self_attention();
    let ours = our_self_attention().load_record(theirs.clone().into_record());
    assert_same_self_attention(&ours, &theirs);

    let theirs = their_cross_attention();
    let ours = our_cross_attention().load_record(theirs.clone().into_record());
    assert_same_cross_attention(&ours, &theirs);
}

#[test]
fn files_of_burn_nn_load_into_ours_by_burn_and_by_a_checkpoint() {
    let theirs = their_self_attention();
    let file = Scratch::new("bpk");
    theirs.clone().save_file(file.path()).unwrap();
    assert_same_self_attention(&our_self_attention().load_file(file.path()), &theirs);
    let mut ours = our_self_attention();
    let checkpoint = Checkpoint::open(file.path()).unwrap();
    checkpoint.load(&mut ours, Layout::Burn, "").unwrap();
    assert_same_self_attention(&ours, &theirs);

    let theirs = their_cross_attention();
    let file = Scratch::new("bpk");
    theirs.clone().save_file(file.path()).unwrap();
    assert_same_cross_attention(&our_cross_attention().load_file(file.path()), &theirs);
    let mut ours = our_cross_attention();
    let checkpoint = Checkpoint::open(file.path()).unwrap();
    checkpoint.load(&mut ours, Layout::Burn, "").unwrap();
    assert_same_cross_attention(&ours, &theirs);
}

/// A user's model, the attention below a path.
#[derive(Module, Debug)]
struct Model {
    blocks: Vec<Block>,
}

#[derive(Module, Debug)]
struct Block {
    attention: MultiHeadAttention,
}

#[test]
fn one_layer_of_a_saved_model_loads_by_its_path() {
    let config = MultiHeadAttentionConfig::new(12, 3)
        .with_sink(true)
        .with_add_bias_kv(true)
        .with_scale(layers::Scale::Learned { initial: 0.7 })
        .with_qk_norm(Some(layers::QkNorm::Rms { epsilon: 1e-6 }));
    let block = || Block {
        attention: config.init(&Device::default()),
    };
    let mut model = Model {
        blocks: vec![block(), block()],
    };
    let second = &mut model.blocks[1].attention;
    second.bias_key = second
        .bias_key
        .take()
        .map(|bias| bias.map(|_| random([12])));
    let expected = {
        let x = random([2, 5, 12]);
        let output = second.forward(MhaInput::self_attn(x.clone()));
        (x, output)
    };
    let file = Scratch::new("bpk");
    model.save_file(file.path()).unwrap();

    let mut ours = config.init(&Device::default());
    let checkpoint = Checkpoint::open(file.path()).unwrap();
    checkpoint
        .load(&mut ours, Layout::Burn, "blocks.1.attention")
        .unwrap();
    let (x, output) = expected;
    assert_close(ours.forward(MhaInput::self_attn(x)), output.into_data());
}
