//! What must hold whatever the numbers are.

mod common;

use common::{Answer, Case, Random, cast};
use kernels::{
    Dropout, Error, Gradients, Isa, KeptWeights, KeyRanges, Problem, Saved, View, ViewMut,
    backward, forward, forward_keeping,
};

fn assert_finite(answer: &Answer) {
    for (name, part) in answer.parts() {
        let bad = part.iter().any(|x| x.is_nan() || *x == f64::INFINITY);
        assert!(!bad, "{name} is not finite");
    }
}

/// Two samples of 70 queries and some keys, of which 50 and 31 queries and `seen` and 0 keys count.
fn padded(keys: usize, seen: u32) -> Case {
    let mut case = Case::new([2, 2, 1, 70, keys, 16, 24], &mut Random(1));
    let (mut first, mut end, mut position) = (vec![], vec![], vec![]);
    for (rows, seen) in [(50, seen), (31, 0)] {
        for i in 0..70 {
            first.push(0);
            end.push(if i < rows { seen } else { 0 });
            position.push(i);
        }
    }
    case.ranges = Some((first, end, position));
    case
}

#[test]
fn what_lies_past_the_lengths_is_never_used() {
    // Few keys, whose weights are kept, and more.
    for (all, seen) in [(60, 45), (90, 65)] {
        for option in 0..4 {
            past_lengths(all, seen, option);
        }
    }
}

fn past_lengths(all: usize, seen: u32, option: usize) {
    let mut clean = padded(all, seen);
    match option {
        1 => clean.softcap = Some(3.0),
        2 => clean.sink = Some(vec![0.5, -0.5]),
        3 => {
            clean.dropout = Some(Dropout {
                probability: 0.25,
                seed: [1, 2],
            })
        }
        _ => {}
    }
    let mut poisoned = clean.clone();
    for sample in 0..2 {
        let (rows, keys) = [(50, seen), (31, 0)][sample];
        for head in 0..2 {
            for i in 0..70 {
                if i >= rows || keys == 0 {
                    let row = (sample * 2 + head) * 70 + i;
                    poisoned.q[row * 16..(row + 1) * 16].fill(f64::NAN);
                    poisoned.grad_out[row * 24..(row + 1) * 24].fill(f64::NAN);
                }
            }
        }
        for j in keys as usize..all {
            let row = sample * all + j;
            poisoned.k[row * 16..(row + 1) * 16].fill(f64::NAN);
            poisoned.v[row * 24..(row + 1) * 24].fill(f64::INFINITY);
        }
    }
    let (clean, poisoned) = (clean.solve::<f32>(), poisoned.solve::<f32>());
    assert_finite(&poisoned);
    assert!(clean == poisoned);
}

#[test]
fn a_blocked_key_counts_for_nothing_whatever_finite_value_it_holds() {
    let mut clean = Case::new([1, 2, 2, 33, 40, 16, 16], &mut Random(2));
    let mut blocked = vec![0; 2 * 33 * 40];
    for (at, blocked) in blocked.iter_mut().enumerate() {
        *blocked = u8::from(at % 40 % 7 == 3);
    }
    let mut huge = clean.clone();
    for (j, (k, v)) in huge.k.chunks_mut(16).zip(huge.v.chunks_mut(16)).enumerate() {
        if j % 40 % 7 == 3 {
            k.fill(3e38);
            v.fill(-3e38);
        }
    }
    for bias in [false, true] {
        for case in [&mut clean, &mut huge] {
            if bias {
                let values = blocked
                    .iter()
                    .map(|&b| if b == 1 { f64::NEG_INFINITY } else { 0.0 });
                (case.blocked, case.bias) = (None, Some(([1, 2, 33, 40], values.collect())));
            } else {
                case.blocked = Some(([1, 2, 33, 40], blocked.clone()));
            }
        }
        let (clean, huge) = (clean.solve::<f32>(), huge.solve::<f32>());
        assert_finite(&huge);
        // At blocked keys, too: their gradient is 0.
        assert!(clean == huge);
    }
}

