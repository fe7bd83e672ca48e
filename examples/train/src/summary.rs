//! The numbers of a comparison: each quantity in both arms, and their ratio, over the seeds.

use layers::Scale;
use serde::Serialize;

use crate::record::Record;
use crate::training::Run;

/// A number, or what is known of one that was not reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// The number.
    pub value: f64,
    /// Whether the number is a bound that the true one is above.
    pub more: bool,
}

/// One quantity over the seeds.
#[derive(Clone, Debug, PartialEq)]
pub struct Spread {
    /// One a seed, in the order of the seeds; `None` where it is not known.
    pub values: Vec<Option<Measured>>,
}

/// One quantity at one `d_k`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The width of one head.
    pub d_k: usize,
    /// The quantity.
    pub quantity: Quantity,
    /// With `1 / sqrt(d_k)`.
    pub scaled: Spread,
    /// Without.
    pub unscaled: Spread,
    /// Unscaled by scaled, each pair of one seed.
    pub ratio: Spread,
}

/// A quantity that both arms have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// The first step at which the mean accuracy over a window of batches was high.
    StepsToLearn,
    /// At step 0, of one layer: the median query's gradient at its scores.
    ScoreGradMedian(usize),
    /// At step 0, of one layer: the 90th percentile of that.
    ScoreGradP90(usize),
    /// At step 0, of one layer: the standard deviation of the scores.
    ScoreStd(usize),
    /// At step 0, of one layer: the share of queries with a weight above 0.99.
    Saturated(usize),
    /// At step 0, of one layer: the entropy of the weights, as a share of the largest possible.
    Entropy(usize),
    /// At step 0: the gradient norm of the query projections.
    QueryNorm,
    /// At step 0: the gradient norm of the key projections.
    KeyNorm,
    /// At step 0: the gradient norm of the value projections.
    ValueNorm,
    /// At step 0: the gradient norm of the output projections.
    OutputNorm,
    /// At step 0: the gradient norm of all parameters.
    AllNorm,
}

impl Quantity {
    /// Those of a model, in the order of the table.
    pub fn all(layers: usize) -> Vec<Self> {
        let of_layer = |layer| {
            [
                Self::ScoreStd(layer),
                Self::Saturated(layer),
                Self::Entropy(layer),
                Self::ScoreGradMedian(layer),
                Self::ScoreGradP90(layer),
            ]
        };
        let norms = [
            Self::QueryNorm,
            Self::KeyNorm,
            Self::ValueNorm,
            Self::OutputNorm,
            Self::AllNorm,
        ];
        std::iter::once(Self::StepsToLearn)
            .chain((0..layers).flat_map(of_layer))
            .chain(norms)
            .collect()
    }

    /// Its name in `summary.json`: where it is from a log's line, the line's step and its path.
    pub fn name(self) -> String {
        match self {
            Self::StepsToLearn => "steps_to_learn".to_string(),
            Self::ScoreGradMedian(of) => format!("step_0.attention.{of}.score_grad.p50"),
            Self::ScoreGradP90(of) => format!("step_0.attention.{of}.score_grad.p90"),
            Self::ScoreStd(of) => format!("step_0.attention.{of}.score_std"),
            Self::Saturated(of) => format!("step_0.attention.{of}.saturated"),
            Self::Entropy(of) => format!("step_0.attention.{of}.entropy"),
            Self::QueryNorm => "step_0.grad_norm.query".to_string(),
            Self::KeyNorm => "step_0.grad_norm.key".to_string(),
            Self::ValueNorm => "step_0.grad_norm.value".to_string(),
            Self::OutputNorm => "step_0.grad_norm.output".to_string(),
            Self::AllNorm => "step_0.grad_norm.all".to_string(),
        }
    }

    /// What one run gives.
    pub fn of(self, run: &Run) -> Option<Measured> {
        if self == Self::StepsToLearn {
            return Some(match run.learned_at {
                Some(step) => Measured::exact(step as f64),
                None => Measured {
                    value: run.steps as f64,
                    more: true,
                },
            });
        }
        let first = run.records.first().filter(|record| record.step == 0)?;
        self.at_start(first).map(Measured::exact)
    }

    fn at_start(self, record: &Record) -> Option<f64> {
        let layer = |layer: usize| record.attention.as_ref()?.get(layer);
        let norms = &record.grad_norm;
        match self {
            Self::StepsToLearn => None,
            Self::ScoreGradMedian(of) => layer(of)?.score_grad.map(|quantiles| quantiles.p50),
            Self::ScoreGradP90(of) => layer(of)?.score_grad.map(|quantiles| quantiles.p90),
            Self::ScoreStd(of) => layer(of).map(|statistics| statistics.score_std),
            Self::Saturated(of) => layer(of).map(|statistics| statistics.saturated),
            Self::Entropy(of) => layer(of).map(|statistics| statistics.entropy),
            Self::QueryNorm => norms.query,
            Self::KeyNorm => norms.key,
            Self::ValueNorm => norms.value,
            Self::OutputNorm => norms.output,
            Self::AllNorm => Some(norms.all),
        }
    }
}

