//! Several runs an arm, in pairs.

use std::fs;

use gradnorm::{Arm, ArmComparison, Compare, Format, RunLog, Threshold};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Directories of runs, removed at the end of the test.
struct Runs(TempDir);

impl Runs {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn log(&self, name: &str, config: Value, lines: &[Value]) -> RunLog {
        let dir = self.0.path().join(name);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("config.json"), config.to_string()).unwrap();
        let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
        fs::write(dir.join("metrics.jsonl"), lines.join("\n")).unwrap();
        RunLog::read(dir).unwrap()
    }

    /// An arm of runs with the seeds 0, 1 and so on, each with one quantity at steps 0, 1 and so
    /// on.
    fn arm(&self, name: &str, losses: &[&[f64]]) -> Arm {
        let run = |(seed, losses): (usize, &&[f64])| {
            let line = |(step, loss): (usize, &f64)| json!({"step": step, "loss": loss});
            let lines: Vec<Value> = losses.iter().enumerate().map(line).collect();
            let config = json!({"arm": name, "seed": seed});
            self.log(&format!("{name}-{seed}"), config, &lines)
        };
        Arm {
            name: name.to_string(),
            runs: losses.iter().enumerate().map(run).collect(),
        }
    }
}

fn notes(comparison: &ArmComparison) -> Vec<String> {
    comparison.notes.iter().map(ToString::to_string).collect()
}

fn near(value: f64, expected: f64) {
    assert!((value - expected).abs() < 1e-6, "{value} is not {expected}");
}

#[test]
fn what_a_seed_does_to_both_runs_of_a_pair_cancels() {
    let runs = Runs::new();
    let comparison = Compare::new().of_arms(&[
        runs.arm("a", &[&[1.0], &[10.0], &[100.0]]),
        runs.arm("b", &[&[3.0], &[11.0], &[103.0]]),
    ]);
    assert_eq!(notes(&comparison), [""; 0]);
    assert_eq!(comparison.arms, ["a", "b"]);
    let against = &comparison.against[0];
    assert_eq!(
        (against.reference.as_str(), against.arm.as_str()),
        ("a", "b")
    );
    assert_eq!(against.differ_in, ["arm"]);
    let paired = against.quantities[0].rows[0].paired;
    assert_eq!(
        (paired.pairs, paired.reference, paired.arm),
        (3, 37.0, 39.0)
    );
    // The differences 2, 1 and 3: deviation 1, and 4.302653 / sqrt(3) of that to each side.
    assert_eq!(
        (paired.difference.mean, paired.difference.median),
        (2.0, 2.0)
    );
    let [low, high] = paired.difference.interval.unwrap();
    near(low, 2.0 - 2.484138);
    near(high, 2.0 + 2.484138);
    // The ratios 3, 1.1 and 1.03.
    let ratio = paired.ratio.unwrap();
    near(ratio.mean, (3.0_f64 * 1.1 * 1.03).cbrt());
    near(ratio.median, 1.1);
}

#[test]
fn one_pair_gives_a_difference_and_no_interval() {
    let runs = Runs::new();
    let comparison = Compare::new().of_arms(&[runs.arm("a", &[&[1.0]]), runs.arm("b", &[&[4.0]])]);
    let paired = comparison.against[0].quantities[0].rows[0].paired;
    assert_eq!((paired.pairs, paired.difference.mean), (1, 3.0));
    assert_eq!(paired.difference.interval, None);
    assert_eq!(paired.ratio.unwrap().interval, None);
}

#[test]
fn a_ratio_is_given_where_all_values_are_positive() {
    let runs = Runs::new();
    let comparison = Compare::new().of_arms(&[
        runs.arm("a", &[&[1.0, 0.0, -1.0, 1.0], &[1.0, 1.0, -1.0, 1.0]]),
        runs.arm("b", &[&[2.0, 2.0, -2.0, f64::MAX], &[2.0, 2.0, -2.0, 2.0]]),
    ]);
    let rows = &comparison.against[0].quantities[0].rows;
    let given: Vec<bool> = rows.iter().map(|row| row.paired.ratio.is_some()).collect();
    assert_eq!(given, [true, false, false, true]);
    near(rows[0].paired.ratio.unwrap().mean, 2.0);
}

