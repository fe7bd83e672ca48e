//! Times the kernels on request, for `benches/peers`: one process, inputs kept between requests.
//!
//! Reads lines from standard input and answers each with one line of seconds, one a repetition:
//!
//! ```text
//! time DIRECTION BATCH HEADS KV_HEADS QUERIES KEYS D_K D_V MASK REPETITIONS
//! cpu-time, the same arguments
//! limit SECONDS
//! cpu-limit SECONDS
//! ```
//!
//! `DIRECTION` is `forward` or `both` (forward, then backward for queries, keys and values). `MASK` is `full`, `causal`
//! (bottom-right), `window:N` (causal, N keys), `padding` (the last quarter of the keys of every sample blocked by a
//! boolean mask). `cpu-time` counts what the calling thread spent on a processor (Linux): with `RAYON_NUM_THREADS=1` it
//! makes sense of a busy machine. `limit` runs independent multiply-adds on all threads and answers with GFLOP/s.

use kernels::{
    Gradients, Isa, KeptWeights, KeyRanges, Problem, Saved, View, ViewMut, backward, forward,
    forward_keeping,
};
use macerator::{Arch, Scalar, Simd, VMulAdd, Vector, WithSimd};
use std::io::{BufRead, Write};
use std::time::Instant;

fn main() {
    // From a thread of the pool, as the crate advises who calls often.
    rayon::scope(|_| answer());
}

/// Answers one line after the other.
fn answer() {
    let mut out = std::io::stdout();
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("standard input");
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = match words.as_slice() {
            ["limit", seconds] => vec![limit(seconds.parse().expect("seconds"), wall())],
            ["cpu-limit", seconds] => vec![limit(seconds.parse().expect("seconds"), processor)],
            ["isa"] => {
                writeln!(out, "{:?}", Isa::best()).expect("standard output");
                continue;
            }
            ["time", direction, rest @ ..] => Timing::new(direction, rest).run(wall()),
            ["cpu-time", direction, rest @ ..] => Timing::new(direction, rest).run(processor),
            _ => panic!("unknown request: {line}"),
        };
        let answer: Vec<String> = answer.iter().map(|x| format!("{x:.9}")).collect();
        writeln!(out, "{}", answer.join(" ")).expect("standard output");
        out.flush().expect("standard output");
    }
}

/// Seconds since the first call.
fn wall() -> impl Fn() -> f64 {
    let start = Instant::now();
    move || start.elapsed().as_secs_f64()
}

/// Seconds that this thread has spent on a processor.
fn processor() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    let nanoseconds = stat.split_whitespace().next().expect("a first field");
    nanoseconds.parse::<f64>().expect("a number") / 1e9
}

struct Timing {
    both: bool,
    shape: [usize; 7],
    first: Vec<u32>,
    end: Vec<u32>,
    blocked: Option<Vec<u8>>,
    repetitions: usize,
}

impl Timing {
    fn new(direction: &str, words: &[&str]) -> Self {
        let number = |at: usize| words[at].parse::<usize>().expect("a number");
        let shape: [usize; 7] = std::array::from_fn(number);
        let [batch, _, _, queries, keys, ..] = shape;
        let offset = keys as i64 - queries as i64;
        let end: Vec<u32> = (0..queries as i64)
            .map(|i| (i + offset + 1) as u32)
            .collect();
        let (mut first, mut ends) = (vec![0; queries], vec![keys as u32; queries]);
        let mut blocked = None;
        match words[7].split_once(':') {
            Some(("window", window)) => {
                let window: u32 = window.parse().expect("a window");
                first = end.iter().map(|&end| end.saturating_sub(window)).collect();
                ends = end;
            }
            _ if words[7] == "causal" => ends = end,
            _ if words[7] == "padding" => {
                let row = (0..keys).map(|j| u8::from(j >= keys - keys / 4));
                blocked = Some(row.cycle().take(batch * keys).collect());
            }
            _ => assert_eq!(words[7], "full"),
        }
        Self {
            both: direction == "both",
            shape,
            first,
            end: ends,
            blocked,
            repetitions: number(8),
        }
    }

