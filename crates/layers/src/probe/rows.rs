//! One call's rows.

use core::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorData};

use crate::op::{NO_GRADIENT, PER_ROW, column};

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
        let rows = self.take_numbers()?;
        Some(rows.iter().map(RowStatistics::from_numbers).collect())
    }

    /// Every number of every row, in the order batch, head, query.
    pub(super) fn take_numbers(&self) -> Option<Vec<[f64; PER_ROW]>> {
        let reading = self.lock().take()?;
        let numbers: Vec<f64> = reading().iter::<f64>().collect();
        let (rows, _) = numbers.as_chunks();
        Some(rows.to_vec())
    }

    pub(super) fn record<B: Backend>(&self, rows: FloatTensor<B>) {
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
    pub(super) fn from_numbers(row: &[f64; PER_ROW]) -> Self {
        Self {
            keys: row[column::KEYS] as usize,
            score_sum: row[column::SCORE_SUM],
            score_sum_of_squares: row[column::SCORE_SQUARES],
            max_weight: row[column::MAX_WEIGHT],
            entropy: row[column::ENTROPY],
            score_gradient: norm(row[column::SCORE_GRADIENT]),
        }
    }
}

/// A gradient's norm, where a gradient passed.
pub(super) fn norm(number: f64) -> Option<f64> {
    (number != NO_GRADIENT).then_some(number)
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
