//! Runs that are interrupted and go on.

use std::fs;
use std::path::Path;

use burn::tensor::Device;
use gradnorm::RunWriter;
use serde_json::Value;
use train::{
    Backend, Batch, Checkpoint, Error, Init, OptimizerKind, Resumed, RunConfig, Samples, Stop,
    loss, resume_in, start_in, train, train_in,
};

fn device() -> Device {
    Backend::default().device().unwrap()
}

fn small() -> RunConfig {
    RunConfig {
        d_k: 8,
        steps: 7,
        batch: 8,
        ..RunConfig::default()
    }
}

fn start(dir: &Path, config: &RunConfig, every: u64) {
    start_in(dir, config, &device(), every, |_| ()).unwrap();
}

fn resume(dir: &Path, config: &RunConfig) -> Result<Resumed, Error> {
    resume_in(dir, config, &device(), 3, |_| ())
}

/// The step that a run went on with.
fn resumed_from(dir: &Path, config: &RunConfig) -> u64 {
    match resume(dir, config).unwrap() {
        Resumed::WentOn { from, .. } => from,
        Resumed::Finished { .. } => panic!("the run is finished"),
    }
}

fn message(result: Result<Resumed, Error>) -> String {
    result.unwrap_err().to_string()
}

/// Every file below a directory, by its path there.
fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![dir.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => {
                    let name = path.strip_prefix(dir).unwrap().display().to_string();
                    found.push((name, fs::read(path).unwrap()));
                }
            }
        }
    }
    found.sort();
    found
}

fn log(dir: &Path) -> String {
    fs::read_to_string(dir.join("metrics.jsonl")).unwrap()
}

/// A run that is as a process leaves it that is killed after `killed_at` steps.
fn interrupted(dir: &Path, config: &RunConfig, every: u64, killed_at: u64) {
    let died = std::panic::catch_unwind(|| {
        start_in(dir, config, &device(), every, |at| {
            // The last checkpoint is there, and lines after it.
            assert!(at.step + 1 < killed_at, "killed");
        })
    });
    assert!(died.is_err());
}

#[test]
fn a_resumed_run_has_the_log_of_one_that_was_never_interrupted() {
    let parent = tempfile::tempdir().unwrap();
    let options = [
        small(),
        RunConfig {
            optimizer: OptimizerKind::Sgd,
            init: Init::Burn,
            layers: 2,
            heads: 2,
            ..small()
        },
        RunConfig {
            log_every: 2,
            probe_every: 3,
            ..small()
        },
        // Learned in a step before the checkpoint, over a window that reaches across it.
        RunConfig {
            steps: 50,
            stop: Some(Stop {
                accuracy: 0.0,
                window: 4,
                then: 5,
            }),
            ..small()
        },
    ];
    for (number, config) in options.into_iter().enumerate() {
        let (whole, cut) = (
            parent.path().join(format!("{number} whole")),
            parent.path().join(format!("{number} cut")),
        );
        train_in(&whole, &config, &device(), |_| ()).unwrap();
        interrupted(&cut, &config, 3, 5);
        assert_ne!(log(&cut), log(&whole));
        assert_eq!(resumed_from(&cut, &config), 3);
        assert_eq!(log(&cut), log(&whole), "{config:?}");
        assert_eq!(
            fs::read(cut.join("config.json")).unwrap(),
            fs::read(whole.join("config.json")).unwrap()
        );
    }
}

#[test]
fn a_run_without_a_checkpoint_yet_starts_again_from_its_beginning() {
    let parent = tempfile::tempdir().unwrap();
    let (whole, cut) = (parent.path().join("whole"), parent.path().join("cut"));
    start(&whole, &small(), 0);
    for killed_at in [1, 2] {
        interrupted(&cut, &small(), 3, killed_at);
        assert_eq!(Checkpoint::latest(&cut).unwrap(), None);
        assert_eq!(resumed_from(&cut, &small()), 0);
        assert_eq!(log(&cut), log(&whole));
        fs::remove_dir_all(&cut).unwrap();
    }
    // Killed before its first line.
    RunWriter::create(
        &cut,
        &serde_json::from_slice::<Value>(&fs::read(whole.join("config.json")).unwrap()).unwrap(),
    )
    .unwrap();
    assert_eq!(resumed_from(&cut, &small()), 0);
    assert_eq!(log(&cut), log(&whole));
}

