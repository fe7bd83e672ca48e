//! Records of burn-nn's own module.

use burn::module::Module;
use burn::nn::attention::{
    CrossAttentionConfig, MhaInput as BurnInput, MultiHeadAttention as BurnAttention,
    MultiHeadAttentionConfig as BurnConfig,
};
use burn::tensor::{Bool, Device, Tensor};
use layers::{Mask, MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use tests::{Random, Tolerance, assert_close, bools, floats, on_each_backend, values};

const SHAPE: [usize; 3] = [2, 5, 12];

fn burns(quiet: bool, device: &Device) -> BurnAttention {
    BurnConfig::new(12, 3)
        .with_quiet_softmax(quiet)
        .init(device)
}

fn inputs(device: &Device) -> [Tensor<3>; 3] {
    let mut random = Random::new(1);
    [(); 3].map(|()| floats(&random.normals(2 * 5 * 12), SHAPE, device))
}

fn check(theirs: &BurnAttention, ours: &MultiHeadAttention, device: &Device) {
    let [query, key, value] = inputs(device);
    let padding: Tensor<2, Bool> = bools(
        &[
            false, false, false, false, true, false, false, true, true, true,
        ],
        [2, 5],
        device,
    );
    let later: Vec<bool> = (0..25).map(|index| index % 5 > index / 5).collect();
    let causal: Tensor<3, Bool> = bools(&later.repeat(2), [2, 5, 5], device);
    let expected = theirs.forward(
        BurnInput::new(query.clone(), key.clone(), value.clone())
            .mask_pad(padding.clone())
            .mask_attn(causal.clone()),
    );
    let found = ours.forward_with_weights(
        MhaInput::new(query, key, value)
            .mask(Mask::blocked_keys(padding))
            .mask(Mask::blocked(causal)),
    );
    let tolerance = Tolerance::absolute(1e-5);
    let (found_context, context) = (values(found.context), values(expected.context));
    assert_close("context", &found_context, &context, &SHAPE, tolerance);
    let (found_weights, weights) = (values(found.weights), values(expected.weights));
    assert_close(
        "weights",
        &found_weights,
        &weights,
        &[2, 3, 5, 5],
        tolerance,
    );
}

#[test]
fn a_record_of_burn_nn_loads_and_gives_its_outputs() {
    on_each_backend(|device| {
        for quiet in [false, true] {
            let theirs = burns(quiet, device);
            let ours = MultiHeadAttentionConfig::new(12, 3)
                .with_quiet_softmax(quiet)
                .init(device);
            let ours = ours.load_record(theirs.clone().into_record());
            check(&theirs, &ours, device);
        }
    });
}

#[test]
fn a_module_of_burn_nn_becomes_ours() {
    on_each_backend(|device| {
        for quiet in [false, true] {
            let theirs = burns(quiet, device);
            let ours = MultiHeadAttention::from(theirs.clone());
            check(&theirs, &ours, device);
        }
    });
}

#[test]
fn a_cross_attention_of_burn_nn_becomes_ours() {
    on_each_backend(|device| {
        // d_model, d_context, n_heads, n_heads_kv, d_head
        let theirs = CrossAttentionConfig::new(12, 7, 4, 2, 5).init(device);
        let ours = MultiHeadAttention::from(theirs.clone());
        let mut random = Random::new(2);
        let query: Tensor<3> = floats(&random.normals(2 * 3 * 12), [2, 3, 12], device);
        let memory: Tensor<3> = floats(&random.normals(2 * 6 * 7), [2, 6, 7], device);
        let expected = values(theirs.forward(query.clone(), memory.clone(), None));
        let found = values(ours.forward(MhaInput::cross_attn(query, memory)));
        let tolerance = Tolerance::absolute(1e-5);
        assert_close("context", &found, &expected, &[2, 3, 12], tolerance);
    });
}

#[test]
fn a_file_of_burn_nn_loads_and_gives_its_outputs() {
    on_each_backend(|device| {
        let theirs = burns(false, device);
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("burn-nn");
        theirs.clone().save_file(&path).expect("to be saved");
        let ours = MultiHeadAttentionConfig::new(12, 3).init(device);
        check(&theirs, &ours.load_file(&path), device);
    });
}
