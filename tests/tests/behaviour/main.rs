//! The rules that hold on every path, each on every backend compiled in.

mod dropout;
mod edges;
mod errors;
mod gradients;
mod masking;
mod precision;
mod probe;
mod threads;
mod tiles;

use burn::tensor::Device;
use tests::Random;
use tests::backends;
use tests::reference::Problem;
use tests::reference::Upstream;

#[test]
fn the_backends_covered_are_named() {
    let names: Vec<_> = backends().iter().map(|backend| backend.name).collect();
    println!("backends covered: {}", names.join(", "));
    assert!(!names.is_empty(), "no backend is compiled in");
}

/// A loss that uses the context alone.
fn context_loss(problem: &Problem, random: &mut Random) -> Upstream {
    Upstream {
        context: random.normals(problem.sizes.context().iter().product()),
        ..Upstream::default()
    }
}

/// The autodiff device of a device.
fn autodiff(device: &Device) -> Device {
    device.clone().autodiff()
}
