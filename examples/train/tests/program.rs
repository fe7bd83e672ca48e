//! The program as a user runs it.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use gradnorm::RunLog;
use serde_json::Value;

fn train(dir: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_train"))
        .current_dir(dir)
        .args(arguments)
        .output()
        .unwrap()
}

fn succeeds(dir: &Path, arguments: &[&str]) -> String {
    let output = train(dir, arguments);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {out}{err}");
    out
}

/// The message of a run of the program that must fail, and not by a panic.
fn fails(dir: &Path, arguments: &[&str]) -> String {
    let output = train(dir, arguments);
    let code = output.status.code();
    assert!(
        code == Some(1) || code == Some(2),
        "{arguments:?}: {code:?}"
    );
    let message = text(&output.stderr);
    assert!(!message.contains("panicked"), "{message}");
    message
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

const SMALL: [&str; 6] = ["--steps", "3", "--batch", "4", "--probe-every", "2"];

fn run(dir: &Path, out: &str, more: &[&str]) {
    let arguments = [&["run", "--d-k", "4", "--out", out], &SMALL[..], more].concat();
    succeeds(dir, &arguments);
}

#[test]
fn the_program_alone_compares_both_arms_and_says_where_it_put_everything() {
    let dir = tempfile::tempdir().unwrap();
    let arguments = [&["--d-k", "4,8", "--seeds", "2"], &SMALL[..]].concat();
    let out = succeeds(dir.path(), &arguments);
    let folder = dir.path().join("runs/comparison-1");
    assert!(out.contains("steps to 90 % accuracy"), "{out}");
    assert!(out.contains("Median over 2 seeds"), "{out}");
    assert!(
        out.contains("2 seeds of one task, with Adam at a learning rate of 0.001"),
        "{out}"
    );
    for name in ["overview", "learning", "gradients", "by_d_k"] {
        assert!(
            out.contains(&format!("Plot: runs/comparison-1/{name}.svg")),
            "{out}"
        );
        let plot = fs::read_to_string(folder.join(format!("{name}.svg"))).unwrap();
        for expected in ["<svg", "unscaled", "scaled by 1/√d_k", "median of 2 seeds"] {
            assert!(plot.contains(expected), "{name}.svg has no {expected}");
        }
    }
    for d_k in [4, 8] {
        for scale in ["inv_sqrt_dim", "unscaled"] {
            for seed in 0..2 {
                let run = folder.join(format!("d_k-{d_k}_{scale}_seed-{seed}"));
                let log = RunLog::read(run).unwrap().all_good().unwrap();
                assert_eq!(log.lines().len(), 3);
                assert_eq!(log.config()["scale"], scale);
            }
        }
    }
    let summary = fs::read_to_string(folder.join("summary.json")).unwrap();
    let summary: Value = serde_json::from_str(&summary).unwrap();
    assert_eq!(summary["seeds"], serde_json::json!([0, 1]));
    let row = &summary["rows"][0];
    assert_eq!(row["quantity"], "steps_to_learn");
    // Nobody learns this in three steps.
    assert_eq!(row["scaled"]["median"], "> 3");

    // The next one goes to a folder of its own.
    succeeds(
        dir.path(),
        &[&["--d-k", "4", "--seeds", "1"], &SMALL[..]].concat(),
    );
    assert!(dir.path().join("runs/comparison-2/summary.json").exists());
}

#[test]
fn a_run_is_resumed_with_its_own_arguments_and_those_that_are_given() {
    let dir = tempfile::tempdir().unwrap();
    let whole = [
        "run",
        "--d-k",
        "4",
        "--batch",
        "4",
        "--probe-every",
        "2",
        "--steps",
        "5",
    ];
    let more = ["--seed", "5", "--lr", "0.01", "--out", "whole"];
    succeeds(dir.path(), &[&whole[..], &more].concat());
    run(dir.path(), "a", &["--seed", "5", "--lr", "0.01"]);
    fn resumed<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
        [&["run", "--resume", "a"], arguments].concat()
    }
    let before = fs::read(dir.path().join("a/metrics.jsonl")).unwrap();
    assert_eq!(
        succeeds(dir.path(), &resumed(&[])),
        "a: finished, with 3 of at most 3 steps; nothing was changed\n"
    );
    for (arguments, expected) in [
        (
            &["--d-k", "64"][..],
            "error: --d-k 64: the run in a has 4, and a run goes on as it was started\n",
        ),
        (
            &["--steps", "2"],
            "error: --steps 2: the run in a has 3, and steps can only be raised\n",
        ),
        (&["--steps", "0"], "error: --steps 0: must be at least 1\n"),
    ] {
        assert_eq!(fails(dir.path(), &resumed(arguments)), expected);
    }
    let message = fails(dir.path(), &resumed(&["--out", "b"]));
    assert!(message.contains("cannot be used with"), "{message}");
    assert_eq!(
        fails(dir.path(), &["run", "--resume", "nowhere"]),
        "error: nowhere: holds no run: it has no config.json\n"
    );
    assert_eq!(
        fs::read(dir.path().join("a/metrics.jsonl")).unwrap(),
        before
    );

    let out = succeeds(dir.path(), &resumed(&["--steps", "5", "--seed", "5"]));
    assert!(
        out.starts_with("Went on with step 3\nstep 4: loss "),
        "{out}"
    );
    for file in ["metrics.jsonl", "config.json"] {
        let read = |run: &str| fs::read_to_string(dir.path().join(run).join(file)).unwrap();
        assert_eq!(read("a"), read("whole"));
    }
}

