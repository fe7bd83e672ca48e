//! One line of a run's log.

use gradnorm::GradientNorms;
use layers::{AttentionStatistics, RowStatistics, Scale};
use serde::Serialize;

use crate::config::by_name;

/// What is known of one step, before its update: a line of `metrics.jsonl`.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    /// How many updates came before.
    pub step: u64,
    /// The mean over the batch of the cross-entropy, in nats.
    pub loss: f64,
    /// The share of the batch that was answered right.
    pub accuracy: f64,
    /// The factor on the scores, by name.
    #[serde(serialize_with = "by_name")]
    pub scale: Scale,
    /// The width of one head.
    pub d_k: usize,
    /// The run's seed.
    pub seed: u64,
    /// L2 norms of the gradient of `loss`.
    pub grad_norm: GradNorm,
    /// What the softmax of each attention layer did; left out at steps that were not probed.
    ///
    /// At step 0 this is of samples drawn for it ([`MEASURED_SAMPLES`](crate::MEASURED_SAMPLES)),
    /// later of the step's batch.
    /// A row is one query of one head. `score_grad` is the norm of the gradient of the row's own
    /// sample's loss at the row's scores, as they enter the softmax: it does not shrink with the
    /// batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention: Option<Vec<AttentionStatistics>>,
}

/// The norms of the groups of parameters, and of each parameter.
///
/// A group has the projection's name and is taken over all layers.
#[derive(Clone, Debug, Serialize)]
pub struct GradNorm {
    /// All parameters together.
    pub all: f64,
    /// The query projections.
    pub query: Option<f64>,
    /// The key projections.
    pub key: Option<f64>,
    /// The value projections.
    pub value: Option<f64>,
    /// The output projections.
    pub output: Option<f64>,
    /// By path.
    pub params: GradientNorms,
}

impl From<GradientNorms> for GradNorm {
    fn from(params: GradientNorms) -> Self {
        let projection = |name| params.matching(format!("**.attention.{name}.*"));
        Self {
            all: params.global(),
            query: projection("query"),
            key: projection("key"),
            value: projection("value"),
            output: projection("output"),
            params,
        }
    }
}

/// Sums up the rows of one layer after a backward pass from the mean loss of `batch` samples.
pub(crate) fn statistics(mut rows: Vec<RowStatistics>, batch: usize) -> AttentionStatistics {
    for row in &mut rows {
        // The mean's gradient is 1/batch of that of the sample's own loss.
        let gradient = row.score_gradient.as_mut();
        *gradient.expect("a backward pass reaches every layer's scores") *= batch as f64;
    }
    AttentionStatistics::of(&rows).expect("a batch has at least one sample, with keys to see")
}
