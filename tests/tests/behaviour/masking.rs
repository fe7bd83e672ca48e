//! What a query does not see reaches neither its output nor its gradient.

use burn::tensor::DType;
use layers::{Alignment, Scale, Window};
use tests::reference::{Broadcast, Documents, Problem, Sink, Sizes};
use tests::{
    Random, Tolerance, assert_bits, assert_close, attend, attend_and_differentiate, on_each_backend,
};

use crate::context_loss;

const SIZES: Sizes = Sizes {
    batch: 2,
    heads: 4,
    kv_heads: 2,
    query_len: 9,
    key_len: 9,
    d_k: 5,
    d_v: 3,
};

/// Replaces the keys and values `from..` of a sample.
fn replace_keys(
    problem: &mut Problem,
    sample: usize,
    from: usize,
    mut number: impl FnMut() -> f64,
) {
    let sizes = problem.sizes;
    for head in 0..sizes.kv_heads {
        for key in from..sizes.key_len {
            let row = (sample * sizes.kv_heads + head) * sizes.key_len + key;
            problem.key[row * sizes.d_k..][..sizes.d_k].fill_with(&mut number);
            problem.value[row * sizes.d_v..][..sizes.d_v].fill_with(&mut number);
        }
    }
}

/// The part of a list `[batch, heads, query_len, width]` that belongs to the queries before one.
fn before(list: &[f64], query: usize, width: usize) -> Vec<f64> {
    list.chunks(SIZES.query_len * width)
        .flat_map(|head| &head[..query * width])
        .copied()
        .collect()
}

#[test]
fn a_later_key_changes_no_earlier_output_or_query_gradient_by_a_bit() {
    on_each_backend(|device| {
        for seed in 0..4 {
            let mut random = Random::new(seed);
            let mut problem = Problem::random(SIZES, &mut random);
            problem.causal = true;
            problem.window = (seed % 2 == 1).then(|| Window::before(3));
            problem.softcap = (seed > 1).then_some(2.0);
            let upstream = context_loss(&problem, &mut random);
            let (answer, gradients) =
                attend_and_differentiate(&problem, &upstream, DType::F32, device);
            for token in [1, 4, 8] {
                let mut changed = problem.clone();
                for sample in 0..SIZES.batch {
                    replace_keys(&mut changed, sample, token, || 30.0 * random.normal());
                }
                let (other, other_gradients) =
                    attend_and_differentiate(&changed, &upstream, DType::F32, device);
                let earlier = |list: &[f64], width| before(list, token, width);
                assert_bits(
                    "context",
                    &earlier(&other.context, SIZES.d_v),
                    &earlier(&answer.context, SIZES.d_v),
                );
                assert_bits(
                    "logsumexp",
                    &earlier(&other.logsumexp, 1),
                    &earlier(&answer.logsumexp, 1),
                );
                assert_bits(
                    "query gradient",
                    &earlier(&other_gradients.query, SIZES.d_k),
                    &earlier(&gradients.query, SIZES.d_k),
                );
                assert_ne!(other.context, answer.context);
            }
        }
    });
}

/// Problems whose sample 1 does not see the keys from 4 on, each for another reason.
fn with_hidden_keys() -> Vec<(&'static str, Problem)> {
    let mut random = Random::new(5);
    let plain = Problem::random(SIZES, &mut random);
    let mut lengths = plain.clone();
    lengths.key_lengths = Some(vec![9, 4]);
    let mut causal = lengths.clone();
    causal.causal = true;
    causal.alignment = Alignment::ValidBottomRight;
    let mut both = lengths.clone();
    both.key_lengths = Some(vec![6, 4]);
    both.sink = Sink::Learned(random.normals(4));
    both.softcap = Some(1.5);
    both.bias = Some(Broadcast {
        shape: [1, 4, 9, 9],
        values: random.normals(4 * 81),
    });
    both.alibi = true;
    let mut segments = plain;
    segments.segments = Some(Documents {
        queries: vec![vec![0; 9]; 2],
        keys: vec![vec![0; 9], vec![0, 0, 0, 0, 7, 7, 7, 7, 7]],
    });
    vec![
        ("key lengths", lengths),
        ("key lengths and causal", causal),
        ("key lengths with every option", both),
        ("segments that no query has", segments),
    ]
}

