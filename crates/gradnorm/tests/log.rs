//! Run logs on disk: what is written, refused, survived and reported.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

use gradnorm::{LogError, RunLog, RunWriter};
use serde::Serialize;
use serde_json::json;
use tempfile::TempDir;

fn run_with(metrics: &[u8]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("config.json"), "{}").unwrap();
    fs::write(dir.path().join("metrics.jsonl"), metrics).unwrap();
    dir
}

fn metrics(dir: &Path) -> String {
    fs::read_to_string(dir.join("metrics.jsonl")).unwrap()
}

fn steps(log: &RunLog) -> Vec<u64> {
    log.lines().iter().map(|line| line.step()).collect()
}

fn files(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_run_is_two_files_that_read_back_as_written() {
    #[derive(Serialize)]
    struct Config {
        task: &'static str,
        lr: f64,
    }
    #[derive(Serialize)]
    struct Record {
        step: u64,
        loss: f32,
        grad_norm: Norms,
        attention: Vec<Layer>,
    }
    #[derive(Serialize)]
    struct Norms {
        all: f64,
        value: Option<f64>,
    }
    #[derive(Serialize)]
    struct Layer {
        entropy: f64,
    }

    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("deep/run");
    let config = Config {
        task: "recall",
        lr: 1e-3,
    };
    let mut run = RunWriter::create(&dir, &config).unwrap();
    assert_eq!(run.dir(), dir);
    run.append(&Record {
        step: 3,
        loss: 0.1,
        grad_norm: Norms {
            all: 0.1 + 0.2,
            value: None,
        },
        attention: vec![Layer { entropy: 0.75 }],
    })
    .unwrap();

    assert_eq!(files(&dir), ["config.json", "metrics.jsonl"]);
    assert_eq!(
        fs::read_to_string(dir.join("config.json")).unwrap(),
        "{\n  \"task\": \"recall\",\n  \"lr\": 0.001\n}\n"
    );
    assert_eq!(
        metrics(&dir),
        "{\"schema\":1,\"step\":3,\"loss\":0.1,\"grad_norm\":{\"all\":0.30000000000000004,\
         \"value\":null},\"attention\":[{\"entropy\":0.75}]}\n"
    );

    let log = RunLog::read(&dir).unwrap().all_good().unwrap();
    assert_eq!(log.dir(), dir);
    assert_eq!(log.config()["lr"], 0.001);
    let line = &log.lines()[0];
    assert_eq!((line.line(), line.step()), (1, 3));
    assert_eq!(line.number("loss"), Some(0.1));
    assert_eq!(line.number("grad_norm.all"), Some(0.1 + 0.2));
    assert_eq!(line.number("grad_norm.value"), None);
    assert_eq!(line.number("attention.0.entropy"), Some(0.75));
    assert_eq!(line.number("attention.1.entropy"), None);
    let mut numbers = Vec::new();
    line.for_each_number(|path, value| numbers.push((path.to_string(), value)));
    let paths: Vec<&str> = numbers.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "schema",
            "step",
            "loss",
            "grad_norm.all",
            "attention.0.entropy"
        ]
    );
    for (path, value) in &numbers {
        assert_eq!(line.number(path), Some(*value));
    }
}

#[test]
fn a_field_with_dots_in_its_name_is_found_by_its_path() {
    let dir = run_with(br#"{"step":0,"params":{"layers.0.query.weight":2.5,"layers":{"x":1}}}"#);
    let log = RunLog::read(dir.path()).unwrap();
    let line = &log.lines()[0];
    assert_eq!(line.number("params.layers.0.query.weight"), Some(2.5));
    assert_eq!(line.number("params.layers.x"), Some(1.0));
    assert_eq!(line.number("params.layers.0.query"), None);
}

#[test]
fn nan_and_infinity_are_read_back_as_they_were_written() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let mut writer = RunWriter::create(&run, &json!({})).unwrap();

    #[derive(Serialize)]
    struct Record {
        step: u64,
        wide: [f64; 3],
        narrow: f32,
    }
    let wide = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    writer
        .append(&Record {
            step: 0,
            wide,
            narrow: f32::NAN,
        })
        .unwrap();

    assert_eq!(
        metrics(&run),
        "{\"schema\":1,\"step\":0,\"wide\":[\"NaN\",\"inf\",\"-inf\"],\"narrow\":\"NaN\"}\n"
    );
    let log = RunLog::read(&run).unwrap();
    let line = &log.lines()[0];
    for (index, value) in wide.into_iter().enumerate() {
        let read = line.number(&format!("wide.{index}")).unwrap();
        assert_eq!(read.to_bits(), value.to_bits());
    }
    assert!(line.number("narrow").unwrap().is_nan());
}

