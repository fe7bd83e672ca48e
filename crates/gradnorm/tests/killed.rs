//! A process that is killed while it writes a log.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gradnorm::{RunLog, RunWriter};
use serde_json::json;

const DIR: &str = "GRADNORM_TEST_WRITER_DIR";

/// Not a test of its own: the process that the test below starts and kills.
#[test]
fn writer_that_never_ends() {
    let Some(dir) = env::var_os(DIR) else {
        return;
    };
    let mut run = RunWriter::create(dir, &json!({})).unwrap();
    for step in 0.. {
        let record = json!({"step": step, "loss": step, "padding": "x".repeat(500)});
        run.append(&record).unwrap();
    }
}

#[test]
fn a_killed_process_loses_at_most_the_line_it_was_writing() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("run");
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "writer_that_never_ends"])
        .env(DIR, &dir)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_for_lines(dir.join("metrics.jsonl"));
    child.kill().unwrap();
    child.wait().unwrap();

    let log = RunLog::read(&dir).unwrap().all_good().unwrap();
    let count = log.lines().len() as u64;
    assert!(count > 0);
    // Every line up to the last is there, whole and in order.
    assert!(log.lines().iter().map(|line| line.step()).eq(0..count));

    let mut run = RunWriter::resume(&dir).unwrap();
    run.append(&json!({"step": count})).unwrap();
    let log = RunLog::read(&dir).unwrap();
    assert_eq!(log.lines().last().unwrap().step(), count);
}

fn wait_for_lines(path: PathBuf) {
    let start = Instant::now();
    while fs::metadata(&path).map_or(0, |file| file.len()) < 100_000 {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "the writer does not write"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}
