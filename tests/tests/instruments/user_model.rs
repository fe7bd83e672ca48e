//! A model, a task and a training loop as a user writes them, with the lines that switch on the
//! instruments marked. The README shows those lines.

use std::error::Error;
use std::path::Path;

use burn::config::Config;
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{Device, Int, Tensor};
use gradnorm::{GradientNorms, RunWriter}; // +
use layers::{Doctor, Probes}; // +
use layers::{Fault, Finding, MhaInput, MultiHeadAttention, MultiHeadAttentionConfig, Scale};
use serde_json::json; // +
use tests::Random;

use crate::seeded;

/// A language model of a few tokens.
#[derive(Module, Debug)]
struct Model {
    tokens: Embedding,
    places: Embedding,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
}

#[derive(Module, Debug)]
struct Block {
    attention_norm: LayerNorm,
    attention: MultiHeadAttention,
    mlp_norm: LayerNorm,
    up: Linear,
    down: Linear,
}

#[derive(Config, Debug)]
struct ModelConfig {
    vocabulary: usize,
    length: usize,
    d_model: usize,
    heads: usize,
    blocks: usize,
    #[config(default = "Scale::InvSqrtDim")]
    scale: Scale,
    #[config(default = 3e-3)]
    lr: f64,
}

impl ModelConfig {
    fn init(&self, device: &Device) -> Model {
        let norm = || LayerNormConfig::new(self.d_model).init(device);
        let attention = MultiHeadAttentionConfig::new(self.d_model, self.heads)
            .with_causal(true)
            .with_scale(self.scale);
        let block = |_| Block {
            attention_norm: norm(),
            attention: attention.init(device),
            mlp_norm: norm(),
            up: LinearConfig::new(self.d_model, 4 * self.d_model).init(device),
            down: LinearConfig::new(4 * self.d_model, self.d_model).init(device),
        };
        Model {
            tokens: EmbeddingConfig::new(self.vocabulary, self.d_model).init(device),
            places: EmbeddingConfig::new(self.length, self.d_model).init(device),
            blocks: (0..self.blocks).map(block).collect(),
            norm: norm(),
            head: LinearConfig::new(self.d_model, self.vocabulary).init(device),
        }
    }
}

impl Model {
    /// `[batch, length]` to `[batch, length, vocabulary]`.
    fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let [_, length] = tokens.dims();
        let places = Tensor::arange(0..length as i64, &tokens.device()).unsqueeze();
        let mut x = self.tokens.forward(tokens) + self.places.forward(places);
        for block in &self.blocks {
            let input = MhaInput::self_attn(block.attention_norm.forward(x.clone()));
            x = x + block.attention.forward(input);
            let hidden = block.up.forward(block.mlp_norm.forward(x.clone()));
            x = x + block.down.forward(burn::tensor::activation::gelu(hidden));
        }
        self.head.forward(self.norm.forward(x))
    }
}

/// Sequences that repeat their first half.
fn batch(random: &mut Random, config: &ModelConfig, device: &Device) -> Tensor<2, Int> {
    let numbers: Vec<i64> = (0..8)
        .flat_map(|_| {
            let half: Vec<i64> = (0..config.length / 2)
                .map(|_| random.below(config.vocabulary) as i64)
                .collect();
            [half.clone(), half].concat()
        })
        .collect();
    Tensor::<1, Int>::from_ints(numbers.as_slice(), device).reshape([8, config.length])
}

/// The loop: the lines that are marked were added to it.
fn train(
    config: &ModelConfig,
    steps: usize,
    device: &Device,
    dir: &Path,
) -> Result<Vec<Finding>, Box<dyn Error>> {
    let mut model = config.init(device);
    let mut optimizer = AdamConfig::new().init();
    let mut random = Random::new(41);
    let mut run = RunWriter::create(dir, config)?; // +
    let (probes, mut doctor) = (Probes::of(&model), Doctor::new()); // +
    for step in 0..steps {
        probes.on(); // +
        let tokens = batch(&mut random, config, device);
        let length = config.length - 1;
        let logits = model.forward(tokens.clone().narrow(1, 0, length));
        let loss = CrossEntropyLossConfig::new().init(device).forward(
            logits.reshape([8 * length, config.vocabulary]),
            tokens.narrow(1, 1, length).reshape([8 * length]),
        );
        let gradients = loss.backward();
        let (norms, attention) = (GradientNorms::of(&model, &gradients), probes.take()); // +
        doctor.observe(&attention); // +
        run.append(&json!({ "step": step, "loss": loss.into_scalar::<f64>(), "norm": norms, "attention": attention }))?; // +
        let gradients = GradientsParams::from_grads(gradients, &model);
        model = optimizer.step(config.lr, model, gradients);
    }
    println!("{doctor}"); // +
    Ok(doctor.findings())
}

fn trained(scale: Scale) -> (gradnorm::RunLog, Vec<Finding>) {
    let device = Device::default().autodiff();
    let _turn = seeded(&device, 42);
    let config = ModelConfig::new(12, 12, 128, 2, 2).with_scale(scale);
    let parent = tempfile::tempdir().unwrap();
    let findings = train(&config, 6, &device, &parent.path().join("run")).unwrap();
    (
        gradnorm::RunLog::read(parent.path().join("run")).unwrap(),
        findings,
    )
}

#[test]
fn a_healthy_model_is_logged_layer_by_layer_and_gives_no_finding() {
    let (log, findings) = trained(Scale::InvSqrtDim);
    assert_eq!(findings, []);
    assert_eq!(log.lines().len(), 6);
    for line in log.lines() {
        for layer in 0..2 {
            let of = |name: &str| line.number(&format!("attention.{layer}.{name}")).unwrap();
            assert!((0.5..1.0).contains(&of("entropy")), "{}", of("entropy"));
            assert!(of("score_grad.p50") > 0.0);
            let weight = format!("norm.blocks.{layer}.attention.query.weight");
            assert!(line.number(&weight).unwrap() > 0.0);
        }
    }
}

#[test]
fn the_same_model_without_the_scale_gives_one_finding_a_layer() {
    let (_, findings) = trained(Scale::Unscaled);
    let found: Vec<_> = findings
        .iter()
        .map(|finding| (finding.fault, finding.path.as_str()))
        .collect();
    assert_eq!(
        found,
        [
            (Fault::ScaleMissing, "blocks.0.attention"),
            (Fault::ScaleMissing, "blocks.1.attention")
        ]
    );
}

/// The lines of this file that end with the mark, without it.
fn marked() -> Vec<&'static str> {
    include_str!("user_model.rs")
        .lines()
        .filter_map(|line| line.strip_suffix(" // +"))
        .map(str::trim)
        .collect()
}

#[test]
fn the_lines_added_are_ten_at_most_and_those_that_the_readme_shows() {
    let marked = marked();
    assert!(marked.len() <= 10, "{} lines were added", marked.len());
    let readme = include_str!("../../../README.md");
    let (_, rest) = readme.split_once("```diff\n").expect("the README's lines");
    let (block, _) = rest.split_once("```").expect("their end");
    let shown: Vec<&str> = block
        .lines()
        .filter_map(|line| line.strip_prefix('+'))
        .map(str::trim)
        .collect();
    assert_eq!(shown, marked);
    // The lines around them are there too, in their order.
    let mut file = include_str!("user_model.rs").lines().map(str::trim);
    for line in block.lines().filter(|line| line.starts_with(' ')) {
        let line = line.trim();
        assert!(
            line == "..." || file.any(|other| other == line),
            "{line:?} is not in the file, or not in that place"
        );
    }
}