#[test]
fn a_directory_that_holds_a_run_is_refused_and_not_touched() {
    for occupied_by in ["config.json", "metrics.jsonl"] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(occupied_by), "{\"step\":0}\n").unwrap();
        let error = RunWriter::create(dir.path(), &json!({})).err().unwrap();
        assert_eq!(
            error.to_string(),
            format!(
                "{}: already holds a run; choose another directory, or resume the run",
                dir.path().display()
            )
        );
        assert_eq!(files(dir.path()), [occupied_by]);
        assert_eq!(
            fs::read_to_string(dir.path().join(occupied_by)).unwrap(),
            "{\"step\":0}\n"
        );
    }
}

#[test]
fn a_directory_with_other_files_or_the_remains_of_a_killed_start_is_not_a_run() {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("notes.txt", "mine"),
        ("metrics.jsonl", ""),
        (".config.json.tmp", "{"),
    ] {
        fs::write(dir.path().join(name), text).unwrap();
    }
    RunWriter::create(dir.path(), &json!({"lr": 1})).unwrap();
    assert_eq!(
        files(dir.path()),
        ["config.json", "metrics.jsonl", "notes.txt"]
    );
    assert_eq!(RunLog::read(dir.path()).unwrap().config()["lr"], 1);
}

#[test]
fn a_directory_is_vacant_until_it_holds_more_than_the_remains_of_a_killed_start() {
    let dir = tempfile::tempdir().unwrap();
    let vacant = || RunWriter::is_vacant(dir.path()).unwrap();
    assert!(vacant());
    fs::write(dir.path().join("metrics.jsonl"), "").unwrap();
    fs::write(dir.path().join(".config.json.tmp"), "{").unwrap();
    assert!(vacant());
    fs::write(dir.path().join("metrics.jsonl"), "{").unwrap();
    assert!(!vacant());
    fs::write(dir.path().join("metrics.jsonl"), "").unwrap();
    fs::write(dir.path().join("notes.txt"), "").unwrap();
    assert!(!vacant());

    let nowhere = dir.path().join("nowhere");
    assert_eq!(
        RunWriter::is_vacant(&nowhere).unwrap_err().to_string(),
        format!(
            "{}: cannot read: No such file or directory (os error 2)",
            nowhere.display()
        )
    );
}

#[test]
fn two_writers_do_not_share_a_run() {
    let dir = tempfile::tempdir().unwrap();
    let first = RunWriter::create(dir.path(), &json!({})).unwrap();
    let error = RunWriter::resume(dir.path()).err().unwrap();
    assert_eq!(
        error.to_string(),
        format!("{}: another writer has this run open", dir.path().display())
    );
    drop(first);
    RunWriter::resume(dir.path()).unwrap();
}

#[test]
fn a_config_that_is_no_object_is_refused_before_anything_is_made() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("run");
    let error = RunWriter::create(&dir, &json!([1])).err().unwrap();
    assert_eq!(
        error.to_string(),
        format!(
            "{}/config.json: not a config: a config is a JSON object",
            dir.display()
        )
    );
    assert!(!dir.exists());
}

#[test]
fn a_directory_that_cannot_be_made_is_named() {
    let parent = tempfile::tempdir().unwrap();
    let file = parent.path().join("file");
    fs::write(&file, "").unwrap();
    let dir = file.join("run");
    let error = RunWriter::create(&dir, &json!({})).err().unwrap();
    assert_eq!(
        error.to_string(),
        format!(
            "{}: cannot create: Not a directory (os error 20)",
            dir.display()
        )
    );
}

#[test]
fn a_record_that_is_none_is_refused_and_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut run = RunWriter::create(dir.path(), &json!({})).unwrap();
    let cases = [
        (json!(3), "not a JSON object, but a number"),
        (json!({}), "it has no field `step`"),
        (json!({"loss": 1}), "it has no field `step`"),
        (
            json!({"step": -1}),
            "its step is -1, which is not a whole number from 0 up",
        ),
        (
            json!({"step": 0, "schema": 1}),
            "it has a field `schema`, which the writer adds",
        ),
    ];
    for (record, why) in cases {
        let error = run.append(&record).unwrap_err();
        let path = dir.path().join("metrics.jsonl");
        assert_eq!(
            error.to_string(),
            format!("{}: record not written: {why}", path.display())
        );
    }
    assert_eq!(metrics(dir.path()), "");
    run.append(&json!({"step": 0})).unwrap();
    assert_eq!(metrics(dir.path()), "{\"schema\":1,\"step\":0}\n");
}