#[test]
fn a_step_counts_the_pairs_that_have_it() {
    let runs = Runs::new();
    let comparison = Compare::new().of_arms(&[
        runs.arm("a", &[&[1.0, 1.0, 1.0], &[1.0, 1.0]]),
        runs.arm("b", &[&[2.0, 2.0], &[2.0, 2.0, 2.0]]),
        runs.arm("c", &[&[3.0, 3.0, 3.0], &[3.0]]),
    ]);
    let pairs = |number: usize| -> Vec<usize> {
        let rows = &comparison.against[number].quantities[0].rows;
        rows.iter().map(|row| row.paired.pairs).collect()
    };
    assert_eq!(pairs(0), [2, 2]);
    assert_eq!(pairs(1), [2, 1, 1]);
    assert_eq!(comparison.against[1].arm, "c");
}

#[test]
fn runs_that_cannot_be_paired_are_left_out_by_name() {
    let runs = Runs::new();
    let line = [json!({"step": 0, "loss": 1})];
    let log = |name: &str, config: Value| runs.log(name, config, &line);
    let a = vec![
        log("a0", json!({"seed": 0, "d_k": 8})),
        log("a1", json!({"seed": 1, "d_k": 16, "new": true})),
        log("a2", json!({"seed": 0, "d_k": 8})),
        log("a3", json!({"seeds": 3})),
        runs.log("a4", json!({"seed": 4}), &[]),
    ];
    let b = vec![
        log("b7", json!({"seed": 7, "d_k": 8})),
        log("b0", json!({"seed": 0, "d_k": 8})),
        log("b1", json!({"seed": "1", "d_k": 8})),
    ];
    let arm = |name: &str, runs: Vec<RunLog>| Arm {
        name: name.to_string(),
        runs,
    };
    let comparison = Compare::new().of_arms(&[arm("a", a), arm("b", b)]);
    assert_eq!(
        notes(&comparison),
        [
            "a4: not compared: its log has no lines",
            "a1: it differs from a0, of the same arm, in d_k, new",
            "a2: not compared: a0 is of a and has the same seed, 0",
            "a3: not compared: its config has no seed to pair it by",
            "a1: no run of b has its seed, 1",
            "b7: no run of a has its seed, 7",
            "b1: no run of a has its seed, \"1\"",
        ]
    );
    let pairs = &comparison.against[0].pairs;
    assert_eq!(pairs.len(), 1);
    assert_eq!(
        (
            pairs[0].key.as_str(),
            pairs[0].reference.as_str(),
            pairs[0].run.as_str()
        ),
        ("0", "a0", "b0")
    );
    assert!(!comparison.is_empty());
}

#[test]
fn runs_are_paired_by_any_field() {
    let runs = Runs::new();
    let arm = |name: &str, loss: f64| {
        let run = |fold: u64| {
            let config = json!({"data": {"fold": fold}, "seed": 3});
            let lines = [json!({"step": 0, "loss": loss})];
            runs.log(&format!("{name}-{fold}"), config, &lines)
        };
        Arm {
            name: name.to_string(),
            runs: vec![run(5), run(6)],
        }
    };
    let arms = [arm("a", 1.0), arm("b", 2.0)];
    let comparison = Compare::new().pair_by("data.fold").of_arms(&arms);
    let keys: Vec<&str> = comparison.against[0]
        .pairs
        .iter()
        .map(|pair| pair.key.as_str())
        .collect();
    assert_eq!(keys, ["5", "6"]);
    assert_eq!(comparison.pair_by, "data.fold");
    assert_eq!(notes(&comparison), [""; 0]);
    assert_eq!(comparison.against[0].differ_in, [""; 0]);
}

#[test]
fn a_threshold_that_a_run_never_reaches_gives_no_mean() {
    let runs = Runs::new();
    let arms = [
        runs.arm("a", &[&[3.0, 2.0, 1.0], &[3.0, 1.0, 1.0]]),
        runs.arm("b", &[&[1.0, 1.0, 1.0], &[3.0, 3.0, 2.0]]),
    ];
    let comparison = Compare::new()
        .first_step(Threshold::at_most("loss", 1.0))
        .first_step(Threshold::at_most("loss", 2.0))
        .of_arms(&arms);
    let [never, all] = comparison.against[0].first_steps.as_slice() else {
        panic!("{:?}", comparison.against[0].first_steps);
    };
    assert_eq!(never.reference, [Some(2), Some(1)]);
    assert_eq!(never.arm, [Some(0), None]);
    assert_eq!(never.paired, None);
    assert_eq!(all.to_string(), "loss <= 2");
    let paired = all.paired.unwrap();
    assert_eq!((paired.reference, paired.arm), (1.0, 1.0));
    assert_eq!(paired.difference.median, 0.0);
}

