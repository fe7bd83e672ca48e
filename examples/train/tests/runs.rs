//! What a run does and what it writes.

use std::fs;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};
use gradnorm::RunLog;
use layers::{Probe, Scale};
use serde_json::Value;
use train::{
    Backend, Batch, Init, MEASURED_SAMPLES, Model, OptimizerKind, PAIRS, Run, RunConfig, Samples,
    TOKENS, loss, measure, train, train_in,
};

fn device() -> Device {
    Backend::default().device().unwrap()
}

fn small() -> RunConfig {
    RunConfig {
        d_k: 8,
        steps: 4,
        batch: 8,
        ..RunConfig::default()
    }
}

fn run(config: &RunConfig) -> Run {
    train(config, &device(), |_| Ok(())).unwrap()
}

/// Everything of a run that training decides, to the last bit.
fn losses(run: &Run) -> Vec<u64> {
    let bits = |record: &train::Record| [record.loss.to_bits(), record.grad_norm.all.to_bits()];
    run.records.iter().flat_map(bits).collect()
}

fn model(config: &RunConfig) -> Model {
    let model = config.model();
    model.try_init(config.init, config.seed, &device()).unwrap()
}

/// Every weight of a model, by path.
fn weights(model: &Model) -> Vec<(String, Vec<f32>)> {
    #[derive(Default)]
    struct Read(Vec<String>, Vec<(String, Vec<f32>)>);
    impl ModuleVisitor for Read {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.0.push(name.to_string());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let numbers = param.val().into_data().iter().collect();
            self.1.push((self.0.join("."), numbers));
        }
    }
    let mut read = Read::default();
    model.visit(&mut read);
    read.1
}

#[test]
fn two_runs_of_one_seed_write_the_same_log_to_the_last_bit() {
    let dir = tempfile::tempdir().unwrap();
    for init in [Init::Unit, Init::Burn] {
        let config = RunConfig { init, ..small() };
        let log = |name: &str| {
            let dir = dir.path().join(format!("{init:?} {name}"));
            train_in(&dir, &config, &device(), |_| ()).unwrap();
            fs::read(dir.join("metrics.jsonl")).unwrap()
        };
        assert_eq!(log("first"), log("second"));
    }
    let other = RunConfig { seed: 1, ..small() };
    assert_ne!(losses(&run(&small())), losses(&run(&other)));
}

#[test]
fn measuring_changes_nothing_of_a_run() {
    let every = run(&RunConfig {
        layers: 2,
        ..small()
    });
    let first = run(&RunConfig {
        layers: 2,
        probe_every: 100,
        ..small()
    });
    assert_eq!(losses(&every), losses(&first));
    assert!(
        every
            .records
            .iter()
            .all(|record| record.attention.is_some())
    );
    let measured: Vec<bool> = first
        .records
        .iter()
        .map(|r| r.attention.is_some())
        .collect();
    assert_eq!(measured, [true, false, false, false]);

    let some = run(&RunConfig {
        layers: 2,
        log_every: 3,
        ..small()
    });
    let steps: Vec<u64> = some.records.iter().map(|record| record.step).collect();
    assert_eq!(steps, [0, 3]);
    assert_eq!(
        some.records[1].loss.to_bits(),
        every.records[3].loss.to_bits()
    );
}

#[test]
fn both_arms_start_from_the_same_weights_and_see_the_same_batches() {
    for init in [Init::Unit, Init::Burn] {
        let scaled = RunConfig { init, ..small() };
        let unscaled = RunConfig {
            scale: Scale::Unscaled,
            ..scaled.clone()
        };
        assert_eq!(weights(&model(&scaled)), weights(&model(&unscaled)));
        // The same function of the same batches at a factor of 1.
        let fixed = RunConfig {
            scale: Scale::Fixed(1.0),
            ..scaled
        };
        assert_eq!(losses(&run(&unscaled)), losses(&run(&fixed)));
    }
}

#[test]
fn unit_initialisation_gives_scores_the_variance_that_the_claim_assumes() {
    for (scale, std) in [(Scale::InvSqrtDim, 1.0), (Scale::Unscaled, 8.0)] {
        let config = RunConfig {
            scale,
            d_k: 64,
            ..small()
        };
        let measured = &measure(&model(&config), 0, &device())[0];
        assert!((measured.score_std / std - 1.0).abs() < 0.1, "{measured:?}");
    }
}

#[test]
fn weights_have_the_variance_that_is_documented() {
    let config = RunConfig { d_k: 64, ..small() };
    for (path, numbers) in weights(&model(&config)) {
        let expected = match path.as_str() {
            "keys.weight" | "values.weight" => 1.0,
            "blocks.0.norm.gamma" | "blocks.0.norm.beta" => continue,
            _ => 1.0 / 64.0,
        };
        let squares = numbers.iter().map(|x| f64::from(x * x)).sum::<f64>();
        let variance = squares / numbers.len() as f64;
        // Five standard errors.
        let most = 5.0 * (2.0 / numbers.len() as f64).sqrt();
        assert!(
            (variance / expected - 1.0).abs() < most,
            "{path}: {variance}"
        );
    }
}

