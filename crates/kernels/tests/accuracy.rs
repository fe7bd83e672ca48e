//! The kernels against a plain loop in f64.

mod common;

use common::{Case, Random};
use kernels::{Dropout, Isa};

/// How many random combinations: `KERNELS_COMBINATIONS`, by default few enough for every build.
fn combinations() -> usize {
    let default = if cfg!(miri) { 3 } else { 150 };
    std::env::var("KERNELS_COMBINATIONS").map_or(default, |n| n.parse().expect("a number"))
}

/// A shape and options at random, sizes unequal so that no two axes can be mixed up.
fn random_case(random: &mut Random) -> Case {
    let kv_heads = random.pick(&[1, 2, 3]);
    let heads = kv_heads * random.pick(&[1, 1, 2, 5]);
    let lengths = [1, 2, 3, 7, 13, 17, 31, 64, 67, 79, 97, 131, 149];
    let dims = [1, 2, 3, 5, 8, 11, 16, 19, 24, 32, 40];
    let shape = [
        random.pick(&[1, 2, 3]),
        heads,
        kv_heads,
        random.pick(&lengths),
        random.pick(&lengths),
        random.pick(&dims),
        random.pick(&dims),
    ];
    let mut case = Case::new(shape, random);
    let (b, q, k) = (case.batch, case.queries, case.keys);
    if random.chance(20) {
        case.scale = Some(random.pick(&[0.3, 1.0, -0.5]));
    }
    if random.chance(25) {
        case.softcap = Some(random.pick(&[0.7, 5.0, 30.0]));
    }
    match random.below(5) {
        0 => case = case.causal(),
        1 => {
            // Anything goes: a row of its own for each sample, some of them empty.
            let n = if random.chance(50) { q } else { b * q };
            let mut ranges = (vec![], vec![], vec![]);
            for _ in 0..n {
                let (x, y) = (random.below(k + 1), random.below(k + 1));
                ranges.0.push(x.min(y) as u32);
                ranges.1.push(x.max(y) as u32);
                ranges.2.push(random.below(2 * k) as i32 - k as i32 / 2);
            }
            case.ranges = Some(ranges);
        }
        2 => {
            // A causal window with keys and queries of each sample's own length.
            let window = 1 + random.below(k);
            let mut ranges = (vec![], vec![], vec![]);
            for _ in 0..b {
                let (length, rows) = (random.below(k + 1), random.below(q + 1));
                for i in 0..q {
                    let position = (i + k) as i64 - q as i64;
                    let end = if i < rows {
                        (position + 1).clamp(0, length as i64)
                    } else {
                        0
                    };
                    ranges.0.push((end - window as i64).max(0) as u32);
                    ranges.1.push(end as u32);
                    ranges.2.push(position as i32);
                }
            }
            case.ranges = Some(ranges);
        }
        _ => {}
    }
    let full = [b, heads, q, k];
    let broadcast = |random: &mut Random| full.map(|size| if random.chance(50) { 1 } else { size });
    if random.chance(35) {
        let shape = broadcast(random);
        let rate = random.pick(&[5, 50, 95]);
        let blocked = (0..shape.iter().product()).map(|_| u8::from(random.chance(rate)) * 255);
        case.blocked = Some((shape, blocked.collect()));
    }
    if random.chance(35) {
        let shape = broadcast(random);
        let mut bias = random.normals(shape.iter().product());
        if random.chance(50) {
            for x in &mut bias {
                if random.chance(20) {
                    *x = f64::NEG_INFINITY;
                }
            }
        }
        case.bias = Some((shape, bias));
    }
    if random.chance(25) {
        case.alibi = Some((0..heads).map(|h| 0.5_f32.powi(h as i32)).collect());
    }
    if random.chance(25) {
        case.sink = Some(random.normals(heads));
    }
    if random.chance(25) {
        let seed = [random.below(1 << 31) as u32, random.below(1 << 31) as u32];
        case.dropout = Some(Dropout {
            probability: random.pick(&[0.1, 0.5]),
            seed,
        });
    }
    if random.chance(30) {
        case.grad_lse = Some(random.normals(case.rows()));
    }
    case
}

#[test]
fn random_combinations_of_all_options_agree_with_the_loop() {
    let seed = std::env::var("KERNELS_SEED").map_or(1, |n| n.parse().expect("a number"));
    for n in 0..combinations() {
        let mut random = Random(seed + n as u64);
        let mut case = random_case(&mut random);
        let isas: Vec<_> = Isa::available().collect();
        case.isa = Some(random.pick(&isas));
        // Looser than elsewhere: ALiBi adds up to 150, of which f32 keeps five digits behind the point, and where a row
        // sees one key its gradient is zero but for rounding (hence the floor). The f64 run is the sharp one.
        case.check_above::<f32>(5e-5, 1.0);
        case.check_above::<f64>(1e-13, 1.0);
    }
}

#[test]
fn every_instruction_set_agrees_with_the_loop() {
    for isa in Isa::available() {
        for (n, dims) in [(64, [64, 64]), (77, [40, 24]), (16, [32, 32])] {
            let mut case =
                Case::new([2, 4, 2, n, n + 3, dims[0], dims[1]], &mut Random(5)).causal();
            case.isa = Some(isa);
            case.check::<f32>(1e-6);
            case.check::<f64>(1e-14);
        }
    }
}