#[test]
fn what_stands_past_a_samples_keys_is_never_read_be_it_nan() {
    on_each_backend(|device| {
        for (name, problem) in with_hidden_keys() {
            let upstream = context_loss(&problem, &mut Random::new(6));
            let clean = attend_and_differentiate(&problem, &upstream, DType::F32, device);
            for garbage in [f64::NAN, f64::INFINITY, 1e30] {
                let mut poisoned = problem.clone();
                replace_keys(&mut poisoned, 1, 4, || garbage);
                let found = attend_and_differentiate(&poisoned, &upstream, DType::F32, device);
                assert_bits(name, &found.0.context, &clean.0.context);
                assert_bits(name, &found.0.weights, &clean.0.weights);
                assert_bits(name, &found.0.logsumexp, &clean.0.logsumexp);
                assert_bits(name, &found.1.query, &clean.1.query);
                assert_bits(name, &found.1.key, &clean.1.key);
                assert_bits(name, &found.1.value, &clean.1.value);
                if let (Some(found), Some(clean)) = (&found.1.bias, &clean.1.bias) {
                    assert_bits(name, found, clean);
                }
                if let (Some(found), Some(clean)) = (&found.1.sink, &clean.1.sink) {
                    assert_bits(name, found, clean);
                }
                let plain = attend(&poisoned, DType::F32, device);
                assert_bits(name, &plain.context, &clean.0.context);
            }
        }
    });
}

#[test]
fn padded_queries_give_0_and_pass_no_gradient_be_they_nan() {
    on_each_backend(|device| {
        let mut problem = Problem::random(SIZES, &mut Random::new(7));
        problem.query_lengths = Some(vec![9, 4]);
        let upstream = context_loss(&problem, &mut Random::new(8));
        let clean = attend_and_differentiate(&problem, &upstream, DType::F32, device);
        let mut poisoned = problem;
        for head in 0..SIZES.heads {
            let row = (SIZES.heads + head) * SIZES.query_len;
            let width = SIZES.d_k;
            poisoned.query[(row + 4) * width..(row + SIZES.query_len) * width].fill(f64::NAN);
        }
        let found = attend_and_differentiate(&poisoned, &upstream, DType::F32, device);
        assert_bits("context", &found.0.context, &clean.0.context);
        assert_bits("query gradient", &found.1.query, &clean.1.query);
        assert_bits("key gradient", &found.1.key, &clean.1.key);
        assert_bits("value gradient", &found.1.value, &clean.1.value);
        let last = found.0.context.len() - SIZES.d_v;
        assert_eq!(found.0.context[last..], [0.0; 3]);
        assert_eq!(*found.0.logsumexp.last().unwrap(), f64::NEG_INFINITY);
    });
}

#[test]
fn a_blocked_value_of_1000_has_weight_0_and_gradient_0() {
    on_each_backend(|device| {
        let mut random = Random::new(9);
        let mut problem = Problem::random(SIZES, &mut random);
        let blocked = [1, 5];
        problem.blocked = Some(Broadcast {
            shape: [1, 1, 1, 9],
            values: (0..9).map(|key| blocked.contains(&key)).collect(),
        });
        let upstream = context_loss(&problem, &mut random);
        let clean = attend_and_differentiate(&problem, &upstream, DType::F32, device);
        let mut poisoned = problem;
        for (index, number) in poisoned.value.iter_mut().enumerate() {
            if blocked.contains(&(index / SIZES.d_v % SIZES.key_len)) {
                *number = 1000.0;
            }
        }
        let found = attend_and_differentiate(&poisoned, &upstream, DType::F32, device);
        assert_bits("context", &found.0.context, &clean.0.context);
        assert_bits("query gradient", &found.1.query, &clean.1.query);
        assert_bits("key gradient", &found.1.key, &clean.1.key);
        for (index, gradient) in found.1.value.iter().enumerate() {
            if blocked.contains(&(index / SIZES.d_v % SIZES.key_len)) {
                assert_eq!(*gradient, 0.0);
            }
        }
        for (index, weight) in found.0.weights.iter().enumerate() {
            if blocked.contains(&(index % SIZES.key_len)) {
                assert_eq!(*weight, 0.0);
            }
        }
    });
}