/// The table: for each `d_k` of the runs, all quantities.
///
/// Runs of one `d_k` and seed are a pair.
pub fn rows(runs: &[Run]) -> Vec<Row> {
    let mut sizes: Vec<usize> = runs.iter().map(|run| run.config.d_k).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let layers = runs.first().map_or(0, |run| run.config.layers);
    let mut rows = Vec::new();
    for d_k in sizes {
        let arm = |scaled| {
            let mut arm: Vec<&Run> = runs
                .iter()
                .filter(|run| {
                    run.config.d_k == d_k && (run.config.scale != Scale::Unscaled) == scaled
                })
                .collect();
            arm.sort_by_key(|run| run.config.seed);
            arm
        };
        let (scaled, unscaled) = (arm(true), arm(false));
        for quantity in Quantity::all(layers) {
            let spread = |runs: &[&Run]| Spread {
                values: runs.iter().map(|run| quantity.of(run)).collect(),
            };
            let (scaled, unscaled) = (spread(&scaled), spread(&unscaled));
            rows.push(Row {
                d_k,
                quantity,
                ratio: unscaled.over(&scaled),
                scaled,
                unscaled,
            });
        }
    }
    rows
}

impl Measured {
    fn exact(value: f64) -> Self {
        Self { value, more: false }
    }

    /// A quotient, where anything is known of it: more than something by a number is more than
    /// their quotient; a number by more than something is nothing that a table could show.
    fn over(self, other: Self) -> Option<Self> {
        let known = !other.more && other.value != 0.0;
        known.then_some(Self {
            value: self.value / other.value,
            more: self.more,
        })
    }
}

impl Spread {
    /// This by another, seed by seed.
    pub fn over(&self, other: &Self) -> Self {
        let pairs = self.values.iter().zip(&other.values);
        Self {
            values: pairs.map(|(a, b)| (*a)?.over((*b)?)).collect(),
        }
    }

    /// In ascending order, if all are known. Whatever a bound stands for may belong further up, so
    /// from the first bound on, all are bounds.
    fn sorted(&self) -> Option<Vec<Measured>> {
        let mut sorted: Vec<Measured> = self.values.iter().copied().collect::<Option<_>>()?;
        sorted.sort_by(|a, b| a.value.total_cmp(&b.value));
        let mut more = false;
        for measured in &mut sorted {
            more |= measured.more;
            measured.more = more;
        }
        (!sorted.is_empty()).then_some(sorted)
    }

    /// The median; between two numbers, their mean.
    pub fn median(&self) -> Option<Measured> {
        let sorted = self.sorted()?;
        let (low, high) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        Some(Measured {
            value: (low.value + high.value) / 2.0,
            more: high.more,
        })
    }

    /// The smallest and the largest.
    pub fn range(&self) -> Option<(Measured, Measured)> {
        let sorted = self.sorted()?;
        Some((sorted[0], sorted[sorted.len() - 1]))
    }

    /// How many are certainly greater than a number.
    pub fn above(&self, bound: f64) -> usize {
        let known = self.values.iter().flatten();
        known.filter(|measured| measured.value > bound).count()
    }

    /// How many are certainly less than a number.
    pub fn below(&self, bound: f64) -> usize {
        let known = self.values.iter().flatten();
        known
            .filter(|measured| measured.value < bound && !measured.more)
            .count()
    }
}

/// Its [`name`](Quantity::name).
impl Serialize for Quantity {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.name())
    }
}

/// A number, or `"> number"`.
impl Serialize for Measured {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.more {
            true => serializer.collect_str(&format_args!("> {}", self.value)),
            false => serializer.serialize_f64(self.value),
        }
    }
}

/// `median`, `min`, `max` and `values`.
impl Serialize for Spread {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields<'a> {
            median: Option<Measured>,
            min: Option<Measured>,
            max: Option<Measured>,
            values: &'a [Option<Measured>],
        }
        let range = self.range();
        Fields {
            median: self.median(),
            min: range.map(|(min, _)| min),
            max: range.map(|(_, max)| max),
            values: &self.values,
        }
        .serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(values: &[(f64, bool)]) -> Spread {
        let measured = |&(value, more)| Some(Measured { value, more });
        Spread {
            values: values.iter().map(measured).collect(),
        }
    }

    #[test]
    fn ratios_are_taken_seed_by_seed_and_not_of_medians() {
        let scaled = spread(&[(1.0, false), (2.0, false), (4.0, false)]);
        let unscaled = spread(&[(8.0, false), (2.0, false), (8.0, false)]);
        let ratio = unscaled.over(&scaled);
        assert_eq!(ratio, spread(&[(8.0, false), (1.0, false), (2.0, false)]));
        assert_eq!(ratio.median().unwrap().value, 2.0);
    }

    #[test]
    fn a_run_that_never_learned_makes_its_ratio_a_bound() {
        let scaled = spread(&[(50.0, false), (40.0, false)]);
        let unscaled = spread(&[(600.0, true), (200.0, false)]);
        let ratio = unscaled.over(&scaled);
        assert_eq!(ratio, spread(&[(12.0, true), (5.0, false)]));
        assert!(ratio.median().unwrap().more);
        assert_eq!(ratio.above(4.0), 2);
        // The other way round nothing is known of the first pair.
        assert_eq!(scaled.over(&unscaled).values[0], None);
        assert_eq!(scaled.over(&unscaled).median(), None);
    }

    #[test]
    fn a_bound_is_written_as_such() {
        let json = serde_json::to_value(spread(&[(600.0, true), (2.5, false)])).unwrap();
        assert_eq!(json["values"], serde_json::json!(["> 600", 2.5]));
        assert_eq!(json["max"], "> 600");
    }
}
