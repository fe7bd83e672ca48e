//! The recorded gradient at the scores, against finite differences of the model's loss in f64.
//!
//! A file of its own: the element type is set for the whole process, before anything is computed.
#![cfg(feature = "flex")]

use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use layers::{Probe, Scale};
use train::{Batch, Init, ModelConfig, PAIRS, Samples, TOKENS, loss};

/// The step of the differences: their error is of its square, or of 1e-16 by it.
const STEP: f64 = 1e-5;
const SAMPLES: usize = 2;
const HEADS: usize = 2;

#[test]
fn the_recorded_score_gradient_is_that_of_finite_differences() {
    let mut device = Device::flex();
    device.configure(FloatDType::F64).unwrap();
    let device = device.autodiff();
    let samples: Vec<_> = Samples::training(7).take(SAMPLES).collect();
    let batch = Batch::new(&samples, &device);

    for scale in [Scale::InvSqrtDim, Scale::Unscaled] {
        let config = ModelConfig::new(4)
            .with_heads(HEADS)
            .with_layers(2)
            .with_scale(scale);
        let model = config.try_init(Init::Unit, 7, &device).unwrap();
        // The first layer has a query for every token and as many keys, the last one the question.
        for (layer, queries, keys) in [(0, TOKENS, TOKENS), (1, 1, PAIRS)] {
            let probe = Probe::new();
            let logits = model.forward_with(&batch, |at, input| match at == layer {
                true => input.probe(&probe),
                false => input,
            });
            loss(logits, &batch).backward();
            let rows = probe.take().unwrap();
            assert_eq!(rows.len(), SAMPLES * HEADS * queries);

            // A bias is a shift of the scores as they enter the softmax.
            let shape = [SAMPLES, HEADS, queries, keys];
            let shifted = |place: usize, by: f64| -> f64 {
                let mut bias = vec![0.0; shape.iter().product()];
                bias[place] = by;
                let bias = Tensor::<4>::from_data(TensorData::new(bias, shape), &device);
                let logits = model.forward_with(&batch, |at, input| match at == layer {
                    true => input.bias(bias.clone()),
                    false => input,
                });
                loss(logits, &batch).into_scalar()
            };
            // Every seventh row is enough of the first layer's.
            for (row, statistics) in rows.iter().enumerate().step_by(7) {
                let squares = (row * keys..(row + 1) * keys).map(|place| {
                    let difference = shifted(place, STEP) - shifted(place, -STEP);
                    (difference / (2.0 * STEP)).powi(2)
                });
                let expected = squares.sum::<f64>().sqrt();
                let recorded = statistics.score_gradient.unwrap();
                assert!(
                    (recorded - expected).abs() < 1e-7 * expected + 1e-10,
                    "{scale}, layer {layer}, row {row}: {recorded} and {expected}"
                );
            }
        }
    }
}
