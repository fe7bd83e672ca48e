//! Times attention through Burn on request, for `benches/peers`: `burn_peer layers` this crate,
//! `burn_peer burn` Burn's own, both on Flex.
//!
//! Reads lines from standard input and answers each with one line of seconds, one a repetition:
//!
//! ```text
//! time DIRECTION BATCH HEADS KV_HEADS QUERIES KEYS D_K D_V MASK REPETITIONS
//! module BATCH LENGTH D_MODEL HEADS REPETITIONS
//! ```
//!
//! `DIRECTION` is `forward` (no autodiff) or `both` (forward, then backward to the leaves). `MASK`
//! is `full`, `causal`, `window:N` or `padding` (the last quarter of the keys). `module` is a whole
//! multi-head attention on one input, forward and backward, to its input and parameters.

use std::io::{BufRead, Write};
use std::time::Instant;

use burn::nn::attention as nn;
use burn::tensor::module::attention;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Device, Distribution, Tensor};
use layers::{
    AttentionInput, Mask, MhaInput, MultiHeadAttentionConfig, ScaledDotProductAttentionConfig,
    Window,
};

/// Burn's attention keeps scores of this size several times: what needs more is not run.
const SCORE_BYTES: usize = 256 << 20;

fn main() {
    // As a training loop would: from a thread of the pool, not from one beside it.
    rayon::scope(|_| answer());
}

/// Answers one line after the other.
fn answer() {
    let ours = match std::env::args().nth(1).as_deref() {
        Some("layers") => true,
        Some("burn") => false,
        other => panic!("expected `layers` or `burn`, got {other:?}"),
    };
    let mut out = std::io::stdout();
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("standard input");
        let words: Vec<&str> = line.split_whitespace().collect();
        let seconds = match words.as_slice() {
            ["time", direction, rest @ ..] => operation(ours, *direction == "both", rest),
            ["module", rest @ ..] => Some(module(ours, rest)),
            _ => panic!("unknown request: {line}"),
        };
        let answer = match seconds {
            Some(seconds) => {
                let numbers: Vec<String> = seconds.iter().map(|x| format!("{x:.9}")).collect();
                numbers.join(" ")
            }
            None => "unsupported".into(),
        };
        writeln!(out, "{answer}").expect("standard output");
        out.flush().expect("standard output");
    }
}

fn numbers<const N: usize>(words: &[&str]) -> [usize; N] {
    std::array::from_fn(|place| words[place].parse().expect("a number"))
}

fn operation(ours: bool, both: bool, words: &[&str]) -> Option<Vec<f64>> {
    let [batch, heads, kv_heads, queries, keys, d_k, d_v] = numbers(words);
    let (kind, repetitions) = (words[7], words[8].parse().expect("a number"));
    if !ours && batch * heads * queries * keys * size_of::<f32>() > SCORE_BYTES {
        return None;
    }
    let plain = Device::flex();
    let device = if both {
        plain.clone().autodiff()
    } else {
        plain.clone()
    };
    let random =
        |shape: [usize; 4]| Tensor::<4>::random(shape, Distribution::Normal(0.0, 1.0), &plain);
    let query = random([batch, heads, queries, d_k]);
    let key = random([batch, kv_heads, keys, d_k]);
    let value = random([batch, kv_heads, keys, d_v]);
    let weight = random([batch, heads, queries, d_v]);
    let leaf = |tensor: &Tensor<4>| match both {
        true => Tensor::from_inner(tensor.clone()).require_grad(),
        false => tensor.clone(),
    };

    let window = kind
        .strip_prefix("window:")
        .map(|keys| keys.parse::<usize>().expect("a window"));
    let padding = (kind == "padding").then(|| {
        let column = Tensor::<1, burn::tensor::Int>::arange(0..keys as i64, &device);
        column
            .greater_equal_elem((keys - keys / 4) as i64)
            .reshape([1, keys])
            .expand([batch, keys])
    });
    let layer = ScaledDotProductAttentionConfig::new()
        .with_causal(kind == "causal" || window.is_some())
        .with_window(window.map(|keys| Window::before(keys - 1)))
        .init(&device);
    // What Burn's own attention takes for the same mask.
    let everywhere = [batch, heads, queries, keys];
    let mask = match (&window, &padding) {
        (Some(window), _) => {
            let row = Tensor::<1, burn::tensor::Int>::arange(0..queries as i64, &device);
            let column = Tensor::<1, burn::tensor::Int>::arange(0..keys as i64, &device);
            let distance = row.reshape([queries, 1]) - column.reshape([1, keys]);
            let outside = distance.clone().lower_elem(0);
            let outside = outside.bool_or(distance.greater_equal_elem(*window as i64));
            Some(outside.reshape([1, 1, queries, keys]).expand(everywhere))
        }
        (_, Some(padding)) => Some(
            padding
                .clone()
                .reshape([batch, 1, 1, keys])
                .expand(everywhere),
        ),
        _ => None,
    };

    let run = |query: Tensor<4>, key: Tensor<4>, value: Tensor<4>| {
        if ours {
            let mut input = AttentionInput::new(query, key, value);
            if let Some(padding) = &padding {
                input = input.mask(Mask::blocked_keys(padding.clone()));
            }
            return layer.forward(input);
        }
        let shared = |tensor: Tensor<4>| match heads / kv_heads {
            1 => tensor,
            group => {
                let [_, _, length, width] = tensor.dims();
                tensor
                    .reshape([batch, kv_heads, 1, length, width])
                    .expand([batch, kv_heads, group, length, width])
                    .reshape([batch, heads, length, width])
            }
        };
        let options = AttentionModuleOptions {
            is_causal: kind == "causal",
            ..Default::default()
        };
        attention(
            query,
            shared(key),
            shared(value),
            mask.clone(),
            None,
            options,
        )
    };
    let timed = |_| {
        let (query, key, value) = (leaf(&query), leaf(&key), leaf(&value));
        let weight = both.then(|| Tensor::from_inner(weight.clone()));
        let start = Instant::now();
        let context = run(query.clone(), key.clone(), value.clone());
        if let Some(weight) = weight {
            // The gradient at the context is the weight.
            let gradients = (context * weight).sum().backward();
            for leaf in [&query, &key, &value] {
                assert!(leaf.grad(&gradients).is_some());
            }
        }
        start.elapsed().as_secs_f64()
    };
    Some((0..repetitions).map(timed).collect())
}

fn module(ours: bool, words: &[&str]) -> Vec<f64> {
    let [batch, length, d_model, heads, repetitions] = numbers(words);
    let device = Device::flex().autodiff();
    let shape = [batch, length, d_model];
    let x = Tensor::<3>::random(shape, Distribution::Normal(0.0, 1.0), &device);
    let weight = Tensor::<3>::random(shape, Distribution::Normal(0.0, 1.0), &device);
    let layer = MultiHeadAttentionConfig::new(d_model, heads).init(&device);
    let burns = nn::MultiHeadAttentionConfig::new(d_model, heads)
        .with_dropout(0.0)
        .init(&device);
    let timed = |_| {
        let x = x.clone().detach().require_grad();
        let start = Instant::now();
        let output = match ours {
            true => layer.forward(MhaInput::self_attn(x.clone())),
            false => burns.forward(nn::MhaInput::self_attn(x.clone())).context,
        };
        let gradients = (output * weight.clone()).sum().backward();
        assert!(x.grad(&gradients).is_some());
        start.elapsed().as_secs_f64()
    };
    (0..repetitions).map(timed).collect()
}
