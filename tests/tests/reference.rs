//! The reference itself: its gradients against finite differences, and against numbers worked out
//! by hand.

use layers::{Alignment, Scale, Window};
use tests::reference::{Broadcast, Documents, Problem, Sink, Sizes, Upstream, backward, forward};
use tests::{Random, Tolerance, assert_close};

/// A problem with every option on, at sizes that differ, so that a mixed-up axis shows.
fn with_every_option() -> Problem {
    let mut random = Random::new(1);
    let sizes = Sizes {
        batch: 2,
        heads: 6,
        kv_heads: 3,
        query_len: 5,
        key_len: 7,
        d_k: 2,
        d_v: 4,
    };
    let mut problem = Problem::random(sizes, &mut random);
    problem.scale = Scale::Learned { initial: 0.5 };
    problem.learned_factor = 1.3;
    problem.causal = true;
    problem.alignment = Alignment::Offset(1);
    problem.window = Some(Window::before(3));
    problem.softcap = Some(1.7);
    problem.sink = Sink::Learned(random.normals(6));
    problem.alibi = true;
    problem.bias = Some(Broadcast {
        shape: [2, 1, 5, 7],
        values: random.normals(70),
    });
    problem.blocked = Some(Broadcast {
        shape: [1, 6, 1, 7],
        values: (0..42).map(|_| random.chance(0.2)).collect(),
    });
    problem.key_lengths = Some(vec![7, 4]);
    problem.query_lengths = Some(vec![4, 5]);
    problem.segments = Some(Documents {
        queries: vec![vec![0, 0, 0, 1, 1], vec![0; 5]],
        keys: vec![vec![0, 0, 1, 1, 1, 1, 1], vec![0; 7]],
    });
    let dropout = (0..2 * 6 * 5 * 7).map(|_| f64::from(random.chance(0.7)) / 0.7);
    problem.dropout = Some(dropout.collect());
    problem
}

fn upstream(problem: &Problem) -> Upstream {
    let mut random = Random::new(2);
    let sizes = problem.sizes;
    Upstream {
        context: random.normals(sizes.context().iter().product()),
        logsumexp: Some(random.normals(sizes.rows().iter().product())),
        weights: Some(random.normals(sizes.scores().iter().product())),
    }
}

fn loss(problem: &Problem, upstream: &Upstream) -> f64 {
    let result = forward(problem);
    let product = |numbers: &[f64], gradient: &[f64]| -> f64 {
        let pairs = numbers.iter().zip(gradient);
        pairs
            .filter(|(number, _)| number.is_finite())
            .map(|(number, gradient)| number * gradient)
            .sum()
    };
    product(&result.context, &upstream.context)
        + product(&result.logsumexp, upstream.logsumexp.as_ref().unwrap())
        + product(&result.weights, upstream.weights.as_ref().unwrap())
}

/// The derivatives of the loss by the numbers that `part` picks.
fn differences(problem: &Problem, part: fn(&mut Problem) -> &mut [f64]) -> Vec<f64> {
    const STEP: f64 = 1e-5;
    let upstream = upstream(problem);
    let mut problem = problem.clone();
    (0..part(&mut problem).len())
        .map(|index| {
            let number = part(&mut problem)[index];
            let mut at = |number| {
                part(&mut problem)[index] = number;
                loss(&problem, &upstream)
            };
            let slope = (at(number + STEP) - at(number - STEP)) / (2.0 * STEP);
            at(number);
            slope
        })
        .collect()
}

#[test]
fn every_gradient_is_that_of_finite_differences() {
    let mut problems = vec![with_every_option()];
    let mut plain = with_every_option();
    plain.causal = false;
    plain.window = None;
    plain.alibi = false;
    plain.scale = Scale::LogLength { reference: 5 };
    problems.push(plain);
    for problem in problems {
        let found = backward(&problem, &upstream(&problem));
        let check = |name: &str, found: &[f64], part| {
            let expected = differences(&problem, part);
            let tolerance = Tolerance::new(1e-8, 1e-8);
            assert_close(name, found, &expected, &[found.len()], tolerance);
            assert!(
                found.iter().any(|number| number.abs() > 0.01),
                "{name} is zero"
            );
        };
        check("query", &found.query, |problem| &mut problem.query);
        check("key", &found.key, |problem| &mut problem.key);
        check("value", &found.value, |problem| &mut problem.value);
        check("bias", found.bias.as_ref().unwrap(), |problem| {
            &mut problem.bias.as_mut().unwrap().values
        });
        check(
            "sink",
            found.sink.as_ref().unwrap(),
            |problem| match &mut problem.sink {
                Sink::Learned(logits) => logits,
                Sink::None | Sink::Quiet => unreachable!("the sink is learned"),
            },
        );
        if let Some(factor) = found.learned_factor {
            check("learned factor", &[factor], |problem| {
                std::slice::from_mut(&mut problem.learned_factor)
            });
        }
    }
}

#[test]
fn the_small_example_comes_out_as_worked_by_hand() {
    let sizes = Sizes {
        d_v: 2,
        ..Sizes::new(1, 1, 2, 3, 2)
    };
    let problem = Problem::new(
        sizes,
        vec![1.0, 0.0, 0.5, -1.0],
        vec![1.0, 1.0, 0.0, 2.0, -1.0, 0.5],
        vec![1.0, 0.0, 0.0, 1.0, 2.0, -1.0],
    );
    let result = forward(&problem);
    let tolerance = Tolerance::absolute(5e-9);
    assert_close(
        "weights",
        &result.weights,
        &[
            0.57597535, 0.28399541, 0.14002925, 0.48818217, 0.16902193, 0.34279590,
        ],
        &[2, 3],
        tolerance,
    );
    assert_close(
        "context",
        &result.context,
        &[0.85603384, 0.14396616, 1.17377398, -0.17377398],
        &[2, 2],
        tolerance,
    );
    let upstream = Upstream {
        context: vec![1.0, 0.0, 1.0, 0.0],
        ..Upstream::default()
    };
    let found = backward(&problem, &upstream);
    assert_close(
        "query",
        &found.query,
        &[-0.05463655, -0.22853977, -0.26025790, -0.24042125],
        &[2, 2],
        tolerance,
    );
    assert_close(
        "key",
        &found.key,
        &[
            0.02864085,
            0.05998624,
            -0.24204721,
            0.14028542,
            0.21340636,
            -0.20027166,
        ],
        &[3, 2],
        tolerance,
    );
}