#[test]
fn a_row_without_keys_is_zero_and_has_no_gradient() {
    let ways: [fn(&mut Case); 3] = [
        |case| case.blocked = Some(([1, 1, 1, 1], vec![1])),
        |case| case.bias = Some(([1, 1, 1, 9], vec![f64::NEG_INFINITY; 9])),
        |case| case.ranges = Some((vec![5; 5], vec![5; 5], vec![0; 5])),
    ];
    for way in ways {
        let mut case = Case::new([2, 2, 1, 5, 9, 4, 3], &mut Random(3));
        way(&mut case);
        let answer = case.solve::<f32>();
        assert!(answer.lse.iter().all(|&x| x == f64::NEG_INFINITY));
        for (name, part) in answer.parts() {
            assert!(name == "lse" || part.iter().all(|&x| x == 0.0), "{name}");
        }
        case.sink = Some(vec![0.25, -0.5]);
        let answer = case.solve::<f32>();
        assert_eq!(answer.lse[..5], [0.25; 5]);
        assert_eq!(answer.lse[5..10], [-0.5; 5]);
        assert!(answer.out.iter().all(|&x| x == 0.0));
    }
}

#[test]
fn zero_sizes_are_fine() {
    for axis in [0, 1, 3, 4, 6] {
        let mut shape = [2, 3, 3, 5, 7, 4, 6];
        shape[axis] = 0;
        if axis == 1 {
            // Key heads that no query head shares have gradients, too.
            assert_finite(&Case::new(shape, &mut Random(4)).solve::<f32>());
            shape[2] = 0;
        }
        let answer = Case::new(shape, &mut Random(4)).solve::<f32>();
        assert_finite(&answer);
        if axis == 4 {
            assert!(answer.out.iter().chain(&answer.dq).all(|&x| x == 0.0));
        }
        if axis == 6 {
            assert!(answer.lse.iter().all(|x| x.is_finite()));
        }
    }
}

#[test]
fn a_nan_that_is_seen_is_not_hidden() {
    let mut case = Case::new([1, 1, 1, 3, 70, 8, 8], &mut Random(5));
    case.k[30 * 8] = f64::NAN;
    let mut poisoned = case.clone();
    poisoned.q.fill(f64::NAN);
    let sinks = [[3, 70], [8, 70], [8, 20]].map(|[queries, keys]| {
        let mut case = Case::new([1, 1, 1, queries, keys, 8, 8], &mut Random(5));
        case.sink = Some(vec![f64::NAN]);
        case
    });
    for case in [case, poisoned].into_iter().chain(sinks) {
        let answer = case.solve::<f32>();
        for part in [&answer.out, &answer.lse, &answer.dq, &answer.dk, &answer.dv] {
            assert!(part.iter().all(|x| x.is_nan()), "{}", case.describe());
        }
    }
}

#[test]
fn a_gradient_that_lies_otherwise_than_the_output_gives_the_same() {
    // Wide keys: what is read of a row of the output is shorter than the memory for copies.
    let shape = [1, 1, 8, 12];
    for keys in [9, 70] {
        let mut case = Case::new([1, 1, 1, 8, keys, 16, 12], &mut Random(22));
        for isa in Isa::available() {
            case.isa = Some(isa);
            let right = case.solve::<f32>();
            let [q, k, v, g, out, lse] = [
                &case.q,
                &case.k,
                &case.v,
                &case.grad_out,
                &right.out,
                &right.lse,
            ]
            .map(|x| cast::<f32>(x));
            let mut turned = vec![0.0; 96];
            for (at, &x) in g.iter().enumerate() {
                turned[at % 12 * 8 + at / 12] = x;
            }
            let mut problem = Problem::new(
                View::contiguous(&q, [1, 1, 8, 16]).unwrap(),
                View::contiguous(&k, [1, 1, keys, 16]).unwrap(),
                View::contiguous(&v, [1, 1, keys, 12]).unwrap(),
            );
            problem.isa = isa;
            let mut dq = vec![f32::NAN; 128];
            backward(
                &problem,
                &Saved {
                    out: View::contiguous(&out, shape).unwrap(),
                    lse: &lse,
                    kept: None,
                    grad_out: View::new(&turned, shape, [96, 96, 1, 8], 0).unwrap(),
                    grad_lse: None,
                },
                Gradients {
                    query: Some(ViewMut::contiguous(&mut dq, [1, 1, 8, 16]).unwrap()),
                    ..Gradients::default()
                },
            )
            .unwrap();
            assert!(cast::<f32>(&right.dq) == dq, "{isa:?}");
        }
    }
}

