//! Random combinations of all options against the f64 reference, forward and backward.
//!
//! 500 combinations a backend in the ordinary run; `ATTENTION_COMBINATIONS=5000` runs more. A
//! combination that fails names its seed, and `ATTENTION_SEED=...` runs that one alone.

mod check;
mod draw;
mod multi_head;

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::{DType, Device};
use tests::{Random, on_each_backend, on_each_backend_with};

/// How many combinations each property is tried on.
fn combinations() -> u64 {
    number("ATTENTION_COMBINATIONS").unwrap_or(500)
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{variable} is {text}, but must be a number")))
}

/// Tries a property on every seed of this part of the run; several parts run side by side.
fn try_each(part: u64, parts: u64, device: &Device, property: impl Fn(u64, &Device) -> String) {
    let seeds: Vec<u64> = match number("ATTENTION_SEED") {
        Some(seed) => vec![seed],
        None => (0..combinations())
            .filter(|seed| seed % parts == part)
            .collect(),
    };
    // A panic is what is wrong with its combination, and no reason to leave out the others.
    let outcome = |seed| {
        let attempt = catch_unwind(AssertUnwindSafe(|| property(seed, device)));
        attempt.unwrap_or_else(|_| "a panic, as above".into())
    };
    let failed: Vec<String> = seeds
        .iter()
        .map(|seed| (seed, outcome(*seed)))
        .filter(|(_, wrong)| !wrong.is_empty())
        .map(|(seed, wrong)| format!("ATTENTION_SEED={seed}: {wrong}"))
        .collect();
    assert!(
        failed.is_empty(),
        "{} of {} combinations failed\n{}",
        failed.len(),
        seeds.len(),
        failed.join("\n")
    );
}

fn attention(seed: u64, device: &Device) -> String {
    let mut random = Random::new(seed);
    let problem = draw::problem(&mut random);
    let upstream = draw::upstream(&problem, &mut random);
    check::attention(&problem, &upstream, DType::F32, device)
}

// Halves, so that two processes share the work.

#[test]
fn attention_is_that_of_the_reference_for_any_options() {
    on_each_backend(|device| try_each(0, 2, device, attention));
}

#[test]
fn attention_is_that_of_the_reference_for_any_other_options() {
    on_each_backend(|device| try_each(1, 2, device, attention));
}

#[test]
fn attention_in_f64_has_the_digits_of_f64_for_any_options() {
    on_each_backend_with(DType::F64, |device| {
        try_each(0, 8, device, |seed, device| {
            let mut random = Random::new(seed);
            let problem = draw::problem(&mut random);
            let upstream = draw::upstream(&problem, &mut random);
            check::attention(&problem, &upstream, DType::F64, device)
        });
    });
}

#[test]
fn attention_in_f16_has_the_digits_of_f16_for_any_options() {
    on_each_backend_with(DType::F16, |device| {
        try_each(1, 8, device, |seed, device| {
            let mut random = Random::new(seed);
            let mut problem = draw::problem(&mut random);
            let mut upstream = draw::upstream(&problem, &mut random);
            draw::round_to_f16(&mut problem, &mut upstream);
            check::attention(&problem, &upstream, DType::F16, device)
        });
    });
}

#[test]
fn multi_head_attention_is_that_of_the_reference_for_any_options() {
    on_each_backend(|device| try_each(0, 2, device, multi_head::forward_and_gradients));
}

#[test]
fn any_split_through_any_cache_gives_what_one_pass_gives() {
    on_each_backend(|device| try_each(1, 2, device, multi_head::cache_splits));
}
