//! What probes read, in burn-train's dashboard and log files (feature `metrics`).
//!
//! The output of the training step holds what [`Probes::take`](crate::Probes::take) gave and gives
//! it by [`Adaptor`](burn::train::metric::Adaptor).

use std::sync::Arc;

use burn::tensor::TensorReadError;
use burn::train::metric::state::{FormatOptions, NumericMetricState};
use burn::train::metric::{
    Metric, MetricAttributes, MetricMetadata, MetricName, Numeric, NumericAttributes, NumericEntry,
    SerializedEntry,
};

use crate::probe::LayerStatistics;

/// A number of a model's attention as a metric of burn-train's learner: the mean over its layers,
/// or that of one.
///
/// Steps that are not measured leave no number, so probes may be on at some steps only.
///
/// # Example
///
/// ```
/// use std::sync::Arc;
///
/// use burn::train::metric::{Adaptor, Metric};
/// use layers::LayerStatistics;
/// use layers::metrics::{AttentionMetricInput, AttentionMetric};
///
/// /// What a training step gives, beside its loss.
/// struct Step {
///     attention: Arc<[LayerStatistics]>,
/// }
///
/// impl Adaptor<AttentionMetricInput> for Step {
///     fn adapt(&self) -> AttentionMetricInput {
///         AttentionMetricInput::new(self.attention.clone())
///     }
/// }
///
/// // SupervisedTraining::new(dir, train, valid)
/// //     .metric_train_numeric(AttentionMetric::entropy())
/// //     .metric_train_numeric(AttentionMetric::saturation().of("blocks.0.attention"))
/// assert_eq!(*AttentionMetric::entropy().name(), "Attention Entropy");
/// let first = AttentionMetric::saturation().of("blocks.0.attention");
/// assert_eq!(*first.name(), "Attention Saturation blocks.0.attention");
/// ```
#[derive(Clone)]
pub struct AttentionMetric {
    name: MetricName,
    quantity: Quantity,
    path: Option<String>,
    state: NumericMetricState,
    /// How many steps were measured.
    steps: usize,
    /// Whether the last one was.
    measured: bool,
}

/// What an [`AttentionMetric`] takes: what was measured at one step, if anything.
#[derive(Clone, Debug, Default)]
pub struct AttentionMetricInput {
    layers: Arc<[LayerStatistics]>,
}

impl AttentionMetricInput {
    /// The measured calls of a step; [`default`](Self::default) for a step that was not measured.
    pub fn new(layers: impl Into<Arc<[LayerStatistics]>>) -> Self {
        Self {
            layers: layers.into(),
        }
    }
}

#[derive(Clone, Copy)]
enum Quantity {
    Entropy,
    Saturation,
    MaxWeight,
    ScoreStd,
    ScoreGradient,
}

impl Quantity {
    fn name(self) -> &'static str {
        match self {
            Self::Entropy => "Attention Entropy",
            Self::Saturation => "Attention Saturation",
            Self::MaxWeight => "Attention Largest Weight",
            Self::ScoreStd => "Attention Score Deviation",
            Self::ScoreGradient => "Attention Score Gradient",
        }
    }

    fn description(self) -> &'static str {
        match self {
            Self::Entropy => "The mean entropy of a query's weights, as a fraction of ln(keys)",
            Self::Saturation => "The share of queries whose largest weight is above 0.99",
            Self::MaxWeight => "The mean of a query's largest weight",
            Self::ScoreStd => "The standard deviation of the scores",
            Self::ScoreGradient => {
                "The median over the queries of the norm of the gradient at their scores"
            }
        }
    }

    fn read(self, layer: &LayerStatistics) -> Option<f64> {
        let of = &layer.statistics;
        match self {
            Self::Entropy => Some(of.entropy),
            Self::Saturation => Some(of.saturated),
            Self::MaxWeight => Some(of.max_weight),
            Self::ScoreStd => Some(of.score_std),
            Self::ScoreGradient => of.score_grad.map(|quantiles| quantiles.p50),
        }
    }
}

impl AttentionMetric {
    /// The mean entropy of the weights, as a fraction of the largest possible.
    pub fn entropy() -> Self {
        Self::new(Quantity::Entropy)
    }

    /// The share of queries whose largest weight is above 0.99.
    pub fn saturation() -> Self {
        Self::new(Quantity::Saturation)
    }

    /// The mean of the largest weight.
    pub fn max_weight() -> Self {
        Self::new(Quantity::MaxWeight)
    }

    /// The standard deviation of the scores.
    pub fn score_std() -> Self {
        Self::new(Quantity::ScoreStd)
    }

    /// The median over the queries of the norm of the loss's gradient at their scores.
    pub fn score_gradient() -> Self {
        Self::new(Quantity::ScoreGradient)
    }

    fn new(quantity: Quantity) -> Self {
        Self {
            name: Arc::new(quantity.name().into()),
            quantity,
            path: None,
            state: NumericMetricState::new(),
            steps: 0,
            measured: false,
        }
    }

    /// Of the layer of that path alone, which joins the name.
    pub fn of(mut self, path: &str) -> Self {
        self.name = Arc::new(format!("{} {path}", self.quantity.name()));
        self.path = Some(path.into());
        self
    }

    fn format(&self) -> FormatOptions {
        FormatOptions::new(self.name.clone()).precision(4)
    }

    fn read(&self, layers: &[LayerStatistics]) -> Option<f64> {
        let numbers: Vec<f64> = layers
            .iter()
            .filter(|layer| self.path.as_ref().is_none_or(|path| *path == layer.path))
            .filter_map(|layer| self.quantity.read(layer))
            .collect();
        let count = numbers.len() as f64;
        (!numbers.is_empty()).then(|| numbers.iter().sum::<f64>() / count)
    }
}

impl Metric for AttentionMetric {
    type Input = AttentionMetricInput;

    fn name(&self) -> MetricName {
        self.name.clone()
    }

    fn description(&self) -> Option<String> {
        Some(self.quantity.description().into())
    }

    fn attributes(&self) -> MetricAttributes {
        NumericAttributes {
            unit: None,
            higher_is_better: matches!(self.quantity, Quantity::Entropy | Quantity::ScoreGradient),
        }
        .into()
    }

    fn update(
        &mut self,
        input: &Self::Input,
        _metadata: &MetricMetadata,
    ) -> Result<SerializedEntry, TensorReadError> {
        let number = self.read(&input.layers);
        self.measured = number.is_some();
        let Some(number) = number else {
            return Ok(SerializedEntry::not_available(None));
        };
        self.state.update(number, 1);
        self.steps += 1;
        Ok(self.state.compute_update(self.format()))
    }

    fn compute(&mut self) -> Result<SerializedEntry, TensorReadError> {
        match self.steps {
            0 => Ok(SerializedEntry::not_available(None)),
            _ => Ok(self.state.compute_final(self.format())),
        }
    }

    fn clear(&mut self) {
        self.state.reset();
        self.steps = 0;
        self.measured = false;
    }
}

impl Numeric for AttentionMetric {
    fn value(&self) -> Option<NumericEntry> {
        self.measured.then(|| self.state.current_value())
    }

    fn running_value(&self) -> Option<NumericEntry> {
        (self.steps > 0).then(|| self.state.running_value())
    }

    fn final_value(&self) -> NumericEntry {
        self.state.final_value()
    }
}
