//! One layer's rows, summed up.

use serde::{Deserialize, Serialize};

use super::RowStatistics;

/// One layer's row statistics, summed up.
///
/// # Example
///
/// ```
/// use layers::{AttentionStatistics, RowStatistics};
///
/// let row = |max_weight, score_gradient| RowStatistics {
///     keys: 2,
///     score_sum: 4.0,
///     score_sum_of_squares: 10.0, // scores 1 and 3
///     max_weight,
///     entropy: 0.0,
///     score_gradient: Some(score_gradient),
/// };
/// let of = AttentionStatistics::of(&[row(0.5, 0.0), row(0.995, 2.0)]).unwrap();
/// assert_eq!(of.score_std, 1.0);
/// assert_eq!(of.saturated, 0.5);
/// assert_eq!(of.score_grad.unwrap().p50, 1.0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionStatistics {
    /// The standard deviation of all visible scores, as they enter the softmax.
    pub score_std: f64,
    /// The mean over the rows of the largest weight.
    pub max_weight: f64,
    /// The mean over the rows of the entropy of the weights, as a fraction of the largest
    /// possible, `ln(keys)`; rows that see fewer than two keys are left out.
    pub entropy: f64,
    /// The share of rows whose largest weight is above 0.99.
    pub saturated: f64,
    /// How the L2 norm of the loss's gradient at the scores of one row is distributed over the
    /// rows; `None` where no gradient passed.
    pub score_grad: Option<Quantiles>,
}

/// A distribution over rows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    /// The mean.
    pub mean: f64,
    /// The 10th percentile, interpolated linearly.
    pub p10: f64,
    /// The median.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
}

/// The largest weight above which a row counts as saturated.
pub(super) const SATURATED: f64 = 0.99;

impl AttentionStatistics {
    /// Sums up the rows that see any key; `None` if there is none.
    pub fn of(rows: &[RowStatistics]) -> Option<Self> {
        let rows: Vec<_> = rows.iter().filter(|row| row.keys > 0).collect();
        let count = rows.len() as f64;
        let sum = |f: &dyn Fn(&RowStatistics) -> f64| rows.iter().map(|row| f(row)).sum::<f64>();
        let scores = sum(&|row| row.keys as f64);
        let mean = sum(&|row| row.score_sum) / scores;
        let variance = sum(&|row| row.score_sum_of_squares) / scores - mean * mean;
        let entropies: Vec<f64> = rows
            .iter()
            .filter(|row| row.keys > 1)
            .map(|row| row.entropy / (row.keys as f64).ln())
            .collect();
        let gradients: Option<Vec<f64>> = rows.iter().map(|row| row.score_gradient).collect();
        (!rows.is_empty()).then(|| Self {
            score_std: variance.max(0.0).sqrt(),
            max_weight: sum(&|row| row.max_weight) / count,
            entropy: entropies.iter().sum::<f64>() / (entropies.len() as f64).max(1.0),
            saturated: sum(&|row| f64::from(row.max_weight > SATURATED)) / count,
            score_grad: gradients.map(Quantiles::of),
        })
    }
}

impl Quantiles {
    /// Of at least one number.
    pub(super) fn of(mut numbers: Vec<f64>) -> Self {
        numbers.sort_by(f64::total_cmp);
        let quantile = |share: f64| {
            let place = share * (numbers.len() - 1) as f64;
            let (low, high) = (
                numbers[place.floor() as usize],
                numbers[place.ceil() as usize],
            );
            low + (high - low) * place.fract()
        };
        Self {
            mean: numbers.iter().sum::<f64>() / numbers.len() as f64,
            p10: quantile(0.1),
            p50: quantile(0.5),
            p90: quantile(0.9),
        }
    }
}