#[test]
fn whatever_a_killed_process_leaves_is_gone_on_from() {
    let parent = tempfile::tempdir().unwrap();
    let (whole, cut) = (parent.path().join("whole"), parent.path().join("cut"));
    start(&whole, &small(), 0);
    interrupted(&cut, &small(), 3, 5);
    // Half a line, half a checkpoint, and an earlier checkpoint half removed.
    let torn = log(&cut) + "{\"schema\":1,\"st";
    fs::write(cut.join("metrics.jsonl"), torn).unwrap();
    fs::create_dir(cut.join("checkpoint.partial")).unwrap();
    fs::write(cut.join("checkpoint.partial/model.bpk"), "half").unwrap();
    fs::create_dir(cut.join("checkpoint-1")).unwrap();
    assert_eq!(resumed_from(&cut, &small()), 3);
    assert_eq!(log(&cut), log(&whole));
    let names: Vec<String> = files(&cut).into_iter().map(|(name, _)| name).collect();
    assert_eq!(
        names,
        [
            "checkpoint-7/model.bpk",
            "checkpoint-7/optimizer.bpk",
            "checkpoint-7/position.json",
            "config.json",
            "metrics.jsonl"
        ]
    );
    assert!(!cut.join("checkpoint-1").exists());
}

#[test]
fn a_finished_run_is_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let stop = Stop {
        accuracy: 0.0,
        window: 2,
        then: 1,
    };
    let stopping = RunConfig {
        stop: Some(stop),
        ..small()
    };
    for (name, config, checkpoints, expected) in [
        ("with checkpoints", small(), true, 7),
        ("without", small(), false, 7),
        ("stopped, with checkpoints", stopping.clone(), true, 3),
        ("stopped, without", stopping, false, 3),
        (
            "with a last step that is not logged",
            RunConfig {
                steps: 8,
                log_every: 2,
                ..small()
            },
            true,
            8,
        ),
    ] {
        let dir = dir.path().join(name);
        match checkpoints {
            true => start(&dir, &config, 2),
            false => drop(train_in(&dir, &config, &device(), |_| ()).unwrap()),
        }
        let before = files(&dir);
        match resume(&dir, &config).unwrap() {
            Resumed::Finished { steps } => assert_eq!(steps, expected, "{name}"),
            Resumed::WentOn { from, .. } => panic!("{name}: went on with {from}"),
        }
        assert!(files(&dir) == before, "{name}");
    }
}

#[test]
fn a_log_with_its_last_line_but_no_checkpoint_is_not_a_finished_run() {
    let dir = tempfile::tempdir().unwrap();
    // Step 4 has the last line, and steps 5 to 7 none.
    let config = RunConfig {
        steps: 8,
        log_every: 4,
        ..small()
    };
    let run = dir.path().join("run");
    train_in(&run, &config, &device(), |_| ()).unwrap();
    let log = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    assert_eq!(resumed_from(&run, &config), 0);
    assert_eq!(fs::read_to_string(run.join("metrics.jsonl")).unwrap(), log);
    assert_eq!(Checkpoint::latest(&run).unwrap().unwrap().step(), 8);
}

#[test]
fn a_finished_run_goes_on_when_it_is_given_more_steps() {
    let parent = tempfile::tempdir().unwrap();
    let (whole, short) = (parent.path().join("whole"), parent.path().join("short"));
    let longer = RunConfig {
        steps: 9,
        ..small()
    };
    start(&whole, &longer, 0);
    start(&short, &small(), 0);
    assert_eq!(resumed_from(&short, &longer), 7);
    for file in ["metrics.jsonl", "config.json"] {
        assert_eq!(
            fs::read_to_string(short.join(file)).unwrap(),
            fs::read_to_string(whole.join(file)).unwrap()
        );
    }
}

#[test]
fn a_run_is_gone_on_with_as_it_was_started_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().display();
    interrupted(dir.path(), &small(), 3, 5);
    let before = files(dir.path());
    let goes_on = "and a run goes on as it was started";
    for (config, expected) in [
        (
            RunConfig { d_k: 4, ..small() },
            format!("--d-k 4: the run in {path} has 8, {goes_on}"),
        ),
        (
            RunConfig {
                scale: layers::Scale::Unscaled,
                ..small()
            },
            format!("--scale unscaled: the run in {path} has inv_sqrt_dim, {goes_on}"),
        ),
        (
            RunConfig {
                lr: Some(0.5),
                ..small()
            },
            format!("--lr 0.5: the run in {path} has 0.001, {goes_on}"),
        ),
        (
            RunConfig {
                log_every: 2,
                ..small()
            },
            format!("--log-every 2: the run in {path} has 1, {goes_on}"),
        ),
        (
            RunConfig {
                steps: 6,
                ..small()
            },
            format!("--steps 6: the run in {path} has 7, and steps can only be raised"),
        ),
    ] {
        assert_eq!(message(resume(dir.path(), &config)), expected);
    }
    // The same learning rate, stated.
    let stated = RunConfig {
        lr: Some(1e-3),
        ..small()
    };
    assert!(files(dir.path()) == before);
    assert_eq!(resumed_from(dir.path(), &stated), 3);
}

