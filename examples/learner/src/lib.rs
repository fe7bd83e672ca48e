//! A model trained by burn-train's learner, with its gradient norms and what its attention does
//! among the learner's metrics: in the dashboard and in the log files.
//!
//! What there is to see: the training step of [`Model`] measures, its output, [`Step`], hands the
//! measurements to the metrics, and [`train`] registers them.
//!
//! ```sh
//! cargo run --release -p learner -- runs/learner
//! ```
//!
//! writes `runs/learner/train/epoch-1/Gradient_Norm.log` and so on, a line a step.

mod data;
mod model;

use std::path::Path;

use burn::data::dataloader::DataLoaderBuilder;
use burn::data::dataset::InMemDataset;
use burn::optim::AdamConfig;
use burn::optim::lr_scheduler::constant::ConstantLr;
use burn::tensor::Device;
use burn::train::metric::{AccuracyMetric, LossMetric};
use burn::train::renderer::CliMetricsRenderer;
use burn::train::{Learner, SupervisedTraining};
use gradnorm::GradientNormMetric;
use layers::metrics::AttentionMetric;

pub use data::{Batch, Item, LENGTH, TOKENS, items};
pub use model::{Model, ModelConfig, Step};

/// How many items a step has.
const BATCH: usize = 32;
/// How many steps an epoch has.
const STEPS: usize = 25;

/// Trains for some epochs, with Burn's log files in the directory.
pub fn train(dir: impl AsRef<Path>, epochs: usize, device: &Device) -> Model {
    device.seed(7);
    let loader = |seed: u64, count: usize| {
        DataLoaderBuilder::new(data::Batcher)
            .batch_size(BATCH)
            .build(InMemDataset::new(items(seed, count)))
    };
    let training = SupervisedTraining::new(dir, loader(1, BATCH * STEPS), loader(2, 4 * BATCH))
        .metrics((LossMetric::new(), AccuracyMetric::new()))
        .metric_train_numeric(GradientNormMetric::new())
        .metric_train_numeric(GradientNormMetric::matching(
            "query",
            "**.attention.query.*",
        ))
        .metric_train_numeric(GradientNormMetric::matching(
            "value",
            "**.attention.value.*",
        ))
        .metric_train_numeric(AttentionMetric::entropy())
        .metric_train_numeric(AttentionMetric::saturation())
        .metric_train_numeric(AttentionMetric::entropy().of("blocks.1.attention"))
        .metric_train_numeric(AttentionMetric::score_gradient())
        .renderer(Box::new(CliMetricsRenderer::new()))
        .with_application_logger(None)
        .num_epochs(epochs)
        .summary();
    let model = ModelConfig::new().init(&device.clone().autodiff());
    let learner = Learner::new(model, AdamConfig::new().init(), ConstantLr::new(3e-3));
    training.launch(learner).model
}