/// Two arms for the formats: a quantity that changes, one that does not, and a threshold.
fn two_arms(runs: &Runs) -> ArmComparison {
    let arm = |name: &str, losses: [[f64; 2]; 2]| Arm {
        name: name.to_string(),
        runs: (0..2)
            .map(|seed: usize| {
                let line =
                    |step: usize| json!({"step": step, "loss": losses[seed][step], "d_k": 8});
                let config = json!({"seed": seed, "rate": name});
                runs.log(&format!("{name}{seed}"), config, &[line(0), line(1)])
            })
            .collect(),
    };
    Compare::new()
        .first_step(Threshold::at_most("loss", 2.0))
        .first_step(Threshold::at_most("loss", 1.0))
        .of_arms(&[
            arm("slow", [[4.0, 2.0], [8.0, 1.0]]),
            arm("fast", [[2.0, 1.0], [4.0, 2.0]]),
        ])
}

#[test]
fn the_table_shows_pairs_means_differences_ratios_and_intervals() {
    let runs = Runs::new();
    assert_eq!(
        two_arms(&runs).render(Format::Table),
        "\
fast against slow: 2 pairs by seed (0, 1); they differ in rate

loss
  step  pairs  slow  fast  fast - slow      95 % interval  fast / slow         95 % interval
  0         2     6     3           -3  -15.706 to 9.7062          0.5            0.5 to 0.5
  1         2   1.5   1.5            0  -12.706 to 12.706            1  0.00014964 to 6682.7

d_k
  step   pairs  slow  fast  fast - slow  95 % interval  fast / slow  95 % interval
  every      2     8     8            0         0 to 0            1         1 to 1

  first step of  pairs        slow        fast  fast - slow      95 % interval  fast / slow  95 % interval
  loss <= 2          2           1         0.5         -0.5  -6.8531 to 5.8531            -              -
  loss <= 1          2  never in 1  never in 1            -                  -            -              -
"
    );
    assert_eq!(
        Compare::new().of_arms(&[]).render(Format::Table),
        "no arms to compare\n"
    );
}

#[test]
fn the_json_holds_everything_and_can_be_read_back() {
    let runs = Runs::new();
    let text = two_arms(&runs).render(Format::Json);
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["arms"], json!(["slow", "fast"]));
    assert_eq!(json["pair_by"], "seed");
    assert_eq!(json["notes"], json!([]));
    let against = &json["against"][0];
    assert_eq!(
        against["pairs"],
        json!([
            {"key": "0", "reference": "slow0", "run": "fast0"},
            {"key": "1", "reference": "slow1", "run": "fast1"},
        ])
    );
    let row = &against["quantities"][0]["rows"][0];
    assert_eq!(row["step"], 0);
    assert_eq!(row["pairs"], 2);
    assert_eq!(row["difference"]["mean"], -3.0);
    assert_eq!(row["difference"]["median"], -3.0);
    near(row["difference"]["interval"][1].as_f64().unwrap(), 9.706205);
    assert_eq!(against["first_steps"][1]["arm"], json!([1, null]));
    assert_eq!(against["first_steps"][1]["paired"], json!(null));
}

#[test]
fn the_csv_has_one_row_of_a_quantity_a_line() {
    let runs = Runs::new();
    let text = two_arms(&runs).render(Format::Csv);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[0],
        "quantity,step,arm,reference,pairs,reference_mean,arm_mean,difference,difference_median,\
         difference_low,difference_high,ratio,ratio_median,ratio_low,ratio_high"
    );
    assert!(
        lines[1].starts_with("loss,0,fast,slow,2,6,3,-3,-3,-15.70620"),
        "{}",
        lines[1]
    );
    assert_eq!(lines[3], "d_k,0,fast,slow,2,8,8,0,0,0,0,1,1,1,1");
    assert!(lines[5].starts_with("first step of loss <= 2,,fast,slow,2,1,0.5,-0.5,-0.5,"));
    assert!(lines[5].ends_with(",,,,"));
    assert_eq!(lines[6], "first step of loss <= 1,,fast,slow,2,,,,,,,,,,");
    assert_eq!(lines.len(), 7);
}