    fn run(&self, clock: impl Fn() -> f64) -> Vec<f64> {
        let [batch, heads, kv_heads, queries, keys, d_k, d_v] = self.shape;
        let query = [batch, heads, queries, d_k];
        let key = [batch, kv_heads, keys, d_k];
        let value = [batch, kv_heads, keys, d_v];
        let result = [batch, heads, queries, d_v];
        let len = |shape: [usize; 4]| shape.iter().product::<usize>();
        let noise = |len: usize, seed: u32| -> Vec<f32> {
            (0..len as u32)
                .map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 8) as f32)
                .map(|x| (x / (1 << 23) as f32 - 1.0) * 1.7)
                .collect()
        };
        let (q, k, v) = (
            noise(len(query), 1),
            noise(len(key), 2),
            noise(len(value), 3),
        );
        let grad_out = noise(len(result), 4);
        let mut problem = Problem::new(
            View::contiguous(&q, query).expect("query"),
            View::contiguous(&k, key).expect("key"),
            View::contiguous(&v, value).expect("value"),
        );
        problem.key_ranges = Some(KeyRanges {
            first: &self.first,
            end: &self.end,
            position: &[],
        });
        problem.blocked = self
            .blocked
            .as_ref()
            .map(|blocked| View::contiguous(blocked, [batch, 1, 1, keys]).expect("blocked"));
        let (mut out, mut lse) = (vec![0.0; len(result)], vec![0.0; batch * heads * queries]);
        let mut kept = KeptWeights::default();
        let (mut dq, mut dk, mut dv) = (
            vec![0.0; len(query)],
            vec![0.0; len(key)],
            vec![0.0; len(value)],
        );
        (0..self.repetitions)
            .map(|_| {
                let start = clock();
                let view = ViewMut::contiguous(&mut out, result).expect("out");
                if self.both {
                    forward_keeping(&problem, view, &mut lse, &mut kept).expect("forward");
                    backward(
                        &problem,
                        &Saved {
                            out: View::contiguous(&out, result).expect("out"),
                            lse: &lse,
                            kept: Some(&kept),
                            grad_out: View::contiguous(&grad_out, result).expect("grad_out"),
                            grad_lse: None,
                        },
                        Gradients {
                            query: Some(ViewMut::contiguous(&mut dq, query).expect("dq")),
                            key: Some(ViewMut::contiguous(&mut dk, key).expect("dk")),
                            value: Some(ViewMut::contiguous(&mut dv, value).expect("dv")),
                            ..Gradients::default()
                        },
                    )
                    .expect("backward");
                } else {
                    forward(&problem, view, &mut lse).expect("forward");
                }
                clock() - start
            })
            .collect()
    }
}

/// GFLOP/s of independent multiply-adds in registers, on all threads of the pool.
fn limit(seconds: f64, clock: impl Fn() -> f64 + Sync) -> f64 {
    let results = rayon::broadcast(|_| {
        // SAFETY: detection has found the instructions.
        unsafe { Arch::detect().dispatch(Limit(seconds, &clock)) }
    });
    results.iter().sum()
}

struct Limit<C>(f64, C);

impl<C: Fn() -> f64> WithSimd for Limit<C> {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: Simd>(self) -> f64 {
        const SUMS: usize = 12;
        let factor = 0.999_f32.splat::<S>();
        let mut sums: [Vector<S, f32>; SUMS] = [1.0_f32.splat::<S>(); SUMS];
        let (start, mut rounds) = ((self.1)(), 0_u64);
        while (self.1)() - start < self.0 {
            for _ in 0..10_000 {
                for sum in &mut sums {
                    *sum = f32::vmul_add(*sum, factor, factor);
                }
            }
            rounds += 10_000;
        }
        let seconds = (self.1)() - start;
        let mut total = 0.0;
        for sum in sums {
            total += sum.reduce_add();
        }
        assert!(total.is_finite());
        (rounds * 2 * (SUMS * f32::lanes::<S>()) as u64) as f64 / seconds / 1e9
    }
}
