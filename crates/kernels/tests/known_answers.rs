//! Small inputs whose results were computed independently in f64.

mod common;

use common::{Answer, Case};

fn case() -> Case {
    Case {
        batch: 1,
        heads: 1,
        kv_heads: 1,
        queries: 2,
        keys: 3,
        d_k: 2,
        d_v: 2,
        q: vec![1.0, 0.0, 0.5, -1.0],
        k: vec![1.0, 1.0, 0.0, 2.0, -1.0, 0.5],
        v: vec![1.0, 0.0, 0.0, 1.0, 2.0, -1.0],
        // The loss is the sum of the first output of each row.
        grad_out: vec![1.0, 0.0, 1.0, 0.0],
        ..Case::default()
    }
}

fn assert_near(found: &[f64], right: &[f64]) {
    assert_eq!(found.len(), right.len());
    for (x, y) in found.iter().zip(right) {
        assert!((x - y).abs() < 1e-8, "{found:?} and {right:?}");
    }
}

fn answer(change: impl FnOnce(&mut Case)) -> Answer {
    let mut case = case();
    change(&mut case);
    let answer = case.solve::<f64>();
    let single = case.solve::<f32>();
    for ((_, x), (_, y)) in answer.parts().into_iter().zip(single.parts()) {
        assert!(x.iter().zip(y).all(|(x, y)| x == y || (x - y).abs() < 1e-6));
    }
    answer
}

#[test]
fn outputs_of_each_option() {
    let out = |change: fn(&mut Case)| answer(change).out;
    assert_near(
        &out(|_| {}),
        &[0.85603384, 0.14396616, 1.17377398, -0.17377398],
    );
    assert_near(
        &out(|c| c.scale = Some(1.0)),
        &[0.84530210, 0.15469790, 1.20954731, -0.20954731],
    );
    assert_near(
        &out(|c| *c = c.clone().causal()),
        &[0.66976155, 0.33023845, 1.17377398, -0.17377398],
    );
    assert_near(
        &out(|c| c.ranges = Some((vec![0, 0], vec![1, 2], vec![0, 1]))),
        &[1.0, 0.0, 0.74281668, 0.25718332],
    );
    assert_near(
        &out(|c| c.blocked = Some(([1, 1, 2, 3], vec![1, 1, 1, 0, 0, 1]))),
        &[0.0, 0.0, 0.74281668, 0.25718332],
    );
    assert_near(
        &out(|c| c.softcap = Some(1.0)),
        &[0.86517209, 0.13482791, 1.07955602, -0.07955602],
    );
    assert_near(
        &out(|c| c.sink = Some(vec![0.0])),
        &[0.66669540, 0.11212358, 0.69239827, -0.10250764],
    );
    assert_near(
        &out(|c| c.bias = Some(([1, 1, 2, 3], vec![0.0, 1.0, -1.0, 2.0, 0.0, 0.0]))),
        &[0.48518632, 0.51481368, 1.04218815, -0.04218815],
    );
}

#[test]
fn gradients_with_and_without_the_scale() {
    let found = answer(|case| case.bias = Some(([1, 1, 2, 3], vec![0.0; 6])));
    assert_near(
        &found.dbias,
        &[
            0.08292096,
            -0.24310968,
            0.16018872,
            -0.08483336,
            -0.19839354,
            0.28322690,
        ],
    );
    assert_near(
        &found.dq,
        &[-0.05463655, -0.22853977, -0.26025790, -0.24042125],
    );
    assert_near(
        &found.dk,
        &[
            0.02864085,
            0.05998624,
            -0.24204721,
            0.14028542,
            0.21340636,
            -0.20027166,
        ],
    );
    assert_near(
        &found.dv,
        &[1.06415751, 0.0, 0.45301734, 0.0, 0.48282515, 0.0],
    );
    let found = answer(|case| case.scale = Some(1.0));
    assert_near(
        &found.dq,
        &[-0.00104674, -0.25884855, -0.37656220, -0.27852342],
    );
    assert_near(
        &found.dk,
        &[
            0.04564740,
            0.11452795,
            -0.28062264,
            0.14750629,
            0.23497524,
            -0.26203425,
        ],
    );
    assert_near(
        &found.dv,
        &[1.21179034, 0.0, 0.36668012, 0.0, 0.42152953, 0.0],
    );
}

#[test]
fn a_saturated_softmax_keeps_its_small_gradient() {
    let dq = |x: f64, scale: f64| {
        let mut case = case();
        (case.queries, case.keys, case.d_v) = (1, 2, 1);
        (case.q, case.k) = (vec![x, 0.0], vec![1.0, 0.0, 0.0, 1.0]);
        (case.v, case.grad_out, case.scale) = (vec![1.0, 0.0], vec![1.0], Some(scale));
        case.solve::<f64>().dq[0]
    };
    let scaled = std::f64::consts::FRAC_1_SQRT_2;
    assert!((dq(20.0, scaled) / 5.100737e-7 - 1.0).abs() < 1e-6);
    assert!((dq(20.0, 1.0) / 2.061154e-9 - 1.0).abs() < 1e-6);
    assert!((dq(1.0, scaled) - 0.15639860).abs() < 1e-8);
    assert!((dq(1.0, 1.0) - 0.19661193).abs() < 1e-8);
}

#[test]
fn lengths_and_windows_of_equal_scores_average_their_values() {
    let mut case = case();
    (case.batch, case.queries, case.keys, case.d_k, case.d_v) = (4, 5, 5, 1, 1);
    (case.q, case.k, case.grad_out) = (vec![0.0; 20], vec![0.0; 20], vec![10.0; 20]);
    case.v = (0..20).map(|i| f64::from(i % 5 + 1)).collect();
    let end = [5, 3, 1, 0].into_iter().flat_map(|n| [n; 5]).collect();
    case.ranges = Some((vec![0; 20], end, vec![0; 20]));
    let answer = case.solve::<f64>();
    let right: Vec<f64> = [3.0, 2.0, 1.0, 0.0]
        .into_iter()
        .flat_map(|x| [x; 5])
        .collect();
    assert_near(&answer.out, &right);
    assert!(answer.dq.iter().all(|x| x.is_finite()));

    (case.batch, case.queries, case.keys) = (1, 4, 4);
    (case.q, case.k, case.grad_out) = (vec![0.0; 4], vec![0.0; 4], vec![1.0; 4]);
    case.v = vec![1.0, 2.0, 4.0, 8.0];
    case.ranges = Some((vec![0, 0, 1, 2], vec![1, 2, 3, 4], vec![0, 1, 2, 3]));
    assert_near(&case.solve::<f64>().out, &[1.0, 1.5, 3.0, 6.0]);
}

#[test]
fn an_infinite_bias_blocks_after_the_softcap() {
    let mut case = case();
    (case.queries, case.keys, case.d_v) = (1, 2, 1);
    (case.q, case.k, case.v) = (vec![0.0; 2], vec![0.0; 4], vec![1.0, 0.0]);
    case.grad_out = vec![1.0];
    case.softcap = Some(1.0);
    case.bias = Some(([1, 1, 1, 2], vec![0.0, f64::NEG_INFINITY]));
    assert_near(&case.solve::<f64>().out, &[1.0]);
}
