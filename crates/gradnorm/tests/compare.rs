//! Runs side by side.

use std::fs;
use std::path::PathBuf;

use gradnorm::{Compare, Comparison, Format, Reason, RunLog, Threshold};
use tempfile::TempDir;

/// Directories of runs, removed at the end of the test.
struct Runs(TempDir);

impl Runs {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn dir(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn log(&self, name: &str, config: &str, lines: &[&str]) -> RunLog {
        let dir = self.dir(name);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("config.json"), config).unwrap();
        fs::write(dir.join("metrics.jsonl"), lines.join("\n")).unwrap();
        RunLog::read(dir).unwrap()
    }
}

fn notes(comparison: &Comparison) -> Vec<String> {
    comparison.notes.iter().map(ToString::to_string).collect()
}

fn names(comparison: &Comparison) -> Vec<&str> {
    let quantities = comparison.quantities.iter();
    quantities.map(|quantity| quantity.name.as_str()).collect()
}

fn two_runs(runs: &Runs) -> [RunLog; 2] {
    let a = runs.log(
        "a",
        r#"{"task": "recall"}"#,
        &[
            r#"{"schema":1,"step":0,"loss":4,"grad_norm":{"all":2,"query":1}}"#,
            r#"{"schema":1,"step":10,"loss":2,"grad_norm":{"all":1,"query":0}}"#,
            r#"{"schema":1,"step":20,"loss":1,"grad_norm":{"all":0.5,"query":0}}"#,
        ],
    );
    let b = runs.log(
        "b",
        r#"{"task": "recall"}"#,
        &[
            r#"{"schema":1,"step":0,"loss":4,"grad_norm":{"all":6,"query":0.5}}"#,
            r#"{"schema":1,"step":5,"loss":3.5,"grad_norm":{"all":6,"query":0.5}}"#,
            r#"{"schema":1,"step":10,"loss":3,"grad_norm":{"all":"NaN","query":0.5}}"#,
        ],
    );
    [a, b]
}

#[test]
fn quantities_are_lined_up_at_common_steps_with_ratios_to_the_first_run() {
    let runs = Runs::new();
    let comparison = Compare::new().of(&two_runs(&runs));

    assert_eq!(comparison.runs, ["a", "b"]);
    assert_eq!(notes(&comparison), [""; 0]);
    assert_eq!(
        names(&comparison),
        ["loss", "grad_norm.all", "grad_norm.query"]
    );
    let loss = &comparison.quantities[0];
    let steps: Vec<u64> = loss.rows.iter().map(|row| row.step).collect();
    assert_eq!(steps, [0, 10]);
    assert_eq!(loss.rows[1].values, [Some(2.0), Some(3.0)]);
    assert_eq!(loss.rows[1].ratios, [Some(1.0), Some(1.5)]);
    let all = &comparison.quantities[1];
    assert!(all.rows[1].values[1].unwrap().is_nan());
    assert!(all.rows[1].ratios[1].unwrap().is_nan());
    let query = &comparison.quantities[2];
    assert_eq!(query.rows[1].ratios[1], Some(f64::INFINITY));
}

#[test]
fn only_the_quantities_asked_for_are_compared() {
    let runs = Runs::new();
    let logs = two_runs(&runs);
    let comparison = Compare::new().quantity("grad_norm.*").of(&logs);
    assert_eq!(names(&comparison), ["grad_norm.all", "grad_norm.query"]);

    let comparison = Compare::new()
        .quantity("loss")
        .quantity("accuracy")
        .of(&logs);
    assert_eq!(names(&comparison), ["loss"]);
    assert_eq!(
        notes(&comparison),
        ["a: it has no accuracy", "b: it has no accuracy"]
    );
}

