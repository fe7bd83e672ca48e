//! The program, killed while it trains.
#![cfg(unix)]

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use gradnorm::RunLog;
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use train::{Checkpoint, RunConfig};

/// How often the program is killed.
const KILLS: usize = 50;
const SIGKILL: i32 = 9;
const STEPS: &str = "60";

fn train(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_train"));
    let kept = ["--checkpoint-every", "4"];
    command.current_dir(dir).args([arguments, &kept].concat());
    command.stdout(Stdio::null()).stderr(Stdio::inherit());
    command
}

fn started(dir: &Path, out: &str) -> Command {
    let small = ["--d-k", "8", "--batch", "8", "--steps", STEPS];
    train(dir, &[&["run", "--out", out], &small[..]].concat())
}

/// How a process ends that is killed after a while, if it has not ended by then.
fn killed_after(mut command: Command, delay: Duration) -> ExitStatus {
    let mut child = command.spawn().unwrap();
    thread::sleep(delay);
    // An error says that it has ended.
    let _ = child.kill();
    child.wait().unwrap()
}

/// What is left of a run can be read: whole lines in order, perhaps half a one, and a checkpoint,
/// if there is one, that does not go beyond them.
fn can_be_read(run: &Path) {
    let log = RunLog::read(run).unwrap().all_good().unwrap();
    let lines = log.lines().len() as u64;
    assert!(log.lines().iter().map(|line| line.step()).eq(0..lines));
    if let Some(checkpoint) = Checkpoint::latest(run).unwrap() {
        assert!(checkpoint.step() <= lines);
        let config = RunConfig::of_run(run).unwrap();
        let device = config.backend.device().unwrap();
        checkpoint.model(&config, &device).unwrap();
    }
}

#[test]
fn a_run_killed_at_any_moment_can_be_read_and_goes_on_to_the_log_of_one_that_was_not() {
    let dir = tempfile::tempdir().unwrap();
    let begun = Instant::now();
    assert!(started(dir.path(), "whole").status().unwrap().success());
    let most = begun.elapsed();
    let whole = fs::read(dir.path().join("whole/metrics.jsonl")).unwrap();

    let run = dir.path().join("cut");
    let mut generator = ChaCha8Rng::seed_from_u64(0);
    let (mut kills, mut finished) = (0, 0);
    let go_on = || match run.join("config.json").exists() {
        true => train(dir.path(), &["run", "--resume", "cut"]),
        // Killed before there was a run, if it was started at all.
        false => started(dir.path(), "cut"),
    };
    let same = || fs::read(run.join("metrics.jsonl")).unwrap() == whole;
    while kills < KILLS {
        let status = killed_after(go_on(), most.mul_f64(generator.random()));
        if run.join("config.json").exists() {
            can_be_read(&run);
        }
        if status.signal() == Some(SIGKILL) {
            kills += 1;
            continue;
        }
        // It was as quick as that: the next one starts at the beginning.
        assert!(status.success(), "after {kills} kills");
        assert!(same(), "after {kills} kills");
        fs::remove_dir_all(&run).unwrap();
        finished += 1;
        assert!(
            finished < 10 * KILLS,
            "the program ends before it can be killed"
        );
    }
    assert!(go_on().status().unwrap().success());
    assert!(same());
    can_be_read(&run);
}
