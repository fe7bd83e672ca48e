//! All backends of the build, beside the first of them.

use clap::ValueEnum;
use train::{Backend, Record, RunConfig, train};

#[test]
fn every_backend_begins_with_the_same_loss_and_gradient_norms() {
    let first_step = |backend: Backend| -> Option<Record> {
        let config = RunConfig {
            d_k: 64,
            steps: 1,
            backend,
            ..RunConfig::default()
        };
        let device = match backend.device() {
            Ok(device) => device,
            Err(error) => {
                println!("not covered: {error}");
                return None;
            }
        };
        println!("covered: {backend}");
        Some(
            train(&config, &device, |_| Ok(()))
                .unwrap()
                .records
                .remove(0),
        )
    };
    let records: Vec<Record> = Backend::value_variants()
        .iter()
        .filter_map(|backend| first_step(*backend))
        .collect();
    let reference = numbers(&records[0]);
    assert!(reference.len() > 14);
    for record in &records[1..] {
        for ((name, a), (_, b)) in reference.iter().zip(numbers(record)) {
            assert!((a - b).abs() <= 1e-4 * a.abs(), "{name}: {a} and {b}");
        }
    }
}

fn numbers(record: &Record) -> Vec<(String, f64)> {
    let params = record.grad_norm.params.iter();
    let mut numbers: Vec<(String, f64)> = params
        .map(|(path, norm)| (path.to_string(), norm))
        .collect();
    let statistics = &record.attention.as_ref().unwrap()[0];
    let gradient = statistics.score_grad.unwrap();
    for (name, number) in [
        ("loss", record.loss),
        ("accuracy", record.accuracy),
        ("all", record.grad_norm.all),
        ("score_std", statistics.score_std),
        ("max_weight", statistics.max_weight),
        ("entropy", statistics.entropy),
        ("score_grad.mean", gradient.mean),
        ("score_grad.p50", gradient.p50),
    ] {
        numbers.push((name.to_string(), number));
    }
    numbers
}