#[test]
fn a_later_token_does_not_change_an_earlier_output_by_a_bit() {
    let case = Case::new([1, 2, 2, 150, 150, 32, 32], &mut Random(6)).causal();
    let before = case.solve::<f32>();
    for later in [40, 100, 149] {
        let mut changed = case.clone();
        for head in 0..2 {
            let at = (head * 150 + later) * 32;
            changed.q[at..at + 32].fill(7.0);
            changed.k[at..at + 32].fill(-9.0);
            changed.v[at..at + 32].fill(1000.0);
        }
        let after = changed.solve::<f32>();
        for head in 0..2 {
            let rows = head * 150 * 32..(head * 150 + later) * 32;
            assert!(before.out[rows.clone()] == after.out[rows]);
        }
    }
}

#[test]
fn grouped_heads_read_their_own_key_head() {
    let mut case = Case::new([1, 4, 2, 3, 5, 2, 1], &mut Random(7));
    case.q.fill(0.0);
    case.v = [10.0, 20.0].into_iter().flat_map(|x| [x; 5]).collect();
    let answer = case.solve::<f32>();
    let right: Vec<f64> = [10.0, 10.0, 20.0, 20.0]
        .into_iter()
        .flat_map(|x| [x; 3])
        .collect();
    assert!(
        answer
            .out
            .iter()
            .zip(right)
            .all(|(x, y)| (x - y).abs() < 1e-5)
    );
}

#[test]
fn dropout_keeps_the_logsumexp_and_scales_what_it_keeps() {
    let mut case = Case::new([1, 1, 1, 1, 2, 2, 1], &mut Random(8));
    case.q.fill(0.0);
    case.v = vec![1.0, 1.0];
    for seed in 0..20 {
        case.dropout = Some(Dropout {
            probability: 0.5,
            seed: [seed, 3],
        });
        let answer = case.solve::<f32>();
        // Two weights of 1/2, each 0 or 1 after dropout.
        assert!([0.0, 1.0, 2.0].contains(&answer.out[0]));
        assert!((answer.lse[0] - 2.0_f64.ln()).abs() < 1e-6);
    }
}

