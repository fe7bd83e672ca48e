//! The claims, each with the figures that decide it.

mod collapse;
mod examples;
mod factor;
mod large;
mod norms;
mod rates;
mod saturation;
mod speed;
mod stacks;
mod start;
mod variance;

use super::claim::Claim;
use super::results::Results;

pub(super) use rates::learning_steps;
pub(super) use stacks::name as stack_name;

/// All of them, by number.
pub(super) fn claims(results: &Results) -> Vec<Claim> {
    vec![
        variance::claim(results),
        factor::claim(results),
        saturation::claim(results),
        collapse::claim(results),
        norms::claim(results),
        speed::claim(results),
        rates::claim(results),
        start::claim(results),
        large::claim(results),
        examples::claim(results),
        stacks::claim(results),
    ]
}
