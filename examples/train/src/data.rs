//! The task, associative recall: a sample shows pairs of a key and a value, then asks for the
//! value of one of the keys.
//!
//! Attention solves it in one layer: the question must find the pair with its key, so the softmax
//! has to learn whom to look at, and it can only learn that through the gradient at the scores.

use burn::tensor::{Device, Int, Tensor, TensorData};
use rand::RngExt;
use rand::rngs::ChaCha8Rng;
use rand::seq::index;

/// The task's name in a run's config.
pub const TASK: &str = "associative_recall";
/// How many keys there are.
pub const KEYS: usize = 32;
/// How many values there are.
pub const VALUES: usize = 32;
/// How many pairs a sample shows.
pub const PAIRS: usize = 16;
/// How many tokens a sample has: one a pair, and the question.
pub const TOKENS: usize = PAIRS + 1;

/// One sample: its pairs have different keys, and values that may repeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The key of each pair.
    pub keys: [usize; PAIRS],
    /// The value of each pair.
    pub values: [usize; PAIRS],
    /// The place of the pair that is asked for.
    pub asked: usize,
}

impl Sample {
    /// Draws one: keys without replacement, values with, the pair asked for; all uniform.
    pub(crate) fn draw(generator: &mut ChaCha8Rng) -> Self {
        let keys = index::sample(generator, KEYS, PAIRS);
        Self {
            keys: std::array::from_fn(|place| keys.index(place)),
            values: std::array::from_fn(|_| generator.random_range(0..VALUES)),
            asked: generator.random_range(0..PAIRS),
        }
    }

    /// The key that is asked for.
    pub fn question(&self) -> usize {
        self.keys[self.asked]
    }

    /// The value of that key.
    pub fn answer(&self) -> usize {
        self.values[self.asked]
    }
}

/// Samples on a device.
#[derive(Clone, Debug)]
pub struct Batch {
    /// `[batch, PAIRS]`.
    pub keys: Tensor<2, Int>,
    /// `[batch, PAIRS]`.
    pub values: Tensor<2, Int>,
    /// `[batch, 1]`, the key asked for.
    pub question: Tensor<2, Int>,
    /// `[batch]`, its value.
    pub answer: Tensor<1, Int>,
}

impl Batch {
    /// Puts samples on a device.
    pub fn new(samples: &[Sample], device: &Device) -> Self {
        let batch = samples.len();
        let matrix = |width, of: &dyn Fn(&Sample) -> Vec<usize>| {
            Tensor::from_data(TensorData::new(column(samples, of), [batch, width]), device)
        };
        let answers = column(samples, &|sample| vec![sample.answer()]);
        Self {
            keys: matrix(PAIRS, &|sample| sample.keys.to_vec()),
            values: matrix(PAIRS, &|sample| sample.values.to_vec()),
            question: matrix(1, &|sample| vec![sample.question()]),
            answer: Tensor::from_data(TensorData::new(answers, [batch]), device),
        }
    }

    /// How many samples it has.
    pub fn len(&self) -> usize {
        self.answer.dims()[0]
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn column(samples: &[Sample], of: &dyn Fn(&Sample) -> Vec<usize>) -> Vec<i64> {
    let entries = samples.iter().flat_map(of);
    entries.map(|entry| entry as i64).collect()
}

/// The sequence of samples of one seed: the same for every run of that seed.
pub struct Samples(ChaCha8Rng);

impl Samples {
    /// What a run trains on.
    pub fn training(seed: u64) -> Self {
        Self(crate::random::generator(
            seed,
            crate::random::Stream::Batches,
        ))
    }

    /// What the measurement at step 0 is taken on: none of the training's.
    pub fn measurement(seed: u64) -> Self {
        let stream = crate::random::Stream::Measurement;
        Self(crate::random::generator(seed, stream))
    }

    /// How much of the sequence was drawn, in words of the generator.
    pub(crate) fn position(&self) -> u128 {
        self.0.get_word_pos()
    }

    /// The same sequence from a [`position`](Self::position) on.
    pub(crate) fn at(mut self, position: u128) -> Self {
        self.0.set_word_pos(position);
        self
    }
}

impl Iterator for Samples {
    type Item = Sample;

    fn next(&mut self) -> Option<Sample> {
        Some(Sample::draw(&mut self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_sample_asks_for_one_of_its_keys_and_its_keys_differ() {
        for sample in Samples::training(0).take(200) {
            let keys: HashSet<usize> = sample.keys.into_iter().collect();
            assert_eq!(keys.len(), PAIRS);
            assert!(keys.iter().all(|key| *key < KEYS));
            assert!(sample.values.iter().all(|value| *value < VALUES));
            let place = sample.keys.iter().position(|key| *key == sample.question());
            assert_eq!(sample.values[place.unwrap()], sample.answer());
        }
    }

    #[test]
    fn every_key_value_and_place_is_drawn_about_equally_often() {
        let samples: Vec<Sample> = Samples::training(1).take(8000).collect();
        let even = |name: &str, of: &dyn Fn(&Sample) -> usize, choices: usize| {
            let mut counts = vec![0; choices];
            samples.iter().for_each(|sample| counts[of(sample)] += 1);
            let expected = samples.len() / choices;
            // Five standard deviations of a count of about `expected`.
            let most = 5.0 * (expected as f64).sqrt();
            for count in counts {
                assert!(
                    (count as f64 - expected as f64).abs() < most,
                    "{name}: {count}"
                );
            }
        };
        even("question", &Sample::question, KEYS);
        even("answer", &Sample::answer, VALUES);
        even("first key", &|sample| sample.keys[0], KEYS);
        even("place", &|sample| sample.asked, PAIRS);
    }

    #[test]
    fn a_seed_gives_the_same_samples_each_time_and_another_seed_others() {
        let draw = |seed| Samples::training(seed).take(3).collect::<Vec<_>>();
        assert_eq!(draw(4), draw(4));
        assert_ne!(draw(4), draw(5));
        let measured: Vec<_> = Samples::measurement(4).take(3).collect();
        assert_ne!(draw(4), measured);
    }

    #[test]
    fn a_sequence_goes_on_from_where_it_was_left() {
        // Sums of odd numbers of words, so that a block of the generator ends within a sample.
        for drawn in [0, 1, 2, 77] {
            let mut samples = Samples::training(4);
            samples.by_ref().take(drawn).for_each(drop);
            let resumed = Samples::training(4).at(samples.position());
            let rest: Vec<Sample> = samples.take(5).collect();
            assert_eq!(resumed.take(5).collect::<Vec<_>>(), rest);
        }
    }

    #[test]
    fn a_batch_holds_its_samples_row_by_row() {
        let samples: Vec<Sample> = Samples::training(2).take(3).collect();
        let batch = Batch::new(&samples, &Device::default());
        assert_eq!(batch.len(), 3);
        let numbers = |tensor: Tensor<2, Int>| tensor.into_data().iter::<i64>().collect::<Vec<_>>();
        assert_eq!(numbers(batch.keys)[PAIRS], samples[1].keys[0] as i64);
        assert_eq!(
            numbers(batch.values)[PAIRS + 1],
            samples[1].values[1] as i64
        );
        assert_eq!(numbers(batch.question)[2], samples[2].question() as i64);
        let answers: Vec<i64> = batch.answer.into_data().iter().collect();
        assert_eq!(answers[2], samples[2].answer() as i64);
    }
}