#[test]
fn strided_inputs_and_outputs_equal_contiguous_ones_by_a_bit() {
    let (b, h, kv, q, k, d, e) = (2, 4, 2, 70, 77, 24, 16);
    let case = Case::new([b, h, kv, q, k, d, e], &mut Random(9)).causal();
    let right = case.solve::<f32>();
    // [batch, heads, length, dim] to [batch, length, heads, dim], or backwards, or every second element, or with rows
    // 512 bytes apart, which crowd the cache.
    #[derive(Clone, Copy, Debug)]
    enum Way {
        LengthFirst,
        Backwards,
        Spread,
        Crowded,
    }
    let lay = |way: Way, shape: [usize; 4]| -> ([isize; 4], usize, usize) {
        let [b, h, l, d] = shape.map(|n| n as isize);
        match way {
            Way::LengthFirst => ([l * h * d, d, h * d, 1], 0, (b * h * l * d) as usize),
            Way::Backwards => {
                let len = (b * h * l * d) as usize;
                ([-h * l * d, -l * d, -d, -1], len - 1, len)
            }
            Way::Spread => (
                [h * l * d * 2, l * d * 2, d * 2, 2],
                1,
                (b * h * l * d * 2) as usize + 1,
            ),
            Way::Crowded => (
                [h * l * 128, l * 128, 128, 1],
                0,
                (b * h * l * 128) as usize,
            ),
        }
    };
    let scatter = |data: &[f64], shape: [usize; 4], way: Way| -> Vec<f32> {
        let (strides, offset, len) = lay(way, shape);
        let mut to = vec![f32::NAN; len];
        for (at, &x) in data.iter().enumerate() {
            to[place(at, shape, strides, offset)] = x as f32;
        }
        to
    };
    let gather = |data: &[f32], shape: [usize; 4], way: Way| -> Vec<f64> {
        let (strides, offset, _) = lay(way, shape);
        (0..shape.iter().product())
            .map(|at| f64::from(data[place(at, shape, strides, offset)]))
            .collect()
    };
    for way in [Way::LengthFirst, Way::Backwards, Way::Spread, Way::Crowded] {
        let (qs, ks, vs, os) = ([b, h, q, d], [b, kv, k, d], [b, kv, k, e], [b, h, q, e]);
        let view = |shape| {
            let (strides, offset, len) = lay(way, shape);
            (strides, offset, len)
        };
        let (qd, kd, vd, gd) = (
            scatter(&case.q, qs, way),
            scatter(&case.k, ks, way),
            scatter(&case.v, vs, way),
            scatter(&case.grad_out, os, way),
        );
        let (first, end, position) = case.ranges.as_ref().unwrap();
        let mut problem = Problem::new(
            View::new(&qd, qs, view(qs).0, view(qs).1).unwrap(),
            View::new(&kd, ks, view(ks).0, view(ks).1).unwrap(),
            View::new(&vd, vs, view(vs).0, view(vs).1).unwrap(),
        );
        problem.key_ranges = Some(KeyRanges {
            first,
            end,
            position,
        });
        let mut out = vec![f32::NAN; view(os).2];
        let mut lse = vec![f32::NAN; b * h * q];
        forward(
            &problem,
            ViewMut::new(&mut out, os, view(os).0, view(os).1).unwrap(),
            &mut lse,
        )
        .unwrap();
        assert!(gather(&out, os, way) == right.out, "out {way:?}");
        let (mut dq, mut dk, mut dv) = (
            vec![f32::NAN; view(qs).2],
            vec![f32::NAN; view(ks).2],
            vec![f32::NAN; view(vs).2],
        );
        backward(
            &problem,
            &Saved {
                out: View::new(&out, os, view(os).0, view(os).1).unwrap(),
                lse: &lse,
                kept: None,
                grad_out: View::new(&gd, os, view(os).0, view(os).1).unwrap(),
                grad_lse: None,
            },
            Gradients {
                query: Some(ViewMut::new(&mut dq, qs, view(qs).0, view(qs).1).unwrap()),
                key: Some(ViewMut::new(&mut dk, ks, view(ks).0, view(ks).1).unwrap()),
                value: Some(ViewMut::new(&mut dv, vs, view(vs).0, view(vs).1).unwrap()),
                ..Gradients::default()
            },
        )
        .unwrap();
        assert!(gather(&dq, qs, way) == right.dq, "dq {way:?}");
        assert!(gather(&dk, ks, way) == right.dk, "dk {way:?}");
        assert!(gather(&dv, vs, way) == right.dv, "dv {way:?}");
    }
}

/// Where a contiguous tensor's element `at` goes under strides.
fn place(mut at: usize, shape: [usize; 4], strides: [isize; 4], offset: usize) -> usize {
    let mut to = offset as isize;
    for axis in (0..4).rev() {
        to += (at % shape[axis]) as isize * strides[axis];
        at /= shape[axis];
    }
    to as usize
}

#[cfg(feature = "rayon")]
#[test]
fn the_number_of_threads_changes_no_bit() {
    let mut random = Random(10);
    let mut cases = vec![
        Case::new([2, 3, 1, 150, 150, 16, 16], &mut random).causal(),
        Case::new([1, 1, 1, 1200, 300, 32, 32], &mut random),
        Case::new([1, 2, 1, 1409, 307, 16, 16], &mut random).causal(),
        Case::new([3, 6, 3, 963, 197, 8, 16], &mut random).islands(576),
    ];
    cases[0].bias = Some(([1, 1, 150, 150], random.normals(150 * 150)));
    cases[0].sink = Some(random.normals(3));
    for case in cases {
        let solve = |threads| {
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .build()
                .unwrap();
            pool.install(|| case.solve::<f32>())
        };
        let one = solve(1);
        for threads in [2, 3, 8] {
            assert!(one == solve(threads), "{threads} threads");
        }
        assert!(one == case.solve::<f32>());
    }
}

