//! Gradient norms in burn-train's dashboard and log files.

use std::sync::Arc;

use burn::tensor::TensorReadError;
use burn::train::metric::state::{FormatOptions, NumericMetricState};
use burn::train::metric::{
    Metric, MetricAttributes, MetricMetadata, MetricName, Numeric, NumericAttributes, NumericEntry,
    SerializedEntry,
};

use crate::{GradientNorms, PathPattern};

/// The norm of a model's gradients, or of a group of them, as a metric of burn-train's learner.
///
/// The output of the training step holds the step's [`GradientNorms`] and gives them by
/// [`Adaptor`](burn::train::metric::Adaptor). Register it with `metric_train_numeric`: there are no
/// gradients in validation.
///
/// # Example
///
/// ```
/// use std::sync::Arc;
///
/// use burn::train::metric::{Adaptor, Metric};
/// use gradnorm::{GradientNormInput, GradientNormMetric, GradientNorms};
///
/// /// What a training step gives, beside its loss.
/// struct Step {
///     norms: Arc<GradientNorms>,
/// }
///
/// impl Adaptor<GradientNormInput> for Step {
///     fn adapt(&self) -> GradientNormInput {
///         GradientNormInput::new(self.norms.clone())
///     }
/// }
///
/// // SupervisedTraining::new(dir, train, valid)
/// //     .metric_train_numeric(GradientNormMetric::new())
/// //     .metric_train_numeric(GradientNormMetric::matching("query", "**.query.*"))
/// assert_eq!(*GradientNormMetric::new().name(), "Gradient Norm");
/// assert_eq!(*GradientNormMetric::matching("query", "**.query.*").name(), "Gradient Norm query");
/// ```
#[derive(Clone)]
pub struct GradientNormMetric {
    name: MetricName,
    pattern: PathPattern,
    state: NumericMetricState,
    /// How many steps had a norm.
    steps: usize,
    /// Whether the last one had.
    measured: bool,
}

/// What a [`GradientNormMetric`] takes: the norms of one step, if it has any.
#[derive(Clone, Debug, Default)]
pub struct GradientNormInput {
    norms: Option<Arc<GradientNorms>>,
}

impl GradientNormInput {
    /// The norms of a step; [`default`](Self::default) for a step that was not measured.
    pub fn new(norms: impl Into<Arc<GradientNorms>>) -> Self {
        Self {
            norms: Some(norms.into()),
        }
    }
}

impl GradientNormMetric {
    /// The norm of all gradients together, under the name `Gradient Norm`.
    pub fn new() -> Self {
        Self::named("Gradient Norm".into(), PathPattern::new("**"))
    }

    /// The norm of the gradients whose paths match, under the name `Gradient Norm {name}`.
    ///
    /// A step without such gradients leaves no number.
    pub fn matching(name: &str, pattern: impl Into<PathPattern>) -> Self {
        Self::named(format!("Gradient Norm {name}"), pattern.into())
    }

    fn named(name: String, pattern: PathPattern) -> Self {
        Self {
            name: Arc::new(name),
            pattern,
            state: NumericMetricState::new(),
            steps: 0,
            measured: false,
        }
    }

    fn format(&self) -> FormatOptions {
        FormatOptions::new(self.name.clone()).precision(4)
    }
}

impl Default for GradientNormMetric {
    fn default() -> Self {
        Self::new()
    }
}

impl Metric for GradientNormMetric {
    type Input = GradientNormInput;

    fn name(&self) -> MetricName {
        self.name.clone()
    }

    fn description(&self) -> Option<String> {
        Some("The L2 norm of the gradient of the loss, before any clipping".into())
    }

    fn attributes(&self) -> MetricAttributes {
        NumericAttributes {
            unit: None,
            higher_is_better: false,
        }
        .into()
    }

    fn update(
        &mut self,
        input: &Self::Input,
        _metadata: &MetricMetadata,
    ) -> Result<SerializedEntry, TensorReadError> {
        let norms = input.norms.as_ref();
        let norm = norms.and_then(|norms| norms.matching(self.pattern.clone()));
        self.measured = norm.is_some();
        let Some(norm) = norm else {
            return Ok(SerializedEntry::not_available(None));
        };
        self.state.update(norm, 1);
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

impl Numeric for GradientNormMetric {
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
