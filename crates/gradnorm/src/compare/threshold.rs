//! The first step at which a quantity reaches a threshold.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::{self, Display};

use serde::Serialize;

use super::{Series, ratios};

/// A bound that a quantity may reach in the course of a run.
///
/// # Example
///
/// ```
/// use gradnorm::Threshold;
///
/// // The first step with an accuracy of 0.9, and the first that ends twenty logged values with
/// // that mean.
/// let learned = Threshold::at_least("accuracy", 0.9).mean_over(20);
/// assert_eq!(learned.to_string(), "accuracy >= 0.9");
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Threshold {
    quantity: String,
    bound: Bound,
    window: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Threshold {
    /// Reached by a value of `bound` or more.
    pub fn at_least(quantity: impl Into<String>, bound: f64) -> Self {
        Self::new(quantity.into(), Bound::AtLeast(bound))
    }

    /// Reached by a value of `bound` or less.
    pub fn at_most(quantity: impl Into<String>, bound: f64) -> Self {
        Self::new(quantity.into(), Bound::AtMost(bound))
    }

    fn new(quantity: String, bound: Bound) -> Self {
        Self {
            quantity,
            bound,
            window: None,
        }
    }

    /// Looks at the mean of the last `window` logged values as well as at single values.
    ///
    /// The step found is that of the window's last value. Until a run has `window` values, there is
    /// no mean.
    ///
    /// # Panics
    ///
    /// If `window` is 0.
    pub fn mean_over(mut self, window: usize) -> Self {
        assert!(window > 0, "the window of a running mean must be 1 or more");
        self.window = Some(window);
        self
    }

    /// The quantity's dotted path.
    pub fn quantity(&self) -> &str {
        &self.quantity
    }

    fn reached(&self, value: f64) -> bool {
        match self.bound {
            Bound::AtLeast(bound) => value >= bound,
            Bound::AtMost(bound) => value <= bound,
        }
    }

    /// One entry for single values and, if a window is set, one for the mean.
    pub(super) fn first_steps(&self, runs: &[&Series]) -> Vec<FirstStep> {
        [Some(1), self.window]
            .into_iter()
            .flatten()
            .map(|window| {
                let first = |run: &&Series| {
                    let by_step = run.quantities.get(&self.quantity)?;
                    first_step(by_step, window, |mean| self.reached(mean))
                };
                FirstStep::new(self, window, runs.iter().map(first).collect())
            })
            .collect()
    }
}

impl Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bound {
            Bound::AtLeast(bound) => write!(f, "{} >= {bound}", self.quantity),
            Bound::AtMost(bound) => write!(f, "{} <= {bound}", self.quantity),
        }
    }
}

/// When each run reached a threshold.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct FirstStep {
    /// The threshold, as in `accuracy >= 0.9`.
    pub threshold: String,
    /// How many values the mean is of; 1 for single values.
    pub window: usize,
    /// Each run's first step at which it is reached; `None` if it never is.
    pub steps: Vec<Option<u64>>,
    /// Each run's step divided by the first run's.
    pub ratios: Vec<Option<f64>>,
}

impl FirstStep {
    fn new(threshold: &Threshold, window: usize, steps: Vec<Option<u64>>) -> Self {
        let as_floats: Vec<_> = steps.iter().map(|step| step.map(|s| s as f64)).collect();
        Self {
            threshold: threshold.to_string(),
            window,
            ratios: ratios(&as_floats),
            steps,
        }
    }
}

/// `accuracy >= 0.9`, or `accuracy >= 0.9 (mean of 20)`.
impl Display for FirstStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.window {
            1 => write!(f, "{}", self.threshold),
            window => write!(f, "{} (mean of {window})", self.threshold),
        }
    }
}

fn first_step(
    by_step: &BTreeMap<u64, f64>,
    window: usize,
    reached: impl Fn(f64) -> bool,
) -> Option<u64> {
    let mut last = VecDeque::with_capacity(window.min(by_step.len()));
    by_step.iter().find_map(|(step, value)| {
        if last.len() == window {
            last.pop_front();
        }
        last.push_back(*value);
        // Summed anew for each step: a sum carried along would stay NaN after one NaN.
        let mean = last.iter().sum::<f64>() / window as f64;
        (last.len() == window && reached(mean)).then_some(*step)
    })
}