#[test]
fn only_what_is_asked_for_is_written_and_it_does_not_depend_on_the_rest() {
    let case = Case::new([1, 2, 1, 40, 50, 8, 8], &mut Random(11));
    let right = case.solve::<f32>();
    let (q, k, v, g) = (
        cast::<f32>(&case.q),
        cast::<f32>(&case.k),
        cast::<f32>(&case.v),
        cast::<f32>(&case.grad_out),
    );
    let (out, lse) = (cast::<f32>(&right.out), cast::<f32>(&right.lse));
    let problem = Problem::new(
        View::contiguous(&q, [1, 2, 40, 8]).unwrap(),
        View::contiguous(&k, [1, 1, 50, 8]).unwrap(),
        View::contiguous(&v, [1, 1, 50, 8]).unwrap(),
    );
    let saved = Saved {
        out: View::contiguous(&out, [1, 2, 40, 8]).unwrap(),
        lse: &lse,
        kept: None,
        grad_out: View::contiguous(&g, [1, 2, 40, 8]).unwrap(),
        grad_lse: None,
    };
    let (mut dq, mut dk, mut dv) = (vec![0.0; 640], vec![0.0; 400], vec![0.0; 400]);
    let query = Some(ViewMut::contiguous(&mut dq, [1, 2, 40, 8]).unwrap());
    backward(
        &problem,
        &saved,
        Gradients {
            query,
            ..Gradients::default()
        },
    )
    .unwrap();
    let key = Some(ViewMut::contiguous(&mut dk, [1, 1, 50, 8]).unwrap());
    backward(
        &problem,
        &saved,
        Gradients {
            key,
            ..Gradients::default()
        },
    )
    .unwrap();
    let value = Some(ViewMut::contiguous(&mut dv, [1, 1, 50, 8]).unwrap());
    backward(
        &problem,
        &saved,
        Gradients {
            value,
            ..Gradients::default()
        },
    )
    .unwrap();
    assert!(common::widen(&dq) == right.dq);
    assert!(common::widen(&dk) == right.dk);
    assert!(common::widen(&dv) == right.dv);
}

#[test]
fn arguments_that_do_not_fit_are_named() {
    let data = [0.0_f32; 64];
    let view = |shape| View::contiguous(&data, shape).unwrap();
    let run = |problem: &Problem<f32>| {
        let mut out = [0.0; 64];
        let shape = [1, 2, 4, 2];
        forward(
            problem,
            ViewMut::contiguous(&mut out, shape).unwrap(),
            &mut [0.0; 8],
        )
        .unwrap_err()
        .to_string()
    };
    let fine = Problem::new(view([1, 2, 4, 2]), view([1, 1, 3, 2]), view([1, 1, 3, 2]));
    let with = |change: fn(&mut Problem<f32>)| {
        let mut problem = fine;
        change(&mut problem);
        run(&problem)
    };
    let mut problem = fine;
    problem.value = view([1, 1, 2, 2]);
    assert_eq!(
        run(&problem),
        "value must have size 3 along key_len, but has 2"
    );
    problem = fine;
    problem.query = view([1, 3, 4, 2]);
    problem.key = view([1, 2, 3, 2]);
    problem.value = view([1, 2, 3, 2]);
    assert_eq!(
        run(&problem),
        "query has 3 heads, which 2 key heads do not divide"
    );
    assert_eq!(
        with(|p| p.softcap = Some(0.0)),
        "softcap must be finite and positive, but is 0"
    );
    assert_eq!(
        with(|p| p.alibi = Some(&[0.5])),
        "alibi must have length 2, but has 1"
    );
    assert_eq!(
        with(|p| p.dropout = Some(Dropout {
            probability: 1.0,
            seed: [0, 0]
        })),
        "dropout.probability must be at least 0 and below 1, but is 1"
    );
    assert_eq!(
        with(|p| p.key_ranges = Some(KeyRanges {
            first: &[0; 4],
            end: &[3, 3, 4, 3],
            position: &[]
        })),
        "key_ranges entry 2 ends at key 4, but there are 3"
    );
    assert_eq!(
        with(|p| p.key_ranges = Some(KeyRanges {
            first: &[0; 3],
            end: &[3; 4],
            position: &[]
        })),
        "key_ranges.first must have length 4, but has 3"
    );
    let mut out = [0.0; 64];
    let error = forward(
        &fine,
        ViewMut::contiguous(&mut out, [1, 2, 4, 3]).unwrap(),
        &mut [0.0; 8],
    );
    assert_eq!(
        error.unwrap_err(),
        Error::Axis {
            argument: "out",
            axis: "dim",
            expected: 2,
            found: 3
        }
    );
}

