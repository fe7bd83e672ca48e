//! Projections, normalisation and rotation around the attention, forward alone.

use layers::{RotaryConfig, RotaryLayout, RotaryScaling};

use super::forward::forward;
use super::problem::Problem;

/// `x weight + bias`.
#[derive(Clone, Debug, PartialEq)]
pub struct Projection {
    /// `[input, output]`, row-major.
    pub weight: Vec<f64>,
    /// `[output]`.
    pub bias: Option<Vec<f64>>,
    /// The width of the input.
    pub input: usize,
    /// The width of the output.
    pub output: usize,
}

/// What is done to the heads of query and key before they turn.
#[derive(Clone, Debug, PartialEq)]
pub enum Normalization {
    /// Nothing.
    None,
    /// Division by the root mean square, times a gain for each component.
    Rms {
        /// Added to the mean square.
        epsilon: f64,
        /// That of the query `[d_k]`.
        query: Vec<f64>,
        /// That of the key `[d_k]`.
        key: Vec<f64>,
    },
    /// Division by the L2 norm.
    L2,
}

/// Where queries and keys stand for the rotation, a list a sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Positions {
    /// `[batch or 1, query_len]`.
    pub query: Vec<Vec<i64>>,
    /// `[batch or 1, key_len]`.
    pub key: Vec<Vec<i64>>,
}

/// A multi-head attention with its parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct MultiHead {
    /// Sizes and options; its query, key and value are empty.
    pub template: Problem,
    /// `[d_model]` to `[heads * d_k]`.
    pub query: Projection,
    /// To `[kv_heads * d_k]`.
    pub key: Projection,
    /// To `[kv_heads * d_v]`.
    pub value: Projection,
    /// `[heads * d_v]` to `[d_model]`.
    pub output: Projection,
    /// Of query and key.
    pub normalization: Normalization,
    /// Of query and key.
    pub rotary: Option<RotaryConfig>,
    /// In place of those that alignment gives.
    pub positions: Option<Positions>,
    /// A key `[kv_heads * d_k]` and value `[kv_heads * d_v]` that every query sees.
    pub extra: Option<(Vec<f64>, Vec<f64>)>,
    /// Whether every query sees a key and value of zeros.
    pub zero: bool,
}

impl Projection {
    fn apply(&self, rows: &[f64]) -> Vec<f64> {
        rows.chunks(self.input)
            .flat_map(|row| {
                (0..self.output).map(move |out| {
                    let bias = self.bias.as_ref().map_or(0.0, |bias| bias[out]);
                    let weights = self.weight.iter().skip(out).step_by(self.output);
                    row.iter().zip(weights).map(|(x, w)| x * w).sum::<f64>() + bias
                })
            })
            .collect()
    }
}

impl MultiHead {
    /// The output `[batch, query_len, d_model]` for inputs `[batch, length, width]`.
    pub fn forward(&self, query: &[f64], key: &[f64], value: &[f64]) -> Vec<f64> {
        let mut problem = self.template.clone();
        let sizes = problem.sizes;
        let (heads, kv_heads) = (sizes.heads, sizes.kv_heads);
        let mut query = self.query.apply(query);
        let mut key = self.key.apply(key);
        let mut value = self.value.apply(value);
        self.normalize(&mut query, &mut key);
        if let Some(rotary) = &self.rotary {
            let positions = self.positions.clone().unwrap_or_else(|| Positions {
                query: (0..sizes.batch)
                    .map(|sample| {
                        (0..sizes.query_len)
                            .map(|query| problem.place(sample, query))
                            .collect()
                    })
                    .collect(),
                key: vec![(0..sizes.key_len as i64).collect()],
            });
            turn(rotary, &mut query, heads, sizes.d_k, &positions.query);
            turn(rotary, &mut key, kv_heads, sizes.d_k, &positions.key);
        }
        let mut extra = Vec::new();
        extra.extend(self.extra.clone());
        if self.zero {
            extra.push((
                vec![0.0; kv_heads * sizes.d_k],
                vec![0.0; kv_heads * sizes.d_v],
            ));
        }
        for (extra_key, extra_value) in extra {
            append(&mut key, &extra_key, sizes.batch);
            append(&mut value, &extra_value, sizes.batch);
            problem.sizes.key_len += 1;
            problem.extra_keys += 1;
        }
        let (batch, keys) = (sizes.batch, problem.sizes.key_len);
        problem.query = swapped(&query, [batch, sizes.query_len, heads, sizes.d_k]);
        problem.key = swapped(&key, [batch, keys, kv_heads, sizes.d_k]);
        problem.value = swapped(&value, [batch, keys, kv_heads, sizes.d_v]);
        let context = forward(&problem).context;
        let context = swapped(&context, [batch, heads, sizes.query_len, sizes.d_v]);
        self.output.apply(&context)
    }

