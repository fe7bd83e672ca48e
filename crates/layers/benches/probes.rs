//! What probes cost: one step of a layer that nobody has measured, of one that was measured and is
//! not any more, and of one that is.
//!
//! `cargo bench -p layers --bench probes` prints a table in Markdown. The three take turns, step by
//! step, so that whatever else the machine does falls on all of them alike.

use std::time::Instant;

use burn::tensor::{Device, Distribution, Tensor};
use layers::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig, Probes};

/// Turns before the clock counts.
const WARM: usize = 20;

fn main() {
    println!("| step | never measured | no longer | measured |");
    println!("|---|---|---|---|");
    for (shape, heads, turns) in [
        ([1, 8, 8], 1, 4000),
        ([64, 17, 64], 1, 400),
        ([8, 256, 512], 8, 10),
    ] {
        let [batch, length, width] = shape;
        let times = compare(shape, heads, turns).map(|seconds| format!("{:.3} ms", seconds * 1e3));
        println!(
            "| B {batch} N {length} d_model {width} heads {heads}, forward and backward | {} |",
            times.join(" | ")
        );
    }
}

/// The median seconds of a step of each.
fn compare(shape: [usize; 3], heads: usize, turns: usize) -> [f64; 3] {
    let device = Device::default().autodiff();
    let x = Tensor::<3>::random(shape, Distribution::Normal(0.0, 1.0), &device);
    let config = MultiHeadAttentionConfig::new(shape[2], heads);
    let [never, no_longer, measured] = [(); 3].map(|()| config.init(&device));
    let before = Probes::of(&no_longer);
    before.on();
    step(&no_longer, &x);
    assert_eq!(before.take().len(), 1);
    let probes = Probes::of(&measured);

    let mut times = [const { Vec::new() }; 3];
    for turn in 0..turns + WARM {
        let seconds = [
            timed(|| step(&never, &x)),
            timed(|| step(&no_longer, &x)),
            timed(|| {
                probes.on();
                step(&measured, &x);
                assert_eq!(probes.take().len(), 1);
            }),
        ];
        if turn >= WARM {
            for (times, seconds) in times.iter_mut().zip(seconds) {
                times.push(seconds);
            }
        }
    }
    times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    })
}

fn step(attention: &MultiHeadAttention, x: &Tensor<3>) {
    let input = MhaInput::self_attn(x.clone().detach().require_grad());
    attention.forward(input).sum().backward();
}

fn timed(run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64()
}