#[test]
fn the_last_layer_asks_the_question_alone_and_shows_it_the_pairs_alone() {
    let config = RunConfig {
        layers: 2,
        heads: 2,
        ..small()
    };
    let model = model(&config);
    let samples: Vec<_> = Samples::training(0).take(3).collect();
    let batch = Batch::new(&samples, &device());
    for (layer, queries, keys) in [(0, TOKENS, TOKENS), (1, 1, PAIRS)] {
        let probe = Probe::new();
        let logits = model.forward_with(&batch, |at, input| match at == layer {
            true => input.probe(&probe),
            false => input,
        });
        loss(logits, &batch).backward();
        let rows = probe.take().unwrap();
        assert_eq!(rows.len(), 3 * 2 * queries);
        assert!(rows.iter().all(|row| row.keys == keys));
    }
}

#[test]
fn every_layer_has_statistics_of_every_query_it_has() {
    let config = RunConfig {
        layers: 2,
        heads: 2,
        ..small()
    };
    let record = &run(&config).records[1];
    let layers = record.attention.as_ref().unwrap();
    assert_eq!(layers.len(), 2);
    for layer in layers {
        let gradient = layer.score_grad.unwrap();
        assert!(gradient.p10 <= gradient.p50 && gradient.p50 <= gradient.p90);
        assert!(gradient.p90 > 0.0);
    }
    for projection in ["query", "key", "value", "output"] {
        let path = format!("blocks.1.attention.{projection}.weight");
        assert!(record.grad_norm.params.get(&path).is_some(), "{path}");
    }
    assert!(record.grad_norm.params.missing().is_empty());
}

#[test]
fn a_line_of_the_log_has_the_documented_fields() {
    let dir = tempfile::tempdir().unwrap();
    let config = RunConfig {
        scale: Scale::Fixed(0.125),
        ..small()
    };
    train_in(dir.path(), &config, &device(), |_| ()).unwrap();

    let log = RunLog::read(dir.path()).unwrap().all_good().unwrap();
    assert_eq!(log.config()["task"], "associative_recall");
    assert_eq!(log.config()["measured_samples"], MEASURED_SAMPLES);
    assert_eq!(log.lines().len(), 4);
    let names =
        |value: &Value| -> Vec<String> { value.as_object().unwrap().keys().cloned().collect() };
    for (step, line) in log.lines().iter().enumerate() {
        let fields = Value::Object(line.fields().clone());
        assert_eq!(
            names(&fields),
            [
                "schema",
                "step",
                "loss",
                "accuracy",
                "scale",
                "d_k",
                "seed",
                "grad_norm",
                "attention"
            ]
        );
        assert_eq!(fields["step"], step);
        assert_eq!(fields["scale"], "fixed:0.125");
        assert_eq!(fields["d_k"], 8);
        assert_eq!(fields["seed"], 0);
        assert_eq!(
            names(&fields["grad_norm"]),
            ["all", "query", "key", "value", "output", "params"]
        );
        assert_eq!(
            names(&fields["grad_norm"]["params"]),
            [
                "keys.weight",
                "values.weight",
                "blocks.0.norm.gamma",
                "blocks.0.norm.beta",
                "blocks.0.attention.query.weight",
                "blocks.0.attention.key.weight",
                "blocks.0.attention.value.weight",
                "blocks.0.attention.output.weight",
                "answer.weight"
            ]
        );
        assert_eq!(
            names(&fields["attention"][0]),
            [
                "score_std",
                "max_weight",
                "entropy",
                "saturated",
                "score_grad"
            ]
        );
        assert_eq!(
            names(&fields["attention"][0]["score_grad"]),
            ["mean", "p10", "p50", "p90"]
        );
        assert_eq!(
            fields["grad_norm"]["query"],
            fields["grad_norm"]["params"]["blocks.0.attention.query.weight"]
        );
    }
}

#[test]
fn both_optimizers_lower_the_loss_of_a_batch() {
    for (optimizer, lr) in [(OptimizerKind::Adam, 0.01), (OptimizerKind::Sgd, 0.1)] {
        let config = RunConfig {
            optimizer,
            lr: Some(lr),
            d_k: 16,
            steps: 60,
            batch: 32,
            probe_every: 100,
            ..small()
        };
        let run = run(&config);
        let mean = |records: &[train::Record]| {
            records.iter().map(|record| record.loss).sum::<f64>() / records.len() as f64
        };
        let (start, end) = (mean(&run.records[..10]), mean(&run.records[50..]));
        assert!(end < start - 0.1, "{optimizer:?}: {start} to {end}");
    }
}

#[test]
fn a_run_that_has_learned_ends_after_the_steps_it_is_given() {
    let stop = train::Stop {
        accuracy: 0.0,
        window: 2,
        then: 3,
    };
    let run = run(&RunConfig {
        stop: Some(stop),
        steps: 50,
        ..small()
    });
    assert_eq!(run.learned_at, Some(1));
    assert_eq!(run.steps, 5);
}

#[test]
fn the_loss_of_a_batch_is_the_mean_over_its_samples() {
    let model = model(&small());
    let samples: Vec<_> = Samples::training(3).take(4).collect();
    let of = |samples: &[train::Sample]| {
        let batch = Batch::new(samples, &device());
        loss(model.forward(&batch), &batch).into_scalar::<f64>()
    };
    let single: f64 = samples.chunks(1).map(of).sum::<f64>() / 4.0;
    assert!((of(&samples) - single).abs() < 1e-6);
}
