//! What no parameter's gradient shows: what the softmax of one layer did, query by query.

use core::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorData};
use serde::{Deserialize, Serialize};

use crate::op::{NO_GRADIENT, PER_ROW};

/// A slot that a call leaves its row statistics in.
///
/// Attach one to the input of a layer. Without gradients the statistics are there after the
/// forward pass, without the gradient at the scores; in training they are there after
/// `backward`, taken where the gradient passes, and the call computes what it would compute
/// without a probe, bit for bit. Memory is linear in the length.
///
/// # Example
///
/// ```
/// use burn::tensor::{Device, Distribution, Tensor};
/// use layers::{AttentionInput, Probe, ScaledDotProductAttentionConfig};
///
/// let device = Device::default().autodiff();
/// let x = Tensor::<4>::random([2, 3, 5, 8], Distribution::Default, &device).require_grad();
/// let attention = ScaledDotProductAttentionConfig::new().init(&device);
/// let probe = Probe::new();
/// let input = AttentionInput::new(x.clone(), x.clone(), x).probe(&probe);
/// attention.forward(input).sum().backward();
/// let rows = probe.take().expect("backward has passed");
/// assert_eq!(rows.len(), 2 * 3 * 5); // batch, heads, queries
/// assert_eq!(rows[0].keys, 5);
/// assert!(rows[0].max_weight >= 0.2);
/// ```
#[derive(Clone, Default)]
pub struct Probe {
    slot: Arc<Mutex<Option<Reading>>>,
}

/// Reads the numbers from the device when they are asked for.
type Reading = Box<dyn FnOnce() -> TensorData + Send>;

/// What the softmax did with one query row of one head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowStatistics {
    /// How many keys the row sees.
    pub keys: usize,
    /// The sum of its scores, as they enter the softmax.
    pub score_sum: f64,
    /// The sum of their squares.
    pub score_sum_of_squares: f64,
    /// Its largest weight, before dropout.
    pub max_weight: f64,
    /// The entropy of its weights, in nats.
    pub entropy: f64,
    /// The L2 norm of the loss's gradient at its scores; `None` where no gradient passed.
    pub score_gradient: Option<f64>,
}

impl Probe {
    /// An empty slot.
    pub fn new() -> Self {
        Self::default()
    }

    /// The statistics that the last call left, one entry a row in the order batch, head, query;
    /// `None` if none has passed since the last `take`. Waits for the device.
    pub fn take(&self) -> Option<Vec<RowStatistics>> {
        let reading = self.lock().take()?;
        let data = reading();
        let numbers: Vec<f64> = data.iter::<f64>().collect();
        Some(
            numbers
                .chunks_exact(PER_ROW)
                .map(RowStatistics::from_numbers)
                .collect(),
        )
    }

    pub(crate) fn record<B: Backend>(&self, rows: FloatTensor<B>) {
        *self.lock() = Some(Box::new(move || {
            burn::backend::try_read_sync(B::float_into_data(rows))
                .expect("a device that can be read from without waiting for an event loop")
                .expect("the statistics' computation to succeed on the device")
        }));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Reading>> {
        // A panic elsewhere leaves the slot either empty or whole.
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RowStatistics {
    fn from_numbers(row: &[f64]) -> Self {
        Self {
            keys: row[0] as usize,
            score_sum: row[1],
            score_sum_of_squares: row[2],
            max_weight: row[3],
            entropy: row[4],
            score_gradient: (row[5] != NO_GRADIENT).then_some(row[5]),
        }
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probe")
            .field("filled", &self.lock().is_some())
            .finish()
    }
}

/// Two handles are equal if they share a slot.
impl PartialEq for Probe {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.slot, &other.slot)
    }
}

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
const SATURATED: f64 = 0.99;

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
    fn of(mut numbers: Vec<f64>) -> Self {
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