#[test]
fn padding_by_lengths_by_mask_and_by_bias_are_one() {
    on_each_backend(|device| {
        let mut random = Random::new(10);
        let mut by_lengths = Problem::random(SIZES, &mut random);
        let by_nothing = by_lengths.clone();
        by_lengths.key_lengths = Some(vec![6, 3]);
        let upstream = context_loss(&by_lengths, &mut random);
        let valid = |index: usize| index % 9 < [6, 3][index / 9];
        let mut by_mask = by_nothing.clone();
        by_mask.blocked = Some(Broadcast {
            shape: [2, 1, 1, 9],
            values: (0..18).map(|index| !valid(index)).collect(),
        });
        let mut by_bias = by_nothing;
        let infinite = |valid| if valid { 0.0 } else { f64::NEG_INFINITY };
        by_bias.bias = Some(Broadcast {
            shape: [2, 1, 1, 9],
            values: (0..18).map(|index| infinite(valid(index))).collect(),
        });
        let run = |problem| attend_and_differentiate(problem, &upstream, DType::F32, device);
        let (answer, gradients) = run(&by_lengths);
        for (name, problem) in [("mask", &by_mask), ("bias", &by_bias)] {
            let (other, other_gradients) = run(problem);
            let check = |found: &[f64], expected: &[f64]| {
                let tolerance = Tolerance::absolute(1e-6);
                assert_close(name, found, expected, &[found.len()], tolerance);
            };
            check(&other.context, &answer.context);
            check(&other.logsumexp, &answer.logsumexp);
            check(&other_gradients.query, &gradients.query);
            check(&other_gradients.key, &gradients.key);
            check(&other_gradients.value, &gradients.value);
        }
    });
}

#[test]
fn a_row_that_sees_nothing_is_empty_with_and_without_a_sink() {
    on_each_backend(|device| {
        let mut problem = Problem::random(Sizes::new(1, 2, 3, 4, 5), &mut Random::new(11));
        problem.scale = Scale::LogLength { reference: 4 };
        problem.blocked = Some(Broadcast {
            shape: [1, 1, 3, 1],
            values: vec![false, true, false],
        });
        for (sink, logsumexp) in [
            (Sink::None, [f64::NEG_INFINITY; 2]),
            (Sink::Quiet, [0.0; 2]),
            (Sink::Learned(vec![0.5, -2.0]), [0.5, -2.0]),
        ] {
            problem.sink = sink;
            let answer = attend(&problem, DType::F32, device);
            for (head, logsumexp) in logsumexp.iter().enumerate() {
                let row = head * 3 + 1;
                assert_eq!(answer.context[row * 5..][..5], [0.0; 5]);
                assert_eq!(answer.weights[row * 4..][..4], [0.0; 4]);
                assert_eq!(answer.logsumexp[row], *logsumexp);
            }
        }
    });
}

#[test]
fn documents_in_one_row_are_each_attended_to_alone() {
    on_each_backend(|device| {
        let mut random = Random::new(12);
        let lengths = [3, 5, 1];
        let whole = Sizes::new(1, 2, 9, 9, 4);
        let mut packed = Problem::random(whole, &mut random);
        packed.causal = true;
        let ids: Vec<u32> = (0u32..)
            .zip(lengths)
            .flat_map(|(id, length)| vec![id; length])
            .collect();
        packed.segments = Some(Documents {
            queries: vec![ids.clone()],
            keys: vec![ids],
        });
        let answer = attend(&packed, DType::F32, device);
        let mut start = 0;
        for length in lengths {
            let part = |list: &[f64]| -> Vec<f64> {
                let heads = list.chunks(9 * 4);
                heads
                    .flat_map(|head| &head[start * 4..(start + length) * 4])
                    .copied()
                    .collect()
            };
            let mut alone = Problem::new(
                Sizes::new(1, 2, length, length, 4),
                part(&packed.query),
                part(&packed.key),
                part(&packed.value),
            );
            alone.causal = true;
            let expected = attend(&alone, DType::F32, device).context;
            let found = part(&answer.context);
            let tolerance = Tolerance::absolute(1e-6);
            assert_close("document", &found, &expected, &[2, length, 4], tolerance);
            start += length;
        }
    });
}