#[test]
fn runs_of_another_task_are_left_out_by_name() {
    let runs = Runs::new();
    let line = [r#"{"step":0,"loss":1}"#];
    let logs = [
        runs.log("a", r#"{"task": "recall"}"#, &line),
        runs.log("b", r#"{"task": {"copy": 3}}"#, &line),
        runs.log("c", r#"{"task": "recall"}"#, &line),
        runs.log("unstated", "{}", &line),
    ];
    let comparison = Compare::new().of(&logs);
    assert_eq!(comparison.runs, ["a", "c", "unstated"]);
    assert_eq!(
        notes(&comparison),
        [r#"b: not compared: its task is {"copy":3}, that of a is "recall""#]
    );
    assert!(comparison.notes[0].excluded());
}

#[test]
fn runs_without_lines_or_without_a_common_step_are_left_out_by_name() {
    let runs = Runs::new();
    let logs = [
        runs.log("empty", "{}", &[]),
        runs.log(
            "a",
            "{}",
            &[r#"{"step":0,"loss":1}"#, r#"{"step":2,"loss":1}"#],
        ),
        runs.log("odd", "{}", &[r#"{"step":1,"loss":1}"#]),
        runs.log("even", "{}", &[r#"{"step":2,"loss":3}"#]),
    ];
    let comparison = Compare::new().of(&logs);
    assert_eq!(comparison.runs, ["a", "even"]);
    assert_eq!(
        notes(&comparison),
        [
            "empty: not compared: its log has no lines",
            "odd: not compared: it shares no step with a",
        ]
    );
    assert_eq!(comparison.quantities[0].rows[0].step, 2);
}

#[test]
fn quantities_that_a_run_lacks_are_noted_and_the_others_compared() {
    let runs = Runs::new();
    let logs = [
        runs.log("a", "{}", &[r#"{"step":0,"loss":1,"only_a":1,"both":1}"#]),
        runs.log(
            "b",
            "{}",
            &[
                r#"{"step":0,"loss":2,"only_b":1}"#,
                r#"{"step":1,"both":1}"#,
            ],
        ),
        runs.log(
            "c",
            "{}",
            &[r#"{"step":0,"loss":3,"only_a":3,"both":1,"only_b":1}"#],
        ),
    ];
    let comparison = Compare::new()
        .first_step(Threshold::at_least("accuracy", 0.9))
        .of(&logs);

    assert_eq!(
        notes(&comparison),
        [
            "a: it has no only_b, accuracy",
            "b: it has no only_a, accuracy",
            "c: it has no accuracy",
            "b: it shares no step with a at which both have both",
        ]
    );
    let missing = Reason::MissingQuantities(vec!["accuracy".to_string()]);
    assert_eq!(comparison.notes[2].reason, missing);
    assert!(!comparison.notes[2].excluded());
    assert_eq!(names(&comparison), ["loss", "only_a", "both"]);
    assert_eq!(
        comparison.quantities[1].rows[0].values,
        [Some(1.0), None, Some(3.0)]
    );
}

#[test]
fn lines_that_could_not_be_read_are_noted() {
    let runs = Runs::new();
    let line = r#"{"step":0,"loss":1}"#;
    let logs = [
        runs.log("a", "{}", &["oops", line, "{", line, r#"{"step":"#]),
        runs.log("b", "{}", &[line, "{"]),
    ];
    let comparison = Compare::new().of(&logs);
    assert_eq!(
        notes(&comparison),
        [
            "a: without lines 1, 3, 5, not readable",
            "b: without line 2, not readable",
        ]
    );
}

#[test]
fn a_step_logged_twice_counts_as_logged_last() {
    let runs = Runs::new();
    let lines = [r#"{"step":1,"loss":5}"#, r#"{"step":1,"loss":7}"#];
    let comparison = Compare::new().of(&[runs.log("a", "{}", &lines)]);
    assert_eq!(comparison.quantities[0].rows.len(), 1);
    assert_eq!(comparison.quantities[0].rows[0].values, [Some(7.0)]);
}

#[test]
fn the_first_step_is_found_raw_and_for_a_running_mean() {
    let runs = Runs::new();
    let log = |name: &str, accuracies: &[&str]| {
        let lines: Vec<String> = accuracies
            .iter()
            .enumerate()
            .map(|(i, accuracy)| format!(r#"{{"step":{},"accuracy":{accuracy}}}"#, i * 10))
            .collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        runs.log(name, "{}", &lines)
    };
    let logs = [
        log("a", &["0.5", "1.0", "0.5", "0.75", "1.0", "1.0"]),
        log("b", &["1.0", "\"NaN\"", "0.75", "0.75", "1.0", "1.0"]),
        log("c", &["0.5", "0.5"]),
    ];
    let comparison = Compare::new()
        .first_step(Threshold::at_least("accuracy", 0.9).mean_over(2))
        .first_step(Threshold::at_most("accuracy", 0.5))
        .of(&logs);

    let [raw, mean, low] = comparison.first_steps.as_slice() else {
        panic!("{:?}", comparison.first_steps);
    };
    assert_eq!(raw.to_string(), "accuracy >= 0.9");
    assert_eq!(raw.steps, [Some(10), Some(0), None]);
    assert_eq!(raw.ratios, [Some(1.0), Some(0.0), None]);
    assert_eq!(mean.to_string(), "accuracy >= 0.9 (mean of 2)");
    assert_eq!(mean.steps, [Some(50), Some(50), None]);
    assert_eq!(low.to_string(), "accuracy <= 0.5");
    assert_eq!(low.steps, [Some(0), None, Some(0)]);
}

#[test]
#[should_panic(expected = "the window of a running mean must be 1 or more")]
fn a_mean_of_nothing_is_refused() {
    let _ = Threshold::at_least("accuracy", 0.9).mean_over(0);
}

#[test]
fn runs_are_named_by_the_shortest_that_tells_them_apart() {
    let runs = Runs::new();
    let line = [r#"{"step":0,"loss":1}"#];
    let logs = [
        runs.log("x/run", "{}", &line),
        runs.log("y/run", "{}", &line),
        runs.log("y/run", "{}", &line),
        runs.log("y/other", "{}", &line),
    ];
    let (x, y) = (runs.dir("x/run"), runs.dir("y/run"));
    assert_eq!(
        Compare::new().of(&logs).runs,
        [
            x.display().to_string(),
            y.display().to_string(),
            format!("{} (2)", y.display()),
            "other".to_string(),
        ]
    );
}

#[test]
fn the_table_shows_notes_values_ratios_and_first_steps() {
    let runs = Runs::new();
    let [a, b] = two_runs(&runs);
    let c = runs.log("c", r#"{"task": "sort"}"#, &[r#"{"step":0}"#]);
    let comparison = Compare::new()
        .first_step(Threshold::at_most("loss", 2.0).mean_over(2))
        .of(&[a, b, c]);
    assert_eq!(
        comparison.render(Format::Table),
        "\
note: c: not compared: its task is \"sort\", that of a is \"recall\"

loss
  step  a  b  b / a
  0     4  4      1
  10    2  3    1.5

grad_norm.all
  step  a    b  b / a
  0     2    6      3
  10    1  NaN    NaN

grad_norm.query
  step  a    b  b / a
  0     1  0.5    0.5
  10    0  0.5    inf

  first step of           a      b  b / a
  loss <= 2              10  never      -
  loss <= 2 (mean of 2)  20  never      -
"
    );
}

#[test]
fn the_table_keeps_to_ten_rows_and_to_one_for_what_never_changes() {
    let runs = Runs::new();
    let lines: Vec<String> = (0..100)
        .map(|step| format!(r#"{{"step":{step},"loss":{step},"d_k":64}}"#))
        .collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let table = Compare::new()
        .of(&[runs.log("a", "{}", &lines)])
        .to_string();
    let rows: Vec<&str> = table.lines().map(str::trim).collect();
    assert_eq!(rows.len(), 2 + 10 + 1 + 3);
    assert_eq!(rows[11], "99    99");
    assert_eq!(rows[13..], ["d_k", "step    a", "every  64"]);
}

#[test]
fn a_comparison_of_nothing_says_so() {
    let comparison = Compare::new().of(&[]);
    assert_eq!(comparison.render(Format::Table), "no quantity to compare\n");
    assert_eq!(
        comparison.render(Format::Csv),
        "quantity,step,run,value,ratio\n"
    );
}

#[test]
fn the_json_holds_everything_and_can_be_read_back() {
    let runs = Runs::new();
    let [a, b] = two_runs(&runs);
    let c = runs.log("c", r#"{"task": "sort"}"#, &[r#"{"step":0}"#]);
    let text = Compare::new()
        .quantity("grad_norm.all")
        .first_step(Threshold::at_most("loss", 2.0))
        .of(&[a, b, c])
        .render(Format::Json);
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&text).unwrap(),
        serde_json::json!({
            "runs": ["a", "b"],
            "notes": [{
                "run": "c",
                "excluded": true,
                "text": r#"c: not compared: its task is "sort", that of a is "recall""#,
            }],
            "quantities": [{
                "name": "grad_norm.all",
                "rows": [
                    {"step": 0, "values": [2.0, 6.0], "ratios": [1.0, 3.0]},
                    {"step": 10, "values": [1.0, "NaN"], "ratios": [1.0, "NaN"]},
                ],
            }],
            "first_steps": [{
                "threshold": "loss <= 2",
                "window": 1,
                "steps": [10, null],
                "ratios": [1.0, null],
            }],
        })
    );
}

#[test]
fn the_csv_has_one_number_a_line_and_quotes_what_needs_it() {
    let runs = Runs::new();
    let logs = [
        runs.log(
            "a, \"first\"",
            "{}",
            &[r#"{"step":0,"x,y":0.1}"#, r#"{"step":1,"x,y":2}"#],
        ),
        runs.log("b", "{}", &[r#"{"step":0,"x,y":"inf"}"#]),
    ];
    let comparison = Compare::new()
        .first_step(Threshold::at_least("x,y", 2.0))
        .of(&logs);
    assert_eq!(
        comparison.render(Format::Csv),
        "\
quantity,step,run,value,ratio
\"x,y\",0,\"a, \"\"first\"\"\",0.1,1
\"x,y\",0,b,inf,inf
\"first step of x,y >= 2\",,\"a, \"\"first\"\"\",1,1
\"first step of x,y >= 2\",,b,0,0
"
    );
}

#[test]
fn formats_are_named_as_the_command_line_names_them() {
    assert_eq!("table".parse(), Ok(Format::Table));
    assert_eq!("json".parse(), Ok(Format::Json));
    assert_eq!("csv".parse(), Ok(Format::Csv));
    assert_eq!(
        "xml".parse::<Format>().unwrap_err().to_string(),
        "\"xml\" is no format; there are table, json and csv"
    );
}
