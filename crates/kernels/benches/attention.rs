//! `cargo bench -p kernels`: each shape forward, forward and backward, decoding, and the products of
//! projections, with effective operations a second (Criterion's "elem/s": 4 per query, key and
//! dimension forward, 14 with the backward pass, none for blocked keys; 2 per row, column and step
//! of a product).
//!
//! `cargo bench -p kernels -- causal` runs the rows whose name contains a word. Beside other
//! libraries: `benches/peers`.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use kernels::{
    Gradients, KeyRanges, Matmul, Problem, Saved, View, ViewMut, backward, forward, matmul,
};

/// batch, heads, kv heads, queries, keys, width.
type Shape = [usize; 6];

const SHAPES: [(&str, Shape); 7] = [
    ("8 heads, 512 x 64", [1, 8, 8, 512, 512, 64]),
    ("8 heads, 1024 x 64", [1, 8, 8, 1024, 1024, 64]),
    ("8 heads, 2048 x 64", [1, 8, 8, 2048, 2048, 64]),
    ("12 heads, 1024 x 128", [1, 12, 12, 1024, 1024, 128]),
    ("16 heads on 4, 1024 x 64", [1, 16, 4, 1024, 1024, 64]),
    ("batch 32, 4 heads, 64 x 32", [32, 4, 4, 64, 64, 32]),
    ("batch 64, 4 heads, 16 x 32", [64, 4, 4, 16, 16, 32]),
];

const DECODING: [(&str, Shape); 2] = [
    ("32 heads, 4096 keys x 128", [1, 32, 32, 1, 4096, 128]),
    ("32 heads on 8, 4096 keys x 128", [1, 32, 8, 1, 4096, 128]),
];

fn attention(criterion: &mut Criterion) {
    for causal in [false, true] {
        let mut group = criterion.benchmark_group(if causal { "causal" } else { "full" });
        for (name, shape) in SHAPES {
            let [batch, heads, _, queries, keys, width] = shape;
            let scores = (batch * heads * queries * keys) as u64 / if causal { 2 } else { 1 };
            let mut buffers = Buffers::new(shape, causal);
            group.throughput(Throughput::Elements(4 * scores * width as u64));
            group.bench_function(format!("forward {name}"), |bencher| {
                bencher.iter(|| buffers.forward());
            });
            group.throughput(Throughput::Elements(14 * scores * width as u64));
            group.bench_function(format!("forward and backward {name}"), |bencher| {
                bencher.iter(|| {
                    buffers.forward();
                    buffers.backward();
                });
            });
        }
    }
}

fn decoding(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decode");
    for (name, shape) in DECODING {
        let [batch, _, kv_heads, _, keys, width] = shape;
        let mut buffers = Buffers::new(shape, false);
        // Decoding waits for memory: what counts is the bytes of the keys and values.
        let bytes = 2 * batch * kv_heads * keys * width * size_of::<f32>();
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(name, |bencher| bencher.iter(|| buffers.forward()));
    }
}

/// Rows, then the widths of input and output.
const PROJECTIONS: [[usize; 3]; 4] = [
    [2048, 512, 512],
    [1088, 256, 256],
    [1088, 64, 64],
    [1, 512, 512],
];

fn projection(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("projection");
    for [rows, d_in, d_out] in PROJECTIONS {
        let (input, weight) = (noise(rows * d_in, 1), noise(d_in * d_out, 2));
        let gradient = noise(rows * d_out, 3);
        let matrix = |data, [rows, columns]: [usize; 2], turned| {
            let (shape, strides) = match turned {
                false => ([1, 1, rows, columns], [0, 0, columns as isize, 1]),
                true => ([1, 1, columns, rows], [0, 0, 1, columns as isize]),
            };
            View::new(data, shape, strides, 0).expect("a matrix")
        };
        let input = |turned| matrix(&input, [rows, d_in], turned);
        let weight = |turned| matrix(&weight, [d_in, d_out], turned);
        let gradient = matrix(&gradient, [rows, d_out], false);
        group.throughput(Throughput::Elements(2 * (rows * d_in * d_out) as u64));
        for (name, left, right) in [
            ("forward", input(false), weight(false)),
            ("gradient at the input", gradient, weight(true)),
            ("gradient at the weight", input(true), gradient),
        ] {
            let mut out = vec![0.0; left.shape()[2] * right.shape()[3]];
            group.bench_function(format!("{name} {rows} x {d_in} to {d_out}"), |bencher| {
                bencher.iter(|| {
                    matmul(&Matmul::new(left, right), &mut out).expect("matmul");
                    black_box(&out);
                });
            });
        }
    }
}

