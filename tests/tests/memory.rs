//! No option brings the score matrix back: memory in training does not grow with the square of the
//! length.
//!
//! On backends whose tensors are in the memory of the process, which is what is counted here.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::tensor::{Device, Tensor};
use layers::{
    AttentionInput, Mask, MhaInput, MultiHeadAttentionConfig, Probe, QkNorm, RotaryConfig, Scale,
    ScaledDotProductAttentionConfig, Segments, Window,
};
use tests::{Random, backends, bools, floats};

/// Counts the bytes that are in use, and the most that were.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn count(more: usize, less: usize) {
    let before = IN_USE.fetch_add(more, Ordering::Relaxed);
    PEAK.fetch_max(before + more, Ordering::Relaxed);
    IN_USE.fetch_sub(less, Ordering::Relaxed);
}

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller keeps this method's contract, which is that of the one called.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: as above; the pointer came from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most bytes that a call had in use beyond those before it.
fn peak(call: impl FnOnce()) -> usize {
    let before = IN_USE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    call();
    PEAK.load(Ordering::Relaxed) - before
}

const LENGTH: usize = 2048;
const HEADS: usize = 4;
const WIDTH: usize = 16;
/// The scores of all heads in f32.
const SCORES: usize = HEADS * LENGTH * LENGTH * 4;
/// A few tensors of the inputs' size, and the tiles of every thread.
const ALLOWED: usize = SCORES / 4;

/// The CPU backends, with autodiff.
fn devices() -> Vec<(&'static str, Device)> {
    backends()
        .into_iter()
        .filter(|backend| ["flex", "ndarray"].contains(&backend.name))
        .map(|backend| (backend.name, backend.device.autodiff()))
        .collect()
}

fn check(name: &str, option: &str, bytes: usize) {
    println!("{name}, {option}: {} KiB", bytes >> 10);
    assert!(
        bytes < ALLOWED,
        "{name}, {option}: {} MiB, while all scores take {} MiB",
        bytes >> 20,
        SCORES >> 20
    );
}

// One test: a second one at the same time would be counted too.
#[test]
fn training_with_any_option_takes_less_memory_than_the_scores() {
    for (name, device) in devices() {
        attention(name, &device);
        multi_head(name, &device);
    }
}

fn attention(name: &str, device: &Device) {
    let shape = [1, HEADS, LENGTH, WIDTH];
    let mut random = Random::new(1);
    let numbers = random.normals(shape.iter().product());
    let x: Tensor<4> = floats(&numbers, shape, device);
    let leaf = || x.clone().require_grad();
    let input = || AttentionInput::new(leaf(), leaf(), leaf());
    let config = ScaledDotProductAttentionConfig::new;
    let key_bias =
        || -> Tensor<4> { floats(&vec![0.5; LENGTH], [1, 1, 1, LENGTH], device).require_grad() };
    let padding = || {
        let padded: Vec<bool> = (0..LENGTH).map(|key| key % 7 == 3).collect();
        Mask::blocked_keys(bools(&padded, [1, LENGTH], device))
    };
    let documents = || {
        let bounds = vec![0, LENGTH / 3, LENGTH];
        Segments::from_cumulative_lengths([bounds])
    };
    let probe = Probe::new();
    for (option, config, input) in [
        ("plain", config(), input()),
        ("causal", config().with_causal(true), input()),
        (
            "window",
            config().with_window(Some(Window::around(100, 100))),
            input(),
        ),
        ("softcap", config().with_softcap(Some(3.0)), input()),
        ("sink", config().with_sink_heads(Some(HEADS)), input()),
        ("quiet", config().with_quiet_softmax(true), input()),
        ("alibi", config().with_alibi(true), input()),
        ("dropout", config().with_dropout(0.1), input()),
        (
            "learned scale",
            config().with_scale(Scale::Learned { initial: 0.25 }),
            input(),
        ),
        (
            "scale by length",
            config().with_scale(Scale::LogLength { reference: 512 }),
            input().key_lengths([LENGTH - 5]),
        ),
        ("bias of keys", config(), input().bias(key_bias())),
        ("padding mask", config(), input().mask(padding())),
        (
            "lengths",
            config(),
            input()
                .key_lengths([LENGTH - 5])
                .query_lengths([LENGTH - 9]),
        ),
        (
            "documents",
            config(),
            input().segments(documents(), documents()),
        ),
        ("probe", config(), input().probe(&probe)),
    ] {
        let module = config.init(device);
        let bytes = peak(|| {
            module.forward(input).sum().backward();
            probe.take();
        });
        check(name, option, bytes);
    }
}

fn multi_head(name: &str, device: &Device) {
    let width = HEADS * WIDTH;
    let numbers = Random::new(2).normals(LENGTH * width);
    let x: Tensor<3> = floats(&numbers, [1, LENGTH, width], device);
    let config = || MultiHeadAttentionConfig::new(width, HEADS).with_causal(true);
    for (option, config) in [
        ("multi-head", config()),
        ("grouped heads", config().with_n_kv_heads(Some(1))),
        ("rotary", config().with_rotary(Some(RotaryConfig::new()))),
        (
            "normalised",
            config().with_qk_norm(Some(QkNorm::Rms { epsilon: 1e-6 })),
        ),
        (
            "extra keys",
            config().with_add_bias_kv(true).with_add_zero_attn(true),
        ),
    ] {
        let module = config.init(device);
        let bytes = peak(|| {
            let input = MhaInput::self_attn(x.clone().require_grad());
            module.forward(input).sum().backward();
        });
        check(name, option, bytes);
    }
}
