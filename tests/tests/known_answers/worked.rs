//! The worked numbers of the notes that the project starts from.

use burn::tensor::Device;
use layers::{AttentionInput, Scale, ScaledDotProductAttentionConfig, Stage};
use tests::{Random, Tolerance, assert_close, filled, floats, on_each_backend, values};

/// Three queries and three keys of width 4.
const QUERY: [f64; 12] = [
    0.4967141530112327,
    -0.13826430117118466,
    0.6476885381006925,
    1.5230298564080254,
    -0.23415337472333597,
    -0.23413695694918055,
    1.5792128155073915,
    0.7674347291529088,
    -0.4694743859349521,
    0.5425600435859647,
    -0.46341769281246226,
    -0.46572975357025687,
];
const KEY: [f64; 12] = [
    0.24196227156603412,
    -1.913280244657798,
    -1.7249178325130328,
    -0.5622875292409727,
    -1.0128311203344238,
    0.3142473325952739,
    -0.9080240755212109,
    -1.4123037013352915,
    1.465648768921554,
    -0.22577630048653566,
    0.06752820468792384,
    -1.4247481862134568,
];

fn check_example(scale: Scale, expected: [f64; 9]) {
    on_each_backend(|device| {
        let query = floats(&QUERY, [1, 1, 3, 4], device);
        let key = floats(&KEY, [1, 1, 3, 4], device);
        let input = AttentionInput::new(query, key.clone(), key);
        let module = ScaledDotProductAttentionConfig::new()
            .with_scale(scale)
            .init(device);
        let weights = values(module.forward_with_weights(input).weights);
        let tolerance = Tolerance::absolute(1e-6);
        assert_close("weights", &weights, &expected, &[3, 3], tolerance);
    });
}

#[test]
fn the_example_of_width_4_without_the_scale() {
    check_example(
        Scale::Unscaled,
        [
            0.41123254, 0.07536857, 0.51339889, 0.14427532, 0.2173933, 0.63833138, 0.12411901,
            0.76220571, 0.11367528,
        ],
    );
}

#[test]
fn the_example_of_width_4_with_the_scale() {
    check_example(
        Scale::InvSqrtDim,
        [
            0.39285909, 0.16818537, 0.43895554, 0.23089671, 0.28342933, 0.48567396, 0.22547439,
            0.55874566, 0.21577995,
        ],
    );
}

/// Weights of one query whose raw products with three keys are given.
fn weights_of(products: [f64; 3], d_k: usize, scale: Scale, device: &Device) -> Vec<f64> {
    let mut query = vec![0.0; d_k];
    query[0] = 1.0;
    let mut key = vec![0.0; 3 * d_k];
    for (index, product) in products.iter().enumerate() {
        key[index * d_k] = *product;
    }
    let query = floats(&query, [1, 1, 1, d_k], device);
    let key = floats(&key, [1, 1, 3, d_k], device);
    let value = filled(0.0, [1, 1, 3, 1], device);
    let module = ScaledDotProductAttentionConfig::new()
        .with_scale(scale)
        .init(device);
    values(
        module
            .forward_with_weights(AttentionInput::new(query, key, value))
            .weights,
    )
}

fn check_products(products: [f64; 3], d_k: usize, unscaled: [f64; 3], scaled: [f64; 3]) {
    on_each_backend(|device| {
        for (scale, expected) in [(Scale::Unscaled, unscaled), (Scale::InvSqrtDim, scaled)] {
            let found = weights_of(products, d_k, scale, device);
            let name = scale.to_string();
            assert_close(&name, &found, &expected, &[3], Tolerance::absolute(1e-6));
        }
    });
}

#[test]
fn products_of_8_2_and_0_at_width_64() {
    check_products(
        [8.0, 2.0, 0.0],
        64,
        [0.99719368, 0.00247180, 0.00033452],
        [0.54340561, 0.25668664, 0.19990775],
    );
}

#[test]
fn products_of_4_4_and_0_at_width_16() {
    check_products(
        [4.0, 4.0, 0.0],
        16,
        [0.49546264, 0.49546264, 0.00907471],
        [0.42231880, 0.42231880, 0.15536240],
    );
}

/// The variance of 10,000 scores of queries and keys with entries from N(0, `deviation`^2).
fn variance_of_scores(d_k: usize, deviation: f64, scale: Scale, device: &Device) -> f64 {
    // Two queries by two keys in each sample: scores that share a vector are uncorrelated still.
    const SAMPLES: usize = 2500;
    let mut random = Random::new(d_k as u64);
    let mut draw = || {
        let numbers = random.normals(SAMPLES * 2 * d_k);
        floats(&numbers, [SAMPLES, 1, 2, d_k], device) * deviation
    };
    let (query, key) = (draw(), draw());
    let value = filled(0.0, [SAMPLES, 1, 2, 1], device);
    let module = ScaledDotProductAttentionConfig::new()
        .with_scale(scale)
        .init(device);
    let scores = values(module.scores(AttentionInput::new(query, key, value), Stage::Scaled));
    let count = scores.len() as f64;
    let mean = scores.iter().sum::<f64>() / count;
    scores
        .iter()
        .map(|score| (score - mean).powi(2))
        .sum::<f64>()
        / count
}

#[test]
fn the_variance_of_a_score_is_the_width_and_1_after_the_scale() {
    on_each_backend(|device| {
        for (d_k, deviation) in [(8, 1.0), (32, 1.5), (128, 1.0), (512, 0.5), (1024, 1.0)] {
            let unit = f64::powi(deviation, 4);
            for (scale, expected) in [
                (Scale::Unscaled, d_k as f64 * unit),
                (Scale::InvSqrtDim, unit),
            ] {
                let found = variance_of_scores(d_k, deviation, scale, device);
                // Four deviations of a variance estimated from 10,000 numbers.
                let tolerance = Tolerance::relative(0.06);
                let name = format!("d_k {d_k} {scale}");
                assert_close(&name, &[found], &[expected], &[1], tolerance);
            }
        }
    });
}
