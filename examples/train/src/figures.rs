//! The numbers of the notes that the claim comes from, computed with the layers and set beside what
//! theory gives.

use std::fmt::Write;

use burn::tensor::{Device, Tensor, TensorData};
use layers::{AttentionInput, Scale, ScaledDotProductAttentionConfig, Stage};

use crate::random::{Stream, generator, normals};

/// How many products of a query and a key a variance is taken over.
const DRAWS: usize = 10_000;

/// The widths at which variances are taken.
const WIDTHS: [usize; 5] = [8, 32, 128, 512, 1024];

/// A variance that was measured.
#[derive(Clone, Copy, Debug)]
pub struct Variance {
    /// The width of query and key.
    pub d: usize,
    /// How scores are scaled.
    pub scale: Scale,
    /// The variance of the scores.
    pub value: f64,
    /// Its standard error.
    pub error: f64,
    /// What it is for independent entries from N(0, 1): `d`, times the square of the scale.
    pub theory: f64,
}

/// Rows of attention weights that the notes work out.
#[derive(Clone, Debug)]
pub struct Weights {
    /// Which ones.
    pub title: &'static str,
    /// How scores are scaled.
    pub scale: Scale,
    /// What the layer gives.
    pub rows: Vec<[f64; 3]>,
    /// What they are in exact arithmetic, to eight digits.
    pub theory: Vec<[f64; 3]>,
}

/// Queries of width `d`, keys, and the weights without the scale and with it.
struct Example {
    title: &'static str,
    d: usize,
    queries: Vec<f64>,
    keys: Vec<f64>,
    unscaled: Vec<[f64; 3]>,
    scaled: Vec<[f64; 3]>,
}

/// The variance of `query . key` at five widths, with and without the scale, over 10,000 draws.
pub fn variances(device: &Device, seed: u64) -> Vec<Variance> {
    variances_at(&WIDTHS, device, seed)
}

fn variances_at(widths: &[usize], device: &Device, seed: u64) -> Vec<Variance> {
    widths
        .iter()
        .flat_map(|&d| {
            let mut generator = generator(seed, Stream::Figures);
            let mut draw = || {
                let entries = normals(&mut generator, 1.0, DRAWS * d);
                Tensor::<4>::from_data(TensorData::new(entries, [DRAWS, 1, 1, d]), device)
            };
            let (query, key) = (draw(), draw());
            [Scale::Unscaled, Scale::InvSqrtDim].map(|scale| {
                let attention = ScaledDotProductAttentionConfig::new()
                    .with_scale(scale)
                    .init(device);
                let input = AttentionInput::new(query.clone(), key.clone(), key.clone());
                let scores = attention.scores(input, Stage::Scaled).into_data();
                let (value, error) = variance(&scores.iter::<f64>().collect::<Vec<_>>());
                Variance {
                    d,
                    scale,
                    value,
                    error,
                    theory: d as f64 * scale.factor(d).powi(2),
                }
            })
        })
        .collect()
}

/// The variance of some numbers, and its standard error.
fn variance(numbers: &[f64]) -> (f64, f64) {
    let n = numbers.len() as f64;
    let mean = numbers.iter().sum::<f64>() / n;
    let moment = |power| numbers.iter().map(|x| (x - mean).powi(power)).sum::<f64>() / n;
    let (second, fourth) = (moment(2), moment(4));
    (
        second * n / (n - 1.0),
        ((fourth - second * second) / n).sqrt(),
    )
}

/// The notes' examples, each without the scale and with it.
pub fn weights(device: &Device) -> Vec<Weights> {
    examples()
        .into_iter()
        .flat_map(|example| {
            let theory = [
                (Scale::Unscaled, example.unscaled.clone()),
                (Scale::InvSqrtDim, example.scaled.clone()),
            ];
            theory.map(|(scale, theory)| Weights {
                title: example.title,
                scale,
                rows: example.weights(scale, device),
                theory,
            })
        })
        .collect()
}

impl Example {
    /// Scores as they are: a query that picks the first entry of each key.
    fn of_scores(
        title: &'static str,
        scores: [f64; 3],
        d: usize,
        unscaled: [f64; 3],
        scaled: [f64; 3],
    ) -> Self {
        let first = |entry: f64| (0..d).map(move |place| if place == 0 { entry } else { 0.0 });
        Self {
            title,
            d,
            queries: first(1.0).collect(),
            keys: scores.into_iter().flat_map(first).collect(),
            unscaled: vec![unscaled],
            scaled: vec![scaled],
        }
    }