/// The tensors of one call.
struct Buffers {
    query_shape: [usize; 4],
    key_shape: [usize; 4],
    inputs: [Vec<f32>; 4],
    first: Vec<u32>,
    end: Vec<u32>,
    out: Vec<f32>,
    lse: Vec<f32>,
    gradients: [Vec<f32>; 3],
}

impl Buffers {
    fn new([batch, heads, kv_heads, queries, keys, width]: Shape, causal: bool) -> Self {
        let queried = batch * heads * queries * width;
        let kept = batch * kv_heads * keys * width;
        let end = |row: usize| {
            if causal {
                row + 1 + keys - queries
            } else {
                keys
            }
        };
        Self {
            query_shape: [batch, heads, queries, width],
            key_shape: [batch, kv_heads, keys, width],
            inputs: [
                noise(queried, 1),
                noise(kept, 2),
                noise(kept, 3),
                noise(queried, 4),
            ],
            first: vec![0; queries],
            end: (0..queries).map(|row| end(row) as u32).collect(),
            out: vec![0.0; queried],
            lse: vec![0.0; batch * heads * queries],
            gradients: [vec![0.0; queried], vec![0.0; kept], vec![0.0; kept]],
        }
    }

    fn forward(&mut self) {
        let problem = problem(
            &self.inputs,
            (self.query_shape, self.key_shape),
            (&self.first, &self.end),
        );
        let out = ViewMut::contiguous(&mut self.out, self.query_shape).expect("out");
        forward(&problem, out, &mut self.lse).expect("forward");
        black_box(&self.out);
    }

    fn backward(&mut self) {
        let problem = problem(
            &self.inputs,
            (self.query_shape, self.key_shape),
            (&self.first, &self.end),
        );
        let saved = Saved {
            out: View::contiguous(&self.out, self.query_shape).expect("out"),
            lse: &self.lse,
            kept: None,
            grad_out: View::contiguous(&self.inputs[3], self.query_shape).expect("grad_out"),
            grad_lse: None,
        };
        let [query, key, value] = &mut self.gradients;
        let gradients = Gradients {
            query: Some(ViewMut::contiguous(query, self.query_shape).expect("query")),
            key: Some(ViewMut::contiguous(key, self.key_shape).expect("key")),
            value: Some(ViewMut::contiguous(value, self.key_shape).expect("value")),
            ..Gradients::default()
        };
        backward(&problem, &saved, gradients).expect("backward");
        black_box(&self.gradients);
    }
}

fn problem<'a>(
    inputs: &'a [Vec<f32>; 4],
    (query, key): ([usize; 4], [usize; 4]),
    (first, end): (&'a [u32], &'a [u32]),
) -> Problem<'a, f32> {
    let mut problem = Problem::new(
        View::contiguous(&inputs[0], query).expect("query"),
        View::contiguous(&inputs[1], key).expect("key"),
        View::contiguous(&inputs[2], key).expect("value"),
    );
    problem.key_ranges = Some(KeyRanges {
        first,
        end,
        position: &[],
    });
    problem
}

/// Uniform numbers of unit variance.
fn noise(len: usize, seed: u32) -> Vec<f32> {
    (0..len as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 8) as f32)
        .map(|x| (x / (1 << 23) as f32 - 1.0) * 3.0_f32.sqrt())
        .collect()
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1));
    targets = attention, decoding, projection
}
criterion_main!(benches);
