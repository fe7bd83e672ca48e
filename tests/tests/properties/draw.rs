//! Random problems.

use half::f16;
use layers::{Alignment, Scale, Window};
use tests::Random;
use tests::reference::{Broadcast, Documents, Problem, Sink, Sizes, Upstream};

/// A problem of any sizes with any options.
pub fn problem(random: &mut Random) -> Problem {
    let kv_heads = random.pick(&[1, 2, 3]);
    let sizes = Sizes {
        batch: random.pick(&[1, 2, 3]),
        heads: kv_heads * random.pick(&[1, 2, 3]),
        kv_heads,
        query_len: random.pick(&[1, 2, 3, 5, 7, 11, 17, 37]),
        key_len: random.pick(&[1, 2, 3, 5, 7, 13, 19, 41]),
        d_k: random.pick(&[1, 2, 3, 5, 8, 11, 16, 17]),
        d_v: random.pick(&[1, 2, 3, 5, 7, 8, 13, 19]),
    };
    let mut problem = Problem::random(sizes, random);
    options(&mut problem, random);
    problem
}

/// Any options, each as likely as not to be left at its default.
pub fn options(problem: &mut Problem, random: &mut Random) {
    let sizes = problem.sizes;
    problem.scale = random.pick(&[
        Scale::InvSqrtDim,
        Scale::InvSqrtDim,
        Scale::Unscaled,
        Scale::InvDim,
        Scale::Fixed(-0.37),
        Scale::LogLength { reference: 7 },
        Scale::Learned { initial: 0.6 },
    ]);
    problem.learned_factor = 0.8;
    problem.causal = random.chance(0.4);
    let offset = random.below(11) as i64 - 5;
    problem.alignment = random.pick(&[
        Alignment::BottomRight,
        Alignment::TopLeft,
        Alignment::Offset(offset),
        Alignment::ValidBottomRight,
    ]);
    problem.window = random.maybe(0.4, |random| Window {
        before: random.maybe(0.7, |random| random.below(6)),
        after: random.maybe(0.5, |random| random.below(6)),
    });
    problem.softcap = random.maybe(0.3, |random| 0.5 + 3.0 * random.unit());
    problem.sink = match random.below(4) {
        0 => Sink::Quiet,
        1 => Sink::Learned(random.normals(sizes.heads)),
        _ => Sink::None,
    };
    problem.alibi = random.chance(0.2);
    problem.bias = random.maybe(0.4, |random| {
        broadcast(sizes, random, |random| match random.chance(0.1) {
            true => f64::NEG_INFINITY,
            false => random.normal(),
        })
    });
    problem.blocked = random.maybe(0.4, |random| {
        broadcast(sizes, random, |random| random.chance(0.25))
    });
    let mut lengths = |limit: usize| {
        let list =
            |random: &mut Random| (0..sizes.batch).map(|_| random.below(limit + 1)).collect();
        random.maybe(0.3, list)
    };
    problem.key_lengths = lengths(sizes.key_len);
    problem.query_lengths = lengths(sizes.query_len);
    problem.segments = random.maybe(0.25, |random| {
        let mut lists = |length| {
            (0..sizes.batch)
                .map(|_| documents(length, random))
                .collect()
        };
        Documents {
            queries: lists(sizes.query_len),
            keys: lists(sizes.key_len),
        }
    });
}

/// A loss that uses the context, and the logsumexp and the weights as often as not.
pub fn upstream(problem: &Problem, random: &mut Random) -> Upstream {
    let sizes = problem.sizes;
    let count = |shape: &[usize]| shape.iter().product();
    Upstream {
        context: random.normals(count(&sizes.context())),
        logsumexp: random.maybe(0.5, |random| random.normals(count(&sizes.rows()))),
        weights: random.maybe(0.5, |random| random.normals(count(&sizes.scores()))),
    }
}

/// Makes every number one that f16 has, so that its tensors hold the very numbers.
pub fn round_to_f16(problem: &mut Problem, upstream: &mut Upstream) {
    let mut lists = vec![&mut problem.query, &mut problem.key, &mut problem.value];
    lists.extend(problem.bias.as_mut().map(|bias| &mut bias.values));
    if let Sink::Learned(logits) = &mut problem.sink {
        lists.push(logits);
    }
    lists.push(&mut upstream.context);
    lists.extend(upstream.weights.as_mut());
    let round = |number: &mut f64| *number = f16::from_f64(*number).to_f64();
    lists.into_iter().flatten().for_each(round);
    round(&mut problem.learned_factor);
}

/// Values for each score, the same along any of its axes.
fn broadcast<T>(
    sizes: Sizes,
    random: &mut Random,
    mut value: impl FnMut(&mut Random) -> T,
) -> Broadcast<T> {
    let shape = sizes
        .scores()
        .map(|size| if random.chance(0.5) { size } else { 1 });
    let count: usize = shape.iter().product();
    Broadcast {
        shape,
        values: (0..count).map(|_| value(random)).collect(),
    }
}

/// The document of each place: neighbours, and some that the other side does not have.
fn documents(length: usize, random: &mut Random) -> Vec<u32> {
    let mut id = random.below(2) as u32;
    (0..length)
        .map(|_| {
            if random.chance(0.25) {
                id += 1 + random.below(2) as u32;
            }
            id
        })
        .collect()
}
