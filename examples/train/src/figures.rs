//! The numbers of the notes that the claim comes from, computed with the layers and set beside
//! what theory gives.

use std::fmt::Write;

use burn::tensor::{Device, Tensor, TensorData};
use layers::{AttentionInput, Scale, ScaledDotProductAttentionConfig};

use crate::Backend;
use crate::random::{Stream, generator, normals};

/// How many products of a query and a key the variances are taken over.
const DRAWS: usize = 10_000;

/// The three queries and keys of width 4 of the notes' example.
const QUERIES: [[f64; 4]; 3] = [
    [
        0.4967141530112327,
        -0.13826430117118466,
        0.6476885381006925,
        1.5230298564080254,
    ],
    [
        -0.23415337472333597,
        -0.23413695694918055,
        1.5792128155073915,
        0.7674347291529088,
    ],
    [
        -0.4694743859349521,
        0.5425600435859647,
        -0.46341769281246226,
        -0.46572975357025687,
    ],
];
const KEYS: [[f64; 4]; 3] = [
    [
        0.24196227156603412,
        -1.913280244657798,
        -1.7249178325130328,
        -0.5622875292409727,
    ],
    [
        -1.0128311203344238,
        0.3142473325952739,
        -0.9080240755212109,
        -1.4123037013352915,
    ],
    [
        1.465648768921554,
        -0.22577630048653566,
        0.06752820468792384,
        -1.4247481862134568,
    ],
];

/// All figures as text.
pub fn figures() -> String {
    let device = Backend::default()
        .device()
        .map(Device::inner)
        .unwrap_or_default();
    let mut text = String::new();
    variances(&mut text);
    example(&mut text, &device);
    softmaxes(&mut text, &device);
    text
}

fn variances(text: &mut String) {
    text.push_str("Variance of q.k for unit-variance q and k (10,000 draws)\n");
    text.push_str("      d    unscaled   theory    scaled   theory\n");
    for d in [8, 32, 128, 512, 1024] {
        let variance = variance(d);
        writeln!(
            text,
            "{d:>7}  {variance:>10.2}  {d:>7}  {:>8.4}  {:>7}",
            variance / d as f64,
            1
        )
        .expect("a string takes text");
    }
}

/// The variance of `q.k` over [`DRAWS`] pairs of normal vectors.
fn variance(d: usize) -> f64 {
    let mut generator = generator(d as u64, Stream::Figures);
    let products: Vec<f64> = (0..DRAWS)
        .map(|_| {
            let (q, k) = (
                normals(&mut generator, 1.0, d),
                normals(&mut generator, 1.0, d),
            );
            q.iter().zip(&k).map(|(q, k)| q * k).sum()
        })
        .collect();
    let mean = products.iter().sum::<f64>() / DRAWS as f64;
    products
        .iter()
        .map(|product| (product - mean).powi(2))
        .sum::<f64>()
        / (DRAWS - 1) as f64
}

fn example(text: &mut String, device: &Device) {
    let flat = |rows: &[[f64; 4]; 3]| rows.iter().flatten().copied().collect::<Vec<f64>>();
    for (name, scale) in [
        ("without the scale", Scale::Unscaled),
        ("with 1/sqrt(4)", Scale::InvSqrtDim),
    ] {
        let weights = weights(&flat(&QUERIES), &flat(&KEYS), 4, scale, device);
        writeln!(text, "\nWeights of the 3 x 3 example, d = 4, {name}")
            .expect("a string takes text");
        for row in weights.chunks(3) {
            writeln!(text, "  {:.8}  {:.8}  {:.8}", row[0], row[1], row[2])
                .expect("a string takes text");
        }
    }
}

fn softmaxes(text: &mut String, device: &Device) {
    text.push_str("\nWorked softmaxes: the layers' weights, and exp(score) / sum by hand\n");
    for (scores, d) in [([8.0, 2.0, 0.0], 64), ([4.0, 4.0, 0.0], 16)] {
        for scale in [Scale::Unscaled, Scale::InvSqrtDim] {
            // A query of one 1, and keys that carry the scores there.
            let mut query = vec![0.0; d];
            query[0] = 1.0;
            let keys: Vec<f64> = scores
                .iter()
                .flat_map(|score| (0..d).map(move |i| if i == 0 { *score } else { 0.0 }))
                .collect();
            let weights = weights(&query, &keys, d, scale, device);
            let exps = scores.map(|score: f64| (score * scale.factor(d)).exp());
            let sum: f64 = exps.iter().sum();
            writeln!(
                text,
                "  scores {scores:?}, d = {d}, {scale}: {:.8} {:.8} {:.8}   theory {:.8} {:.8} {:.8}",
                weights[0],
                weights[1],
                weights[2],
                exps[0] / sum,
                exps[1] / sum,
                exps[2] / sum
            )
            .expect("a string takes text");
        }
    }
}

/// The weights that the attention layer gives, row by row.
fn weights(queries: &[f64], keys: &[f64], d: usize, scale: Scale, device: &Device) -> Vec<f64> {
    let tensor = |numbers: &[f64]| {
        let data = TensorData::new(numbers.to_vec(), [1, 1, numbers.len() / d, d]);
        Tensor::<4>::from_data(data, device)
    };
    let (query, key) = (tensor(queries), tensor(keys));
    let attention = ScaledDotProductAttentionConfig::new()
        .with_scale(scale)
        .init(device);
    let input = AttentionInput::new(query, key.clone(), key);
    attention
        .forward_with_weights(input)
        .weights
        .into_data()
        .iter::<f64>()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variance_of_a_product_is_the_width() {
        for d in [8, 128] {
            // Its standard error is about d * sqrt(2 / DRAWS), and somewhat more for small d.
            assert!(
                (variance(d) / d as f64 - 1.0).abs() < 0.1,
                "d = {d}: {}",
                variance(d)
            );
        }
    }

    #[test]
    fn the_text_has_the_notes_numbers() {
        let text = figures();
        for number in [
            "0.4112",
            "0.3928",
            "0.9971936",
            "0.5434056",
            "0.4954626",
            "0.4223188",
        ] {
            assert!(text.contains(number), "{number} is missing from\n{text}");
        }
    }
}
