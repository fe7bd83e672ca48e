//! The instruments on models that a user might write: probes, the doctor, and the logs.

mod faults;
mod healthy;
mod model;
mod probes;
mod user_model;

use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::tensor::Device;

/// Seeds a device's generator, which is global: tests that draw from it take turns.
fn seeded(device: &Device, seed: u64) -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    device.seed(seed);
    turn
}
