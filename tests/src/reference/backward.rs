//! The backward pass, by the formulas of the softmax's derivative.

use layers::Scale;

use super::problem::{Problem, Sink};

/// The gradient of a loss at what a call gives.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Upstream {
    /// At the context.
    pub context: Vec<f64>,
    /// At the logsumexp, if it is used.
    pub logsumexp: Option<Vec<f64>>,
    /// At the weights, if they are used.
    pub weights: Option<Vec<f64>>,
}

/// The gradient of the loss at what a call takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradients {
    /// At the query.
    pub query: Vec<f64>,
    /// At the key.
    pub key: Vec<f64>,
    /// At the value.
    pub value: Vec<f64>,
    /// At the bias, in its own shape.
    pub bias: Option<Vec<f64>>,
    /// At a learned sink.
    pub sink: Option<Vec<f64>>,
    /// At a learned scale's factor.
    pub learned_factor: Option<f64>,
    /// At the scores as they enter the softmax, `[batch, heads, query_len, key_len]`.
    pub scores: Vec<f64>,
}

/// Differentiates a call.
pub fn backward(problem: &Problem, upstream: &Upstream) -> Gradients {
    let sizes = problem.sizes;
    let (d_k, d_v) = (sizes.d_k, sizes.d_v);
    let learned = matches!(problem.sink, Sink::Learned(_));
    let mut gradients = Gradients {
        query: vec![0.0; problem.query.len()],
        key: vec![0.0; problem.key.len()],
        value: vec![0.0; problem.value.len()],
        bias: problem
            .bias
            .as_ref()
            .map(|bias| vec![0.0; bias.values.len()]),
        sink: learned.then(|| vec![0.0; sizes.heads]),
        learned_factor: matches!(problem.scale, Scale::Learned { .. }).then_some(0.0),
        scores: Vec::new(),
    };
    for (index, row) in sizes.each_row().enumerate() {
        let scores = problem.scores(row);
        let softmax = problem.softmax(row, &scores);
        let at_context = &upstream.context[index * d_v..][..d_v];
        let at_logsumexp = upstream.logsumexp.as_ref().map_or(0.0, |list| list[index]);

        // The gradient at each weight before dropout; one that is zero passes nothing on.
        let at_weights: Vec<f64> = (0..sizes.key_len)
            .map(|key| {
                if softmax.weights[key] == 0.0 {
                    return 0.0;
                }
                let value = (0..d_v).map(|channel| problem.value_at(row, key, channel));
                let product: f64 = at_context.iter().zip(value).map(|(a, b)| a * b).sum();
                let direct = upstream
                    .weights
                    .as_ref()
                    .map_or(0.0, |list| list[index * sizes.key_len + key]);
                product * problem.dropout(row, key) + direct
            })
            .collect();
        let mean: f64 = softmax
            .weights
            .iter()
            .zip(&at_weights)
            .map(|(a, b)| a * b)
            .sum();
        if let Some(sink) = &mut gradients.sink {
            sink[row.head] += softmax.sink * (at_logsumexp - mean);
        }

        let factor = problem.factor(row);
        let query = problem.query_index(row);
        for (key, score) in scores.iter().enumerate() {
            let weight = softmax.weights[key];
            let at_score = weight * (at_weights[key] - mean + at_logsumexp);
            gradients.scores.push(at_score);
            if weight == 0.0 {
                continue;
            }
            let value = problem.key_row(row, key) * d_v;
            for (channel, gradient) in at_context.iter().enumerate() {
                gradients.value[value + channel] += weight * problem.dropout(row, key) * gradient;
            }
            if let (Some(bias), Some(gradient)) = (&problem.bias, &mut gradients.bias) {
                gradient[bias.index(row, key)] += at_score;
            }
            let at_product = at_score * score.slope;
            let start = problem.key_row(row, key) * d_k;
            let mut product = 0.0;
            for channel in 0..d_k {
                let (q, k) = (problem.query[query + channel], problem.key[start + channel]);
                gradients.query[query + channel] += at_product * factor * k;
                gradients.key[start + channel] += at_product * factor * q;
                product += q * k;
            }
            if let Some(gradient) = &mut gradients.learned_factor {
                *gradient += at_product * product;
            }
        }
    }
    gradients
}
