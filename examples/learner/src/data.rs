//! The task: one token of a sequence is marked, and the answer is which.

use burn::data::dataloader::batcher;
use burn::tensor::{Device, Int, Tensor, TensorData};

/// How many tokens there are; a marked token is another one, so many behind.
pub const TOKENS: usize = 8;
/// The length of a sequence.
pub const LENGTH: usize = 10;

/// A sequence and its answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// From 0 to twice [`TOKENS`].
    pub tokens: [u8; LENGTH],
    /// The marked token, without its mark.
    pub answer: u8,
}

/// Some items, the same for the same seed.
pub fn items(seed: u64, count: usize) -> Vec<Item> {
    let mut state = seed;
    // A linear congruential generator with the constants of Knuth's MMIX; the upper bits are good.
    let mut below = |limit: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) as usize % limit) as u8
    };
    (0..count)
        .map(|_| {
            let mut tokens = [0; LENGTH];
            tokens.fill_with(|| below(TOKENS));
            let marked = usize::from(below(LENGTH));
            let answer = tokens[marked];
            tokens[marked] += TOKENS as u8;
            Item { tokens, answer }
        })
        .collect()
}

/// Several items on a device.
#[derive(Clone, Debug)]
pub struct Batch {
    /// `[batch, LENGTH]`.
    pub tokens: Tensor<2, Int>,
    /// `[batch]`.
    pub answers: Tensor<1, Int>,
}

/// Puts items together.
pub(crate) struct Batcher;

impl batcher::Batcher<Item, Batch> for Batcher {
    fn batch(&self, items: Vec<Item>, device: &Device) -> Batch {
        let tokens: Vec<i64> = items
            .iter()
            .flat_map(|item| item.tokens.map(i64::from))
            .collect();
        let answers: Vec<i64> = items.iter().map(|item| item.answer.into()).collect();
        Batch {
            tokens: Tensor::from_data(TensorData::new(tokens, [items.len(), LENGTH]), device),
            answers: Tensor::from_data(TensorData::new(answers, [items.len()]), device),
        }
    }
}