#[test]
fn a_run_of_another_version_is_refused_with_both() {
    let dir = tempfile::tempdir().unwrap();
    start(dir.path(), &small(), 0);
    let config = dir.path().join("config.json");
    let text = fs::read_to_string(&config).unwrap();
    let own = format!("\"version\": \"{}\"", env!("CARGO_PKG_VERSION"));
    assert!(text.contains(&own));
    fs::write(&config, text.replace(&own, "\"version\": \"0.0.1\"")).unwrap();
    assert_eq!(
        message(resume(dir.path(), &small())),
        format!(
            "{}: its version is 0.0.1, but this program's is {}",
            dir.path().display(),
            env!("CARGO_PKG_VERSION")
        )
    );
}

#[test]
fn a_log_that_lacks_what_the_checkpoint_goes_on_from_is_refused() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("run");
    interrupted(&dir, &small(), 3, 5);
    let whole = log(&dir);
    let lines: Vec<&str> = whole.lines().collect();
    for (damaged, step) in [
        (String::new(), 0),
        (lines[..2].join("\n"), 2),
        (format!("{}\n{}\n{}\n", lines[0], lines[2], lines[3]), 1),
        (
            format!("{}\n{{\"st\n{}\n{}\n", lines[0], lines[1], lines[2]),
            1,
        ),
    ] {
        fs::write(dir.join("metrics.jsonl"), &damaged).unwrap();
        assert_eq!(
            message(resume(&dir, &small())),
            format!(
                "{}: the log has no line of step {step} in its place, though {} goes on after it; \
                 to make the run again from its beginning, remove the checkpoint",
                dir.display(),
                dir.join("checkpoint-3").display()
            )
        );
        assert_eq!(log(&dir), damaged);
    }
    fs::remove_dir_all(dir.join("checkpoint-3")).unwrap();
    assert_eq!(resumed_from(&dir, &small()), 0);
    assert!(log(&dir).starts_with(&whole));
}

#[test]
fn a_damaged_checkpoint_is_an_error_that_names_its_file() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("run");
    interrupted(&dir, &small(), 3, 5);
    for file in ["model.bpk", "optimizer.bpk", "position.json"] {
        let path = dir.join("checkpoint-3").join(file);
        let whole = fs::read(&path).unwrap();
        let before = log(&dir);
        fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        let text = message(resume(&dir, &small()));
        let start = format!("{}: cannot go on from this checkpoint: ", path.display());
        assert!(text.starts_with(&start), "{text}");
        fs::remove_file(&path).unwrap();
        assert_eq!(
            message(resume(&dir, &small())),
            format!(
                "{}: cannot read: No such file or directory (os error 2)",
                path.display()
            )
        );
        fs::write(&path, whole).unwrap();
        assert_eq!(log(&dir), before);
    }
    // Weights of another width.
    let wide = parent.path().join("wide");
    let config = RunConfig { d_k: 16, ..small() };
    interrupted(&wide, &config, 3, 5);
    let model = dir.join("checkpoint-3/model.bpk");
    fs::copy(wide.join("checkpoint-3/model.bpk"), &model).unwrap();
    let text = message(resume(&dir, &small()));
    assert!(text.contains("shape mismatch"), "{text}");
}

#[test]
fn a_run_is_not_started_beside_the_checkpoint_of_another() {
    let dir = tempfile::tempdir().unwrap();
    let stale = dir.path().join("checkpoint-20");
    fs::create_dir(&stale).unwrap();
    let error = start_in(dir.path(), &small(), &device(), 3, |_| ()).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "{}: another run's; remove it, or choose another folder",
            stale.display()
        )
    );
    assert_eq!(files(dir.path()), []);
}

#[test]
fn a_run_that_is_being_written_is_not_resumed() {
    let dir = tempfile::tempdir().unwrap();
    interrupted(dir.path(), &small(), 3, 5);
    let before = files(dir.path());
    let writer = RunWriter::resume(dir.path()).unwrap();
    assert_eq!(
        message(resume(dir.path(), &small())),
        format!("{}: another writer has this run open", dir.path().display())
    );
    drop(writer);
    assert!(files(dir.path()) == before);
}

#[test]
fn the_model_of_a_checkpoint_can_be_used() {
    let dir = tempfile::tempdir().unwrap();
    start(dir.path(), &small(), 0);
    let checkpoint = Checkpoint::latest(dir.path()).unwrap().unwrap();
    assert_eq!(checkpoint.step(), 7);
    assert_eq!(checkpoint.path(), dir.path().join("checkpoint-7"));
    let config = RunConfig::of_run(dir.path()).unwrap();
    assert_eq!(config.d_k, 8);
    let model = checkpoint.model(&config, &device()).unwrap();

    // Its loss at the next batch is what a longer run logs of it.
    let longer = RunConfig {
        steps: 8,
        ..small()
    };
    let expected = train(&longer, &device(), |_| Ok(())).unwrap().records[7].loss;
    let samples: Vec<_> = Samples::training(0).skip(7 * 8).take(8).collect();
    let batch = Batch::new(&samples, &device());
    let next: f64 = loss(model.forward(&batch), &batch).into_scalar();
    assert_eq!(next.to_bits(), expected.to_bits());
}