#[test]
fn a_half_written_last_line_is_reported_and_the_rest_is_read() {
    let text = b"{\"step\":0}\n{\"step\":1}\n{\"step\":2,\"lo";
    let dir = run_with(text);
    let log = RunLog::read(dir.path()).unwrap().all_good().unwrap();

    assert_eq!(steps(&log), [0, 1]);
    let torn = log.torn_line().unwrap();
    assert_eq!((torn.line, torn.torn), (3, true));
    assert_eq!(
        torn.to_string(),
        format!(
            "{}: line 3: half-written: not JSON at column 13: EOF while parsing a string",
            dir.path().join("metrics.jsonl").display()
        )
    );
    assert_eq!(metrics(dir.path()).as_bytes(), text);
}

#[test]
fn a_last_line_that_lacks_only_its_newline_is_a_line() {
    let dir = run_with(b"{\"step\":0}\n{\"step\":1}");
    let log = RunLog::read(dir.path()).unwrap();
    assert_eq!(steps(&log), [0, 1]);
    assert!(log.torn_line().is_none());
}

#[test]
fn bad_lines_are_listed_with_file_number_and_reason_and_the_rest_is_read() {
    let dir = run_with(
        b"{\"step\":0}\n\
          {\"step\":1,}\n\
          \r\n\
          {\"loss\":2}\n\
          [3]\n\
          {\"step\":4.5}\n\
          {\"step\":5,\"schema\":\"two\"}\n\
          {\"step\":6,\"name\":\"\xff\"}\n\
          {\"step\":7,\"loss\":NaN}\n\
          {\"step\":8}\r\n",
    );
    let log = RunLog::read(dir.path()).unwrap();
    assert_eq!(steps(&log), [0, 8]);
    assert_eq!(log.lines()[1].line(), 10);
    let path = dir.path().join("metrics.jsonl");
    let bad: Vec<String> = log.bad_lines().iter().map(ToString::to_string).collect();
    let expected: Vec<String> = [
        "line 2: not JSON at column 11: trailing comma",
        "line 4: it has no field `step`",
        "line 5: not a JSON object, but an array",
        "line 6: its step is 4.5, which is not a whole number from 0 up",
        "line 7: \"two\" is no schema version",
        "line 8: not UTF-8 from byte 19",
        "line 9: not JSON at column 18: expected value",
    ]
    .iter()
    .map(|text| format!("{}: {text}", path.display()))
    .collect();
    assert_eq!(bad, expected);
    assert!(log.torn_line().is_none());

    let error = log.all_good().unwrap_err();
    assert_eq!(error.to_string(), expected[0]);
    assert!(matches!(error, LogError::BadLine(line) if line.line == 2));
}

#[test]
fn a_newer_schema_is_an_error_that_says_both_versions() {
    let dir = run_with(b"{\"schema\":1,\"step\":0}\n{\"schema\":2,\"step\":1}\n");
    let error = RunLog::read(dir.path()).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "{}: line 2: written in schema 2; this version of gradnorm reads schemas up to 1",
            dir.path().join("metrics.jsonl").display()
        )
    );
}

#[test]
fn a_directory_without_a_run_is_an_error_that_says_what_is_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().display();
    let missing_config = format!("{path}: holds no run: it has no config.json");
    assert_eq!(
        RunLog::read(dir.path()).unwrap_err().to_string(),
        missing_config
    );
    let error = RunWriter::resume(dir.path()).err().unwrap();
    assert_eq!(error.to_string(), missing_config);
    assert_eq!(files(dir.path()), [""; 0]);

    fs::write(dir.path().join("config.json"), "{}").unwrap();
    assert_eq!(
        RunLog::read(dir.path()).unwrap_err().to_string(),
        format!("{path}: holds no run: it has no metrics.jsonl")
    );
}

#[test]
fn a_bad_config_is_an_error_with_the_place() {
    let dir = run_with(b"");
    let config = dir.path().join("config.json");
    fs::write(&config, "{\n  \"lr\": oops\n}").unwrap();
    assert_eq!(
        RunLog::read(dir.path()).unwrap_err().to_string(),
        format!(
            "{}: not a config: not JSON at line 2, column 9: expected value",
            config.display()
        )
    );
    fs::write(&config, "[]").unwrap();
    assert_eq!(
        RunLog::read(dir.path()).unwrap_err().to_string(),
        format!(
            "{}: not a config: not a JSON object, but an array",
            config.display()
        )
    );
}

