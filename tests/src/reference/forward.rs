//! The forward pass.

use layers::Scale;

use super::problem::{Problem, Row, Sink};

/// What a call gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Forward {
    /// `[batch, heads, query_len, d_v]`.
    pub context: Vec<f64>,
    /// `[batch, heads, query_len, key_len]`, before dropout.
    pub weights: Vec<f64>,
    /// `[batch, heads, query_len]`.
    pub logsumexp: Vec<f64>,
    /// The largest magnitude of any finite score, which rounding errors grow with.
    pub largest_score: f64,
}

/// The score of one query and key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Score {
    /// As it enters the softmax.
    pub value: f64,
    /// Its derivative by the scaled product: what the softcap leaves of a change.
    pub slope: f64,
}

/// The softmax of one row.
pub(super) struct Softmax {
    /// One weight a key.
    pub weights: Vec<f64>,
    /// The sink's own weight.
    pub sink: f64,
    /// The logarithm of the denominator.
    pub logsumexp: f64,
}

/// Computes a call.
pub fn forward(problem: &Problem) -> Forward {
    let sizes = problem.sizes;
    let mut result = Forward {
        context: Vec::new(),
        weights: Vec::new(),
        logsumexp: Vec::new(),
        largest_score: 0.0,
    };
    for row in sizes.each_row() {
        let scores = problem.scores(row);
        let softmax = problem.softmax(row, &scores);
        for score in scores.iter().filter(|score| score.value.is_finite()) {
            result.largest_score = result.largest_score.max(score.value.abs());
        }
        for channel in 0..sizes.d_v {
            let mut sum = 0.0;
            for (key, weight) in softmax.weights.iter().enumerate() {
                // What a query does not see is not read: it may be NaN.
                if *weight != 0.0 {
                    sum += weight * problem.dropout(row, key) * problem.value_at(row, key, channel);
                }
            }
            result.context.push(sum);
        }
        result.weights.extend(softmax.weights);
        result.logsumexp.push(softmax.logsumexp);
    }
    result
}

impl Problem {
    /// The factor on the query of a row.
    pub(super) fn factor(&self, row: Row) -> f64 {
        let d_k = self.sizes.d_k as f64;
        match self.scale {
            Scale::InvSqrtDim => 1.0 / d_k.sqrt(),
            Scale::Unscaled => 1.0,
            Scale::InvDim => 1.0 / d_k,
            Scale::Fixed(factor) => factor,
            Scale::LogLength { reference } => {
                let keys = (0..self.own_keys())
                    .filter(|&key| self.in_reach(row.sample, row.query, key))
                    .count();
                (keys.max(1) as f64).ln() / ((reference as f64).ln() * d_k.sqrt())
            }
            Scale::Learned { .. } => self.learned_factor,
        }
    }

    /// Where the query of a row starts.
    pub(super) fn query_index(&self, row: Row) -> usize {
        let sizes = self.sizes;
        ((row.sample * sizes.heads + row.head) * sizes.query_len + row.query) * sizes.d_k
    }

    /// Where a key starts that the head of a row reads, counted in keys.
    pub(super) fn key_row(&self, row: Row, key: usize) -> usize {
        let sizes = self.sizes;
        let head = row.head / (sizes.heads / sizes.kv_heads);
        (row.sample * sizes.kv_heads + head) * sizes.key_len + key
    }

    pub(super) fn value_at(&self, row: Row, key: usize, channel: usize) -> f64 {
        self.value[self.key_row(row, key) * self.sizes.d_v + channel]
    }

    /// What a weight is multiplied by after the softmax.
    pub(super) fn dropout(&self, row: Row, key: usize) -> f64 {
        let sizes = self.sizes;
        let index = ((row.sample * sizes.heads + row.head) * sizes.query_len + row.query)
            * sizes.key_len
            + key;
        self.dropout.as_ref().map_or(1.0, |factors| factors[index])
    }

    /// The scores of a row, minus infinity where it does not see.
    pub(super) fn scores(&self, row: Row) -> Vec<Score> {
        let blocked = Score {
            value: f64::NEG_INFINITY,
            slope: 0.0,
        };
        (0..self.sizes.key_len)
            .map(|key| match self.sees(row, key) {
                true => self.score(row, key),
                false => blocked,
            })
            .collect()
    }

    fn score(&self, row: Row, key: usize) -> Score {
        let d_k = self.sizes.d_k;
        let query = &self.query[self.query_index(row)..][..d_k];
        let start = self.key_row(row, key) * d_k;
        let factor = self.factor(row);
        let product: f64 = query
            .iter()
            .zip(&self.key[start..start + d_k])
            .map(|(query, key)| query * factor * key)
            .sum();
        let (mut value, slope) = match self.softcap {
            None => (product, 1.0),
            Some(cap) => {
                let tanh = (product / cap).tanh();
                (cap * tanh, 1.0 - tanh * tanh)
            }
        };
        if key >= self.own_keys() {
            return Score { value, slope };
        }
        if let Some(bias) = &self.bias {
            value += bias.at(row, key);
        }
        if self.alibi {
            let distance = (self.place(row.sample, row.query) - key as i64).abs();
            // The slopes themselves are f32 numbers, in f64 too.
            let slope = f64::from(alibi_slope(row.head, self.sizes.heads) as f32);
            value -= slope * distance as f64;
        }
        Score { value, slope }
    }

    pub(super) fn sink_logit(&self, head: usize) -> Option<f64> {
        match &self.sink {
            Sink::None => None,
            Sink::Quiet => Some(0.0),
            Sink::Learned(logits) => Some(logits[head]),
        }
    }

    pub(super) fn softmax(&self, row: Row, scores: &[Score]) -> Softmax {
        let sink = self.sink_logit(row.head).unwrap_or(f64::NEG_INFINITY);
        let max = scores.iter().fold(sink, |max, score| max.max(score.value));
        if max == f64::NEG_INFINITY {
            return Softmax {
                weights: vec![0.0; scores.len()],
                sink: 0.0,
                logsumexp: f64::NEG_INFINITY,
            };
        }
        let sum: f64 = scores
            .iter()
            .map(|score| (score.value - max).exp())
            .sum::<f64>()
            + (sink - max).exp();
        Softmax {
            weights: scores
                .iter()
                .map(|score| (score.value - max).exp() / sum)
                .collect(),
            sink: (sink - max).exp() / sum,
            logsumexp: max + sum.ln(),
        }
    }
}

/// The slope of a head: `2^(-8 (head + 1) / heads)` for a power of two; otherwise the slopes of
/// the power of two below, then every second one of the power of two above.
fn alibi_slope(head: usize, heads: usize) -> f64 {
    let below = (1..=heads)
        .rev()
        .find(|n| n.is_power_of_two())
        .expect("1 is one");
    let exponent = match head < below {
        true => -8.0 * (head + 1) as f64 / below as f64,
        false => -8.0 * (2 * (head - below) + 1) as f64 / (2 * below) as f64,
    };
    exponent.exp2()
}
