//! Disks that are full or cannot be written to.
#![cfg(target_os = "linux")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use gradnorm::RunLog;
use train::Checkpoint;

/// Runs a line of the shell in which `$train` is the program.
fn shell(dir: &Path, line: &str) -> Output {
    let program = env!("CARGO_BIN_EXE_train");
    let mut command = Command::new("sh");
    command.current_dir(dir).env("train", program);
    command.args(["-c", line]).output().unwrap()
}

fn succeeds(dir: &Path, line: &str) {
    let output = shell(dir, line);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {err}");
}

/// The message of a command that must fail.
fn fails(dir: &Path, line: &str) -> String {
    let output = shell(dir, line);
    assert_eq!(output.status.code(), Some(1), "{line}");
    String::from_utf8(output.stderr).unwrap()
}

const RUN: &str = "$train run --d-k 8 --batch 4";
/// A file may have 16 blocks of 512 bytes: a write beyond that fails as on a full disk.
const SMALL_DISK: &str = "trap '' XFSZ; ulimit -f 16;";

fn log(dir: &Path, run: &str) -> String {
    fs::read_to_string(dir.join(run).join("metrics.jsonl")).unwrap()
}

#[test]
fn a_log_that_the_disk_cannot_take_is_an_error_and_ends_with_a_whole_line() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    succeeds(dir, &format!("{RUN} --steps 12 --out whole"));
    assert!(log(dir, "whole").len() > 16 * 512);
    assert_eq!(
        fails(dir, &format!("{SMALL_DISK} {RUN} --steps 12 --out cut")),
        "error: cut/metrics.jsonl: cannot append to: File too large (os error 27)\n"
    );
    let read = RunLog::read(dir.join("cut")).unwrap();
    assert!(read.bad_lines().is_empty());
    assert!(!read.lines().is_empty());
    let cut = log(dir, "cut");
    assert!(cut.ends_with("}\n"));
    assert!(log(dir, "whole").starts_with(&cut));

    succeeds(dir, "$train run --resume cut");
    assert_eq!(log(dir, "cut"), log(dir, "whole"));
}

#[test]
fn a_checkpoint_that_the_disk_cannot_take_is_an_error_and_the_one_before_it_stays() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let run = format!("{RUN} --log-every 100");
    succeeds(dir, &format!("{run} --steps 5 --out whole"));
    succeeds(dir, &format!("{run} --steps 3 --out cut"));
    assert_eq!(
        fails(
            dir,
            &format!("{SMALL_DISK} $train run --resume cut --steps 5")
        ),
        "error: cut/checkpoint.partial/optimizer.bpk: cannot write: File too large (os error 27)\n"
    );
    let checkpoint = Checkpoint::latest(&dir.join("cut")).unwrap().unwrap();
    assert_eq!(checkpoint.step(), 3);

    succeeds(dir, "$train run --resume cut");
    assert_eq!(log(dir, "cut"), log(dir, "whole"));
    assert!(!dir.join("cut/checkpoint.partial").exists());
}

#[test]
fn a_place_that_cannot_be_written_to_is_an_error_before_anything_is_computed() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    for (out, expected) in [
        ("/proc/run", "No such file or directory (os error 2)"),
        ("file/run", "Not a directory (os error 20)"),
    ] {
        assert_eq!(
            fails(dir.path(), &format!("{RUN} --out {out}")),
            format!("error: {out}: cannot create: {expected}\n")
        );
    }
    // Not for the superuser, for whom no directory is read-only.
    succeeds(dir.path(), "mkdir -m 555 locked");
    if shell(dir.path(), "test -w locked").status.code() == Some(1) {
        assert_eq!(
            fails(dir.path(), &format!("{RUN} --out locked")),
            "error: locked/metrics.jsonl: cannot open: Permission denied (os error 13)\n"
        );
    }
}

#[test]
fn what_standard_output_cannot_take_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    succeeds(dir.path(), &format!("{RUN} --steps 1 --out a"));
    let full = "error: standard output: cannot write: No space left on device (os error 28)\n";
    for line in [
        format!("{RUN} --steps 1 --out b"),
        "$train compare a a".to_string(),
        "$train compare a a --format csv".to_string(),
    ] {
        assert_eq!(fails(dir.path(), &format!("{line} > /dev/full")), full);
    }
    // The run itself was made.
    assert_eq!(log(dir.path(), "b"), log(dir.path(), "a"));
}