#[test]
fn runs_are_compared_in_every_format() {
    let dir = tempfile::tempdir().unwrap();
    run(dir.path(), "a", &[]);
    run(dir.path(), "b", &["--scale", "unscaled"]);
    let table = succeeds(dir.path(), &["compare", "a", "b"]);
    for expected in [
        "loss\n",
        "grad_norm.query\n",
        "b / a",
        "accuracy >= 0.9 (mean of 20)",
    ] {
        assert!(table.contains(expected), "{table}");
    }
    assert!(!table.contains("params"), "{table}");
    let json = succeeds(dir.path(), &["compare", "a", "b", "--format", "json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["runs"], serde_json::json!(["a", "b"]));
    let csv = succeeds(
        dir.path(),
        &["compare", "a", "b", "--format", "csv", "--quantity", "loss"],
    );
    assert!(
        csv.starts_with("quantity,step,run,value,ratio\nloss,0,a,"),
        "{csv}"
    );
}

#[test]
fn several_runs_an_arm_are_compared_in_pairs() {
    let dir = tempfile::tempdir().unwrap();
    for seed in ["0", "1", "2"] {
        run(dir.path(), &format!("scaled-{seed}"), &["--seed", seed]);
        let more = ["--seed", seed, "--scale", "unscaled"];
        run(dir.path(), &format!("unscaled-{seed}"), &more);
    }
    let arms = [
        "compare",
        "--arm",
        "scaled",
        "scaled-0",
        "scaled-1",
        "scaled-2",
        "--arm",
        "unscaled",
        // In another order: pairs go by the seed.
        "unscaled-2",
        "unscaled-1",
        "unscaled-0",
    ];
    let table = succeeds(dir.path(), &arms);
    for expected in [
        "unscaled against scaled: 3 pairs by seed (0, 1, 2); they differ in scale, factor\n",
        "pairs",
        "unscaled - scaled",
        "95 % interval",
        "unscaled / scaled",
        "accuracy >= 0.9 (mean of 20)",
    ] {
        assert!(table.contains(expected), "{table}");
    }

    let json = succeeds(dir.path(), &[&arms[..], &["--format", "json"]].concat());
    let json: Value = serde_json::from_str(&json).unwrap();
    let norms = |arm: &str| -> Vec<f64> {
        let norm = |seed| {
            let log = RunLog::read(dir.path().join(format!("{arm}-{seed}"))).unwrap();
            log.lines()[0].number("grad_norm.query").unwrap()
        };
        (0..3).map(norm).collect()
    };
    let (scaled, unscaled) = (norms("scaled"), norms("unscaled"));
    let mean = |values: &[f64]| values.iter().sum::<f64>() / 3.0;
    let quantities = json["against"][0]["quantities"].as_array().unwrap();
    let query = quantities
        .iter()
        .find(|quantity| quantity["name"] == "grad_norm.query")
        .unwrap();
    let row = &query["rows"][0];
    let near = |value: &Value, expected: f64| {
        let value = value.as_f64().unwrap();
        assert!((value / expected - 1.0).abs() < 1e-9, "{value} {expected}");
    };
    assert_eq!(row["pairs"], 3);
    near(&row["reference"], mean(&scaled));
    near(&row["arm"], mean(&unscaled));
    near(&row["difference"]["mean"], mean(&unscaled) - mean(&scaled));
    assert!(row["ratio"]["interval"][0].as_f64() < row["ratio"]["interval"][1].as_f64());

    for (arguments, expected) in [
        (
            &arms[..6],
            "error: --arm scaled: there must be another --arm to compare it with\n",
        ),
        (
            &[
                "compare", "--arm", "a", "scaled-0", "--arm", "a", "scaled-1",
            ],
            "error: --arm a: given twice; name all its runs at once\n",
        ),
        (
            &["compare", "--arm", "a", "scaled-0", "--arm", "b", "nowhere"],
            "error: nowhere: holds no run: it has no config.json\n",
        ),
        (
            &[
                "compare", "--arm", "a", "scaled-0", "--arm", "b", "scaled-1",
            ],
            "error: nothing to compare: no two runs of different arms have the same seed\n",
        ),
    ] {
        assert_eq!(fails(dir.path(), arguments), expected);
    }
    for (arguments, expected) in [
        (&["compare", "--arm", "a"][..], "--arm"),
        (&["compare", "x", "y", "--arm", "a", "b"], "cannot be used"),
        (&["compare", "x", "y", "--pair-by", "lr"], "cannot be used"),
    ] {
        let message = fails(dir.path(), arguments);
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn logs_are_written_for_tensorboard_into_a_folder_a_run() {
    let dir = tempfile::tempdir().unwrap();
    run(dir.path(), "a", &[]);
    let event_file = |run: &str| dir.path().join(run).join("events.out.tfevents.gradnorm");
    assert_eq!(
        succeeds(dir.path(), &["tensorboard", "a", "--out", "board"]),
        "1 run; to see it: tensorboard --logdir board\n"
    );
    let first = fs::read(event_file("board/a")).unwrap();

    // A second one beside it, and half a line in the first.
    run(dir.path(), "b", &["--seed", "1"]);
    let log = dir.path().join("a/metrics.jsonl");
    let torn = fs::read_to_string(&log).unwrap() + "{\"step\": 9, \"lo";
    fs::write(&log, torn).unwrap();
    let output = train(dir.path(), &["tensorboard", "a", "b", "--out", "board"]);
    assert_eq!(
        text(&output.stdout),
        "2 runs; to see them: tensorboard --logdir board\n"
    );
    assert_eq!(
        text(&output.stderr),
        "note: left out: a/metrics.jsonl: line 4: half-written: not JSON at column 15: EOF while \
         parsing a string\n"
    );
    assert_eq!(fs::read(event_file("board/a")).unwrap(), first);
    assert_ne!(fs::read(event_file("board/b")).unwrap(), first);

    for (arguments, expected) in [
        (&["a", "b", "a"][..], "error: a: given twice\n"),
        (
            &["nowhere"],
            "error: nowhere: holds no run: it has no config.json\n",
        ),
    ] {
        let arguments = [&["tensorboard", "--out", "other"], arguments].concat();
        assert_eq!(fails(dir.path(), &arguments), expected);
    }
    assert!(!dir.path().join("other").exists());
}

#[test]
fn runs_that_cannot_be_compared_are_said_so_by_name() {
    let dir = tempfile::tempdir().unwrap();
    run(dir.path(), "a", &[]);
    let other = dir.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("config.json"), r#"{"task": "sums"}"#).unwrap();
    fs::write(other.join("metrics.jsonl"), r#"{"step": 0, "loss": 1}"#).unwrap();
    let output = train(dir.path(), &["compare", "a", "other"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("other: not compared: its task is \"sums\""));
    assert!(text(&output.stderr).contains("nothing to compare: of 2 runs"));
    let message = fails(dir.path(), &["compare", "a", "nowhere"]);
    assert!(message.contains("nowhere: holds no run"), "{message}");
}

#[test]
fn what_is_wrong_with_an_argument_is_said_with_its_name() {
    let dir = tempfile::tempdir().unwrap();
    for (arguments, expected) in [
        (&["--batch", "0"][..], "--batch 0: must be at least 1"),
        (
            &["run", "--lr", "nan"],
            "--lr NaN: must be a positive number",
        ),
        (&["run", "--d-k", "0"], "--d-k 0: must be at least 1"),
        (&["--d-k", "32,0"], "--d-k 0: must be at least 1"),
        (&["--seeds", "0"], "--seeds"),
        (
            &["run", "--heads", "100000"],
            "--d-k 64: with --heads 100000",
        ),
        (&["run", "--scale", "sqrt"], "scale is sqrt, but must be"),
        (&["run", "--optimizer", "adamw"], "--optimizer"),
        (&["run", "--backend", "tpu"], "--backend"),
        (&["compare", "a"], "DIR"),
        (&["compare", "a", "b", "--format", "xml"], "--format"),
        (&["compare", "a", "b", "--window", "0"], "--window"),
        (&["--steps", "5", "figures"], "cannot be used"),
        (&["claims", "--jobs", "0"], "--jobs"),
        (&["claims", "--backend", "tpu"], "--backend"),
    ] {
        let message = fails(dir.path(), arguments);
        assert!(message.contains(expected), "{arguments:?}: {message}");
    }
    assert!(
        !dir.path().join("runs").exists(),
        "a refused run leaves no folder"
    );
}

#[test]
#[cfg(not(feature = "cuda"))]
fn a_backend_that_is_not_part_of_the_build_is_an_error_that_names_its_feature() {
    let dir = tempfile::tempdir().unwrap();
    let message = fails(dir.path(), &["run", "--backend", "cuda"]);
    assert!(
        message.contains("cargo run --release -p train --features cuda"),
        "{message}"
    );
}

#[test]
fn a_folder_with_something_in_it_is_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    run(dir.path(), "a", &[]);
    let before = fs::read(dir.path().join("a/metrics.jsonl")).unwrap();
    for arguments in [
        &["run", "--out", "a"][..],
        &["--out", "a"],
        &["claims", "--quick", "--out", "a"],
    ] {
        let message = fails(dir.path(), arguments);
        assert!(message.contains("--out a: not empty"), "{message}");
    }
    let file = fails(dir.path(), &["run", "--out", "a/metrics.jsonl"]);
    assert!(file.contains("a/metrics.jsonl: cannot create"), "{file}");
    assert_eq!(
        fs::read(dir.path().join("a/metrics.jsonl")).unwrap(),
        before
    );
}

#[test]
fn figures_are_printed_beside_theory() {
    let dir = tempfile::tempdir().unwrap();
    let out = succeeds(dir.path(), &["figures"]);
    assert!(
        out.contains("softmax of the scores 8, 2, 0, d = 64, inv_sqrt_dim"),
        "{out}"
    );
}