#[test]
fn long_rows_of_unit_variance_are_good_to_1e_6() {
    for n in [257, 1001, if cfg!(debug_assertions) { 1024 } else { 4096 }] {
        let case = Case::new([1, 1, 1, n, n, 64, 64], &mut Random(n as u64));
        case.check::<f32>(1e-6);
        case.causal().check::<f32>(1e-6);
    }
}

#[test]
fn scores_of_deviation_40_are_good_to_2e_5() {
    for n in [64, 256, 1000] {
        let mut case = Case::new([1, 2, 2, n, n, 64, 64], &mut Random(n as u64));
        case.scale = Some(40.0 / 8.0);
        case.check::<f32>(2e-5);
        case.check::<f64>(1e-13);
    }
}

#[test]
fn queries_that_take_turns_at_keys_agree_with_the_loop() {
    // Tasks of one block, of two and of four.
    for shape in [
        [1, 3, 1, 601, 130, 24, 19],
        [1, 6, 3, 1409, 131, 8, 5],
        [3, 6, 3, 963, 131, 8, 16],
    ] {
        let case = Case::new(shape, &mut Random(9));
        case.check::<f32>(1e-6);
        case.check::<f64>(1e-14);
        case.causal().check::<f64>(1e-14);
    }
}

#[test]
fn keys_that_no_query_sees_have_gradient_0() {
    // The change lies between tasks, between blocks of a task, and inside of a block.
    for early in [512, 576, 600] {
        let case = Case::new([3, 6, 3, 963, 197, 8, 16], &mut Random(10)).islands(early);
        let answer = case.solve::<f32>();
        for (grad, dim) in [(&answer.dk, 8), (&answer.dv, 16)] {
            for head in grad.chunks_exact(197 * dim) {
                assert!(head[10 * dim..140 * dim].iter().all(|&x| x == 0.0));
                assert!(head[..10 * dim].iter().any(|&x| x != 0.0));
                assert!(head[140 * dim..].iter().any(|&x| x != 0.0));
            }
        }
        case.check::<f32>(1e-6);
    }
}

#[test]
fn few_queries_and_many_keys_agree_with_the_loop() {
    for (heads, kv_heads, queries) in [(1, 1, 1), (4, 1, 3), (6, 2, 4), (5, 5, 2), (16, 2, 1)] {
        for dims in [[64, 64], [40, 19]] {
            let mut random = Random(heads as u64);
            let case = Case::new(
                [1, heads, kv_heads, queries, 1301, dims[0], dims[1]],
                &mut random,
            );
            case.check::<f32>(1e-6);
            case.causal().check::<f64>(1e-14);
        }
    }
}

#[test]
fn half_precision_errs_by_its_own_rounding_only() {
    for shape in [[2, 4, 2, 70, 83, 24, 16], [1, 4, 1, 1, 600, 64, 40]] {
        let mut random = Random(11);
        let mut case = Case::new(shape, &mut random).causal();
        case.bias = Some((
            [1, shape[1], 1, shape[4]],
            random.normals(shape[1] * shape[4]),
        ));
        // Half a unit in the last place, with room for gradients that start from the rounded output.
        case.check::<half::f16>(2e-3);
        case.check::<half::bf16>(1.6e-2);
        let case = case.round::<half::f16>();
        let (half, single) = (case.solve::<half::f16>(), case.solve::<f32>());
        assert!(half.lse == single.lse, "the logsumexp is f32's");
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    let mut random = Random(3);
    let mut case = Case::new([1, 2, 1, 5, 7, 3, 2], &mut random).causal();
    case.softcap = Some(2.0);
    case.bias = Some(([1, 2, 1, 7], random.normals(14)));
    case.sink = Some(random.normals(2));
    case.alibi = Some(vec![0.5, 0.25]);
    case.dropout = Some(Dropout {
        probability: 0.25,
        seed: [1, 2],
    });
    case.grad_lse = Some(random.normals(case.rows()));
    let loss = |case: &Case| -> f64 {
        let answer = case.solve::<f64>();
        let out: f64 = answer
            .out
            .iter()
            .zip(&case.grad_out)
            .map(|(x, g)| x * g)
            .sum();
        let lse = answer.lse.iter().zip(case.grad_lse.as_ref().unwrap());
        out + lse
            .map(|(x, g)| {
                if g * x == f64::NEG_INFINITY {
                    0.0
                } else {
                    x * g
                }
            })
            .sum::<f64>()
    };
    let answer = case.solve::<f64>();
    type Input = fn(&mut Case) -> &mut Vec<f64>;
    let pick: [(Input, &[f64]); 5] = [
        (|c| &mut c.q, &answer.dq),
        (|c| &mut c.k, &answer.dk),
        (|c| &mut c.v, &answer.dv),
        (|c| &mut c.bias.as_mut().unwrap().1, &answer.dbias),
        (|c| c.sink.as_mut().unwrap(), &answer.dsink),
    ];
    let step = 1e-5;
    for (input, grads) in pick {
        for (at, &grad) in grads.iter().enumerate() {
            let mut moved = case.clone();
            input(&mut moved)[at] += step;
            let above = loss(&moved);
            input(&mut moved)[at] -= 2.0 * step;
            let slope = (above - loss(&moved)) / (2.0 * step);
            assert!((slope - grad).abs() < 1e-8, "{at}: {slope} and {grad}");
        }
    }
}
