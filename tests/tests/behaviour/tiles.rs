//! Sizes that cross the borders of tiles, and those that just do not.

use burn::tensor::DType;
use layers::{Alignment, Window};
use tests::reference::{Broadcast, Forward, Gradients, Problem, Sink, Sizes, Upstream};
use tests::reference::{backward, forward};
use tests::{Random, Tolerance, assert_close, attend, attend_and_differentiate, on_each_backend};

use crate::context_loss;

/// What outputs may be off by for inputs of unit variance, and what gradients.
const OUTPUT: Tolerance = Tolerance::absolute(2e-6);
const GRADIENT: Tolerance = Tolerance::absolute(2e-5);

/// A problem with what the reference says about it, computed once for all backends.
struct Answered {
    problem: Problem,
    upstream: Upstream,
    forward: Forward,
    gradients: Gradients,
}

fn answered(problem: Problem, random: &mut Random) -> Answered {
    let upstream = context_loss(&problem, random);
    Answered {
        forward: forward(&problem),
        gradients: backward(&problem, &upstream),
        problem,
        upstream,
    }
}

fn check(answered: &[Answered]) {
    on_each_backend(|device| {
        for case in answered {
            let sizes = case.problem.sizes;
            println!("{sizes:?}");
            let (answer, gradients) =
                attend_and_differentiate(&case.problem, &case.upstream, DType::F32, device);
            let expected = &case.forward;
            let context = sizes.context();
            assert_close(
                "context",
                &answer.context,
                &expected.context,
                &context,
                OUTPUT,
            );
            let rows = sizes.rows();
            let sums = (&answer.logsumexp, &expected.logsumexp);
            assert_close("logsumexp", sums.0, sums.1, &rows, OUTPUT);
            let scores = sizes.scores();
            assert_close(
                "weights",
                &answer.weights,
                &expected.weights,
                &scores,
                OUTPUT,
            );
            let expected = &case.gradients;
            for (name, found, expected, shape) in [
                ("query", &gradients.query, &expected.query, sizes.query()),
                ("key", &gradients.key, &expected.key, sizes.key()),
                ("value", &gradients.value, &expected.value, sizes.value()),
            ] {
                assert_close(name, found, expected, &shape, GRADIENT);
            }
            if let (Some(found), Some(expected)) = (&gradients.bias, &expected.bias) {
                let shape = case.problem.bias.as_ref().expect("its gradient").shape;
                assert_close("bias", found, expected, &shape, GRADIENT);
            }
            if let (Some(found), Some(expected)) = (&gradients.sink, &expected.sink) {
                // A sum over all queries of all samples.
                let tolerance = Tolerance::new(2e-5, 1e-5);
                assert_close("sink", found, expected, &[sizes.heads], tolerance);
            }
        }
    });
}

#[test]
fn without_options() {
    let mut random = Random::new(1);
    let cases: Vec<_> = [
        (1, 1),
        (31, 33),
        (64, 64),
        (65, 129),
        (256, 256),
        (255, 257),
        (257, 521),
        (3, 1031),
        (1031, 3),
    ]
    .into_iter()
    .map(|(queries, keys)| {
        let sizes = Sizes {
            d_v: 5,
            ..Sizes::new(1, 1, queries, keys, 7)
        };
        answered(Problem::random(sizes, &mut random), &mut random)
    })
    .collect();
    check(&cases);
}

#[test]
fn causal_windows_and_lengths() {
    let mut random = Random::new(2);
    let mut cases = Vec::new();
    for (queries, keys) in [(257, 257), (129, 521), (521, 257)] {
        for alignment in [
            Alignment::BottomRight,
            Alignment::TopLeft,
            Alignment::Offset(-70),
        ] {
            let mut problem = Problem::random(Sizes::new(1, 1, queries, keys, 3), &mut random);
            problem.causal = true;
            problem.alignment = alignment;
            problem.window = random.maybe(0.5, |random| Window::before(random.below(300)));
            cases.push(answered(problem, &mut random));
        }
    }
    let mut problem = Problem::random(Sizes::new(3, 1, 130, 260, 3), &mut random);
    problem.key_lengths = Some(vec![0, 65, 257]);
    problem.query_lengths = Some(vec![130, 64, 129]);
    problem.causal = true;
    problem.alignment = Alignment::ValidBottomRight;
    cases.push(answered(problem, &mut random));
    check(&cases);
}

#[test]
fn bias_mask_sink_and_softcap() {
    let mut random = Random::new(3);
    let mut cases = Vec::new();
    for shape in [[1, 2, 259, 263], [1, 1, 259, 1], [1, 2, 1, 263]] {
        let sizes = Sizes {
            kv_heads: 1,
            ..Sizes::new(1, 2, 259, 263, 3)
        };
        let mut problem = Problem::random(sizes, &mut random);
        problem.bias = Some(Broadcast {
            shape,
            values: random.normals(shape.iter().product()),
        });
        problem.blocked = Some(Broadcast {
            shape: [1, 1, 259, 263],
            values: (0..259 * 263).map(|_| random.chance(0.3)).collect(),
        });
        problem.sink = Sink::Learned(random.normals(2));
        problem.softcap = Some(2.5);
        problem.alibi = true;
        cases.push(answered(problem, &mut random));
    }
    check(&cases);
}

#[test]
fn many_heads_are_each_computed_as_if_alone() {
    on_each_backend(|device| {
        let sizes = Sizes {
            kv_heads: 32,
            ..Sizes::new(8, 128, 33, 67, 4)
        };
        let problem = Problem::random(sizes, &mut Random::new(4));
        let together = attend(&problem, DType::F32, device).context;
        for (sample, head) in [(0, 0), (3, 5), (7, 127)] {
            let part = |list: &[f64], heads: usize, head: usize| {
                let length = list.len() / (8 * heads);
                list[(sample * heads + head) * length..][..length].to_vec()
            };
            let alone = Problem::new(
                Sizes::new(1, 1, 33, 67, 4),
                part(&problem.query, 128, head),
                part(&problem.key, 32, head / 4),
                part(&problem.value, 32, head / 4),
            );
            let expected = forward(&alone).context;
            let found = part(&together, 128, head);
            assert_close("head", &found, &expected, &[33, 4], OUTPUT);
        }
    });
}
