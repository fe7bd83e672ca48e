//! Training through the layers is training through attention that keeps every score.

use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::activation::softmax;
use burn::tensor::{Device, Tensor};
use clap::ValueEnum;
use train::{Backend, Batch, Init, Model, ModelConfig, Samples, TOKENS, loss};

const STEPS: usize = 100;
const D_K: usize = 32;

/// The logits of a model of one block and one head, with plain tensor operations.
fn materialising(model: &Model, batch: &Batch) -> Tensor<2> {
    let pairs = model.keys.forward(batch.keys.clone()) + model.values.forward(batch.values.clone());
    let question = model.keys.forward(batch.question.clone());
    let tokens = Tensor::cat(vec![pairs, question], 1);
    let [block] = &model.blocks[..] else {
        panic!("one block was asked for");
    };
    let normed = block.norm.forward(tokens.clone());
    let attention = &block.attention;
    let query = attention
        .query
        .forward(normed.clone().slice_dim(1, TOKENS - 1..));
    let pairs = normed.slice_dim(1, ..TOKENS - 1);
    let (key, value) = (
        attention.key.forward(pairs.clone()),
        attention.value.forward(pairs),
    );
    let scores = query.matmul(key.swap_dims(1, 2)) / (D_K as f64).sqrt();
    let context = attention.output.forward(softmax(scores, 2).matmul(value));
    let tokens = tokens.slice_dim(1, TOKENS - 1..) + context;
    model.answer.forward(tokens.squeeze_dim::<2>(1))
}

fn losses(device: &Device, forward: impl Fn(&Model, &Batch) -> Tensor<2>) -> Vec<f64> {
    let config = ModelConfig::new(D_K);
    let mut model = config.try_init(Init::Unit, 5, device).unwrap();
    let mut optimizer = AdamConfig::new().with_epsilon(1e-8).init();
    let mut samples = Samples::training(5);
    (0..STEPS)
        .map(|_| {
            let drawn: Vec<_> = samples.by_ref().take(32).collect();
            let batch = Batch::new(&drawn, device);
            let loss = loss(forward(&model, &batch), &batch);
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            model = optimizer.step(1e-3, model.clone(), gradients);
            loss.into_scalar::<f64>()
        })
        .collect()
}

#[test]
fn a_hundred_steps_have_the_losses_of_attention_that_keeps_every_score() {
    for backend in Backend::value_variants() {
        let Ok(device) = backend.device() else {
            continue;
        };
        // A software driver is no device to train on.
        if !backend.is_cpu() {
            continue;
        }
        println!("covered: {backend}");
        let found = losses(&device, Model::forward);
        let expected = losses(&device, materialising);
        assert!(
            found[STEPS - 1] < found[0],
            "{backend}: nothing was learned"
        );
        for (step, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert!(
                (found - expected).abs() <= 1e-4 * expected.abs(),
                "{backend}: the loss of step {step} is {found}, and {expected} with every score kept"
            );
        }
    }
}
