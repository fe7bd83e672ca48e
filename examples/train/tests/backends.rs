//! All backends of the build, beside the first of them: the program, run once on each.

use std::process::Command;

use clap::ValueEnum;
use gradnorm::{LogLine, RunLog};
use train::Backend;

#[test]
fn every_backend_begins_with_the_same_loss_and_gradient_norms() {
    let dir = tempfile::tempdir().unwrap();
    let mut first: Option<LogLine> = None;
    for backend in Backend::value_variants() {
        let name = backend.to_string();
        let output = Command::new(env!("CARGO_BIN_EXE_train"))
            .current_dir(dir.path())
            .args(["run", "--steps", "1", "--backend", &name, "--out", &name])
            .output()
            .unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            let absent = ["not part of this build", "no device of it can be used here"];
            let is_absent = absent.iter().any(|reason| message.contains(reason));
            assert!(is_absent, "{name}: {message}");
            println!("not covered: {name}");
            continue;
        }
        println!("covered: {name}");
        let log = RunLog::read(dir.path().join(&name)).unwrap();
        let line = &log.lines()[0];
        let reference = first.get_or_insert_with(|| line.clone());
        let mut numbers = 0;
        reference.for_each_number(|path, expected| {
            // Of a vanishing gradient, backends keep different last digits.
            if path.ends_with("p10") {
                return;
            }
            let number = line.number(path).unwrap();
            assert!(
                (number - expected).abs() <= 1e-4 * expected.abs(),
                "{name}: {path} is {number}, on the first backend {expected}"
            );
            numbers += 1;
        });
        assert!(numbers > 20, "{name} logged {numbers} numbers");
    }
    assert!(first.is_some(), "no backend could be used");
}