#[test]
fn a_resumed_run_goes_on_after_its_last_line() {
    let dir = tempfile::tempdir().unwrap();
    let mut run = RunWriter::create(dir.path(), &json!({})).unwrap();
    run.append(&json!({"step": 0})).unwrap();
    drop(run);
    let mut run = RunWriter::resume(dir.path()).unwrap();
    run.append(&json!({"step": 1})).unwrap();
    let text = "{\"schema\":1,\"step\":0}\n{\"schema\":1,\"step\":1}\n";
    assert_eq!(metrics(dir.path()), text);
}

#[test]
fn a_run_resumed_after_a_half_written_line_loses_nothing_and_glues_nothing() {
    let before = "{\"step\":0}\n{\"step\":1,\"lo";
    let dir = run_with(before.as_bytes());
    let mut run = RunWriter::resume(dir.path()).unwrap();
    assert_eq!(metrics(dir.path()), before);
    run.append(&json!({"step": 1})).unwrap();
    run.append(&json!({"step": 2})).unwrap();

    let after = "\n{\"schema\":1,\"step\":1}\n{\"schema\":1,\"step\":2}\n";
    assert_eq!(metrics(dir.path()), format!("{before}{after}"));
    let log = RunLog::read(dir.path()).unwrap();
    assert_eq!(steps(&log), [0, 1, 2]);
    assert_eq!(log.bad_lines().len(), 1);
    assert_eq!(log.bad_lines()[0].line, 2);
    assert!(!log.bad_lines()[0].torn);
}

#[test]
fn a_log_can_be_read_while_it_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut run = RunWriter::create(dir.path(), &json!({})).unwrap();
    for step in 0..3 {
        run.append(&json!({"step": step})).unwrap();
        assert_eq!(RunLog::read(dir.path()).unwrap().lines().len(), step + 1);
    }
}

#[test]
fn lines_of_another_program_need_a_step_and_nothing_else() {
    let dir = run_with(b"");
    let mut file = OpenOptions::new()
        .append(true)
        .open(dir.path().join("metrics.jsonl"))
        .unwrap();
    writeln!(file, r#"{{ "step" : 12, "loss" : 1e-3 }}"#).unwrap();
    let log = RunLog::read(dir.path()).unwrap().all_good().unwrap();
    assert_eq!(log.lines()[0].step(), 12);
    assert_eq!(log.lines()[0].number("loss"), Some(1e-3));
}

#[test]
fn a_log_cut_back_has_the_lines_before_a_step_as_they_were() {
    // A gap, a repeated step, a fragment between whole lines, a line without its newline, a torn one.
    let text = "{\"step\":0}\n{\"step\": 1}\n{\"st\n{\"step\":1}\n{\"step\":4}\n{\"step\":2}";
    for (rest, step, kept) in [
        ("", 0, 0),
        ("", 1, 11),
        ("", 2, 39),
        ("", 4, 39),
        ("", 5, 60),
        ("\n{\"step\":5,\"lo", 5, 61),
        ("\n{\"step\":5,\"lo", 9, 61),
    ] {
        let dir = run_with(format!("{text}{rest}").as_bytes());
        let mut run = RunWriter::resume(dir.path()).unwrap();
        run.cut_back(step).unwrap();
        let before = format!("{text}{rest}")[..kept].to_string();
        assert_eq!(metrics(dir.path()), before, "{rest:?} before {step}");
        run.append(&json!({"step": step})).unwrap();
        let newline = if kept == 60 { "\n" } else { "" };
        assert_eq!(
            metrics(dir.path()),
            format!("{before}{newline}{{\"schema\":1,\"step\":{step}}}\n")
        );
    }
}

#[test]
fn a_config_is_replaced_by_another_and_not_by_what_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let mut run = RunWriter::create(dir.path(), &json!({"steps": 3})).unwrap();
    run.replace_config(&json!({"steps": 5})).unwrap();
    let error = run.replace_config(&json!(5)).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "{}/config.json: not a config: a config is a JSON object",
            dir.path().display()
        )
    );
    run.append(&json!({"step": 0})).unwrap();
    run.sync().unwrap();
    let log = RunLog::read(dir.path()).unwrap();
    assert_eq!(log.config()["steps"], 5);
    assert_eq!(log.lines().len(), 1);
    assert_eq!(files(dir.path()), ["config.json", "metrics.jsonl"]);
}