    fn normalize(&self, query: &mut [f64], key: &mut [f64]) {
        let d_k = self.template.sizes.d_k;
        for (list, is_query) in [(query, true), (key, false)] {
            for head in list.chunks_mut(d_k) {
                let squares: f64 = head.iter().map(|number| number * number).sum();
                match &self.normalization {
                    Normalization::None => {}
                    Normalization::L2 => {
                        head.iter_mut().for_each(|number| *number /= squares.sqrt())
                    }
                    Normalization::Rms {
                        epsilon,
                        query,
                        key,
                    } => {
                        let root = (squares / d_k as f64 + epsilon).sqrt();
                        let gain = if is_query { query } else { key };
                        for (number, gain) in head.iter_mut().zip(gain) {
                            *number *= gain / root;
                        }
                    }
                }
            }
        }
    }
}

/// A row `[heads * width]` at the end of each sample of `[batch, length, heads * width]`.
fn append(list: &mut Vec<f64>, row: &[f64], batch: usize) {
    if batch == 0 {
        return;
    }
    let length = list.len() / batch;
    *list = (0..batch)
        .flat_map(|sample| list[sample * length..][..length].iter().chain(row))
        .copied()
        .collect();
}

/// `[batch, first, second, width]` to `[batch, second, first, width]`.
fn swapped(list: &[f64], [batch, first, second, width]: [usize; 4]) -> Vec<f64> {
    let mut result = Vec::with_capacity(list.len());
    for sample in 0..batch {
        for j in 0..second {
            for i in 0..first {
                let row = (sample * first + i) * second + j;
                result.extend_from_slice(&list[row * width..][..width]);
            }
        }
    }
    result
}

/// Turns `[batch, length, heads, width]` by positions, one pair of components after the other.
fn turn(
    config: &RotaryConfig,
    list: &mut [f64],
    heads: usize,
    width: usize,
    positions: &[Vec<i64>],
) {
    let dimensions = config.dimensions.unwrap_or(width);
    let length = positions[0].len();
    for (row, head) in list.chunks_mut(width).enumerate() {
        let token = row / heads;
        let sample = if positions.len() == 1 {
            0
        } else {
            token / length
        };
        let position = positions[sample][token % length] as f64;
        for pair in 0..dimensions / 2 {
            let (one, other) = match config.layout {
                RotaryLayout::HalfSplit => (pair, pair + dimensions / 2),
                RotaryLayout::Interleaved => (2 * pair, 2 * pair + 1),
            };
            let (frequency, magnitude) = frequency(config, pair, dimensions);
            let (sin, cos) = (position * frequency).sin_cos();
            let (a, b) = (head[one], head[other]);
            head[one] = magnitude * (a * cos - b * sin);
            head[other] = magnitude * (a * sin + b * cos);
        }
    }
}

/// The angle a position of a pair, and how much longer rotated vectors are.
fn frequency(config: &RotaryConfig, pair: usize, dimensions: usize) -> (f64, f64) {
    let (pair, dimensions) = (pair as f64, dimensions as f64);
    let of_base = |base: f64| base.powf(-2.0 * pair / dimensions);
    let trained = of_base(config.base);
    match config.scaling {
        RotaryScaling::None => (trained, 1.0),
        RotaryScaling::Linear { factor } => (trained / factor, 1.0),
        RotaryScaling::Ntk { factor } => {
            let base = config.base * factor.powf(dimensions / (dimensions - 2.0));
            (of_base(base), 1.0)
        }
        RotaryScaling::Yarn {
            factor,
            original_length,
        } => {
            // The pair that makes so many turns within the trained length.
            let pair_of = |turns: f64| {
                let wavelength = original_length as f64 / turns;
                dimensions / 2.0 * (wavelength / std::f64::consts::TAU).ln() / config.base.ln()
            };
            let low = pair_of(32.0).floor().max(0.0);
            let high = pair_of(1.0).ceil().min(dimensions - 1.0);
            let ramp = ((pair - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
            let mixed = trained * (1.0 - ramp) + trained / factor * ramp;
            (mixed, 1.0 + 0.1 * factor.ln())
        }
    }
}