/// One head of `queries` and `keys`, width 4; its gradient at the values with what was kept, if that fits.
fn with_kept(
    [queries, keys]: [usize; 2],
    kept: &KeptWeights<f32>,
    isa: Isa,
) -> Result<Vec<f32>, Error> {
    let mut grads = vec![f32::NAN; keys * 4];
    head([queries, keys], isa, |problem, out, lse| {
        forward(problem, ViewMut::contiguous(out, [1, 1, queries, 4])?, lse)?;
        backward(
            problem,
            &Saved {
                out: View::contiguous(out, [1, 1, queries, 4])?,
                lse,
                kept: Some(kept),
                grad_out: problem.query,
                grad_lse: None,
            },
            Gradients {
                value: Some(ViewMut::contiguous(&mut grads, [1, 1, keys, 4])?),
                ..Gradients::default()
            },
        )
    })?;
    Ok(grads)
}

/// Calls with such a head, and room for its results.
fn head(
    [queries, keys]: [usize; 2],
    isa: Isa,
    call: impl FnOnce(&Problem<f32>, &mut [f32], &mut [f32]) -> Result<(), Error>,
) -> Result<(), Error> {
    let x = cast::<f32>(&Random(21).normals(queries.max(keys) * 4));
    let of = |rows: usize| View::contiguous(&x[..rows * 4], [1, 1, rows, 4]);
    let mut problem = Problem::new(of(queries)?, of(keys)?, of(keys)?);
    problem.isa = isa;
    call(
        &problem,
        &mut vec![0.0; queries * 4],
        &mut vec![0.0; queries],
    )
}

#[test]
fn memory_for_kept_weights_serves_other_shapes_and_the_weights_no_other_instructions() {
    let near = |x: &[f32], y: &[f32]| x.iter().zip(y).all(|(x, y)| (x - y).abs() <= 1e-5);
    let mut kept = KeptWeights::default();
    for sizes in [[70, 64], [7, 5], [130, 31], [3, 9], [9, 65]] {
        let right = with_kept(sizes, &KeptWeights::default(), Isa::best()).unwrap();
        head(sizes, Isa::best(), |problem, out, lse| {
            let out = ViewMut::contiguous(out, [1, 1, sizes[0], 4])?;
            forward_keeping(problem, out, lse, &mut kept)
        })
        .unwrap();
        assert_eq!(kept.is_empty(), sizes[0] < 5 || sizes[1] > 64);
        assert!(near(&with_kept(sizes, &kept, Isa::best()).unwrap(), &right));
        for isa in Isa::available() {
            assert!(
                near(&with_kept(sizes, &kept, isa).unwrap(), &right),
                "{isa:?}"
            );
        }
    }
}

#[test]
fn weights_kept_of_another_shape_are_refused() {
    let mut kept = KeptWeights::default();
    head([7, 5], Isa::best(), |problem, out, lse| {
        let out = ViewMut::contiguous(out, [1, 1, 7, 4])?;
        forward_keeping(problem, out, lse, &mut kept)
    })
    .unwrap();
    let error = with_kept([7, 6], &kept, Isa::best()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "kept must have size 6 along key_len, but has 5"
    );
    let error = with_kept([8, 5], &kept, Isa::best()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "kept must have size 8 along query_len, but has 7"
    );
}