    fn weights(&self, scale: Scale, device: &Device) -> Vec<[f64; 3]> {
        let tensor = |entries: &[f64]| {
            let shape = [1, 1, entries.len() / self.d, self.d];
            Tensor::<4>::from_data(TensorData::new(entries.to_vec(), shape), device)
        };
        let (query, key) = (tensor(&self.queries), tensor(&self.keys));
        let attention = ScaledDotProductAttentionConfig::new()
            .with_scale(scale)
            .init(device);
        let output = attention.forward_with_weights(AttentionInput::new(query, key.clone(), key));
        let weights: Vec<f64> = output.weights.into_data().iter().collect();
        weights
            .chunks_exact(3)
            .map(|row| [row[0], row[1], row[2]])
            .collect()
    }
}

fn examples() -> [Example; 3] {
    [
        Example {
            title: "weights of three tokens, d = 4",
            d: 4,
            queries: vec![
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
            ],
            keys: vec![
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
            ],
            unscaled: vec![
                [0.41123254, 0.07536857, 0.51339889],
                [0.14427532, 0.2173933, 0.63833138],
                [0.12411901, 0.76220571, 0.11367528],
            ],
            scaled: vec![
                [0.39285909, 0.16818537, 0.43895554],
                [0.23089671, 0.28342933, 0.48567396],
                [0.22547439, 0.55874566, 0.21577995],
            ],
        },
        Example::of_scores(
            "softmax of the scores 8, 2, 0, d = 64",
            [8.0, 2.0, 0.0],
            64,
            [0.99719368, 0.00247180, 0.00033452],
            [0.54340561, 0.25668664, 0.19990775],
        ),
        Example::of_scores(
            "softmax of the scores 4, 4, 0, d = 16",
            [4.0, 4.0, 0.0],
            16,
            [0.49546264, 0.49546264, 0.00907471],
            [0.42231880, 0.42231880, 0.15536240],
        ),
    ]
}

/// All of it as text.
pub fn figures(device: &Device, seed: u64) -> String {
    let mut text = String::new();
    write_variances(&mut text, &variances(device, seed))
        .and_then(|()| write_weights(&mut text, &weights(device)))
        .expect("a string takes any text");
    text
}

fn write_variances(text: &mut String, variances: &[Variance]) -> std::fmt::Result {
    writeln!(
        text,
        "Variance of query . key, entries from N(0, 1), {DRAWS} draws, with its standard error\n\n\
         {:>6}  {:<12}  {:>20}  {:>8}",
        "d", "scale", "measured", "theory"
    )?;
    for at in variances {
        let measured = format!("{:.4} ± {:.4}", at.value, at.error);
        let (d, scale, theory) = (at.d, at.scale.to_string(), at.theory);
        writeln!(text, "{d:>6}  {scale:<12}  {measured:>20}  {theory:>8.4}")?;
    }
    Ok(())
}

fn write_weights(text: &mut String, examples: &[Weights]) -> std::fmt::Result {
    let joined = |row: &[f64; 3]| row.map(|weight| format!("{weight:.8}")).join("  ");
    for example in examples {
        let Weights { title, scale, .. } = example;
        writeln!(text, "\n{title}, {scale}\n\n  {:<34}  theory", "measured")?;
        for (row, theory) in example.rows.iter().zip(&example.theory) {
            writeln!(text, "  {:<34}  {}", joined(row), joined(theory))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Backend;

    fn device() -> Device {
        Backend::default().device().unwrap().inner()
    }

    #[test]
    fn variances_are_those_of_theory_to_four_standard_errors() {
        let variances = variances_at(&[8, 32, 128], &device(), 0);
        assert_eq!(variances.len(), 6);
        for at in variances {
            assert!((at.value - at.theory).abs() < 4.0 * at.error, "{at:?}");
            // Of some 1.5 % of the variance: the test is worth something.
            assert!(at.error < 0.03 * at.theory, "{at:?}");
        }
    }

    #[test]
    fn weights_are_those_of_theory() {
        let weights = weights(&device());
        assert_eq!(weights.len(), 6);
        for example in weights {
            for (row, theory) in example.rows.iter().zip(&example.theory) {
                for (weight, expected) in row.iter().zip(theory) {
                    assert!((weight - expected).abs() < 1e-6, "{example:?}");
                }
            }
        }
    }

    #[test]
    fn the_text_sets_each_number_beside_its_theory() {
        let mut text = String::new();
        write_weights(&mut text, &weights(&device())).unwrap();
        let line = text
            .lines()
            .find(|line| line.contains("0.54340561"))
            .unwrap();
        let (measured, theory) = line.trim().split_at(36);
        assert!(measured.starts_with("0.5434"), "{line}");
        assert_eq!(theory.trim(), "0.54340561  0.25668664  0.19990775");
    }
}
