//! Keys and values kept between calls.

use burn::tensor::{Int, Tensor};

use crate::error::{AttentionError, check_axis, value_error};

/// The heads of keys and values that earlier calls left, for decoding token by token.
///
/// Feeding tokens one by one, in chunks or at once gives the same outputs; a step costs one row of
/// scores, not the square. What is kept are projected and rotated heads, with as many heads as
/// keys have.
///
/// # Example
///
/// ```
/// use burn::tensor::{Device, Distribution, Tensor};
/// use layers::{KvCache, MhaInput, MultiHeadAttentionConfig};
///
/// let device = Device::default();
/// let attention = MultiHeadAttentionConfig::new(8, 2).with_causal(true).init(&device);
/// let x = Tensor::<3>::random([1, 3, 8], Distribution::Default, &device);
/// let at_once = attention.forward(MhaInput::self_attn(x.clone()));
///
/// let mut cache = KvCache::growing();
/// for token in 0..3 {
///     let step = x.clone().narrow(1, token, 1);
///     let output = attention.forward(MhaInput::self_attn(step).cache(&mut cache));
///     let difference = (output - at_once.clone().narrow(1, token, 1)).abs().max();
///     assert!(difference.into_scalar::<f32>() < 1e-6);
/// }
/// assert_eq!(cache.len(), 3);
/// ```
#[derive(Clone, Debug)]
pub struct KvCache {
    policy: Policy,
    buffers: Option<Buffers>,
    /// The first place of the buffers that is still kept.
    start: usize,
    /// How many places are kept from there.
    len: usize,
    /// How many positions were fed in all.
    fed: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    Growing,
    Preallocated { capacity: usize },
    Rolling { window: usize },
    Fixed,
}

/// `[batch, kv_heads, capacity, width]` each.
#[derive(Clone, Debug)]
struct Buffers {
    key: Tensor<4>,
    value: Tensor<4>,
}

/// What a call attends over.
pub(crate) struct Cached {
    pub key: Tensor<4>,
    pub value: Tensor<4>,
    /// Where the first new position stands among the keys returned.
    pub past: usize,
}

impl KvCache {
    /// A cache that grows as positions come; its buffers double.
    pub fn growing() -> Self {
        Self::with_policy(Policy::Growing)
    }

    /// A cache for at most `capacity` positions, allocated once, at the first call.
    pub fn preallocated(capacity: usize) -> Self {
        Self::with_policy(Policy::Preallocated { capacity })
    }

    /// A cache that keeps the last `window` positions before those of the running call, for layers
    /// whose window looks back no further: memory does not grow with the text.
    pub fn rolling(window: usize) -> Self {
        Self::with_policy(Policy::Rolling { window })
    }

    /// A cache for cross-attention: the first call computes keys and values, later ones use them
    /// and look at neither `key` nor `value` of their input.
    pub fn fixed() -> Self {
        Self::with_policy(Policy::Fixed)
    }

    fn with_policy(policy: Policy) -> Self {
        Self {
            policy,
            buffers: None,
            start: 0,
            len: 0,
            fed: 0,
        }
    }

    /// How many positions are kept.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many positions were fed since the cache was new or cleared, less those rewound: the
    /// position of the next token.
    pub fn position(&self) -> usize {
        self.fed
    }

    /// The kept keys `[batch, kv_heads, len, d_head]`, `None` while nothing was fed.
    pub fn key(&self) -> Option<Tensor<4>> {
        self.buffers.as_ref().map(|buffers| self.kept(&buffers.key))
    }

    /// The kept values `[batch, kv_heads, len, d_value_head]`, `None` while nothing was fed.
    pub fn value(&self) -> Option<Tensor<4>> {
        self.buffers
            .as_ref()
            .map(|buffers| self.kept(&buffers.value))
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::with_policy(self.policy);
    }

    /// Forgets the last `positions`, as when drafted tokens are refused.
    ///
    /// # Panics
    ///
    /// If fewer are kept, or a rolling cache has forgotten what the window before them needs.
    ///
    /// ```should_panic
    /// layers::KvCache::growing().rewind(1); // nothing was fed
    /// ```
    pub fn rewind(&mut self, positions: usize) {
        if positions > self.len {
            panic!(
                "cache: cannot rewind {positions} positions, since it keeps {}",
                self.len
            );
        }
        let (len, fed) = (self.len - positions, self.fed - positions);
        if let Policy::Rolling { window } = self.policy
            && len < window.min(fed)
        {
            panic!(
                "cache: cannot rewind {positions} positions, since the window of {window} before \
                 them is forgotten"
            );
        }
        (self.len, self.fed) = (len, fed);
    }

    /// Makes sample `i` the former sample `samples[i]`, as beam search does; samples may be
    /// repeated or left out.
    ///
    /// # Panics
    ///
    /// If a sample is not below the batch.
    pub fn reorder(&mut self, samples: &[usize]) {
        let Some(buffers) = &mut self.buffers else {
            return;
        };
        let batch = buffers.key.dims()[0];
        if let Some(sample) = samples.iter().find(|sample| **sample >= batch) {
            panic!("cache: sample {sample} does not exist in a batch of {batch}");
        }
        let indices: Vec<i64> = samples.iter().map(|sample| *sample as i64).collect();
        let indices = Tensor::<1, Int>::from_data(&indices[..], &buffers.key.device());
        buffers.key = buffers.key.clone().select(0, indices.clone());
        buffers.value = buffers.value.clone().select(0, indices);
    }

    /// The stored keys and values of a cache that is filled once, if it is.
    pub(crate) fn fixed_content(&self) -> Option<(Tensor<4>, Tensor<4>)> {
        (self.policy == Policy::Fixed)
            .then(|| self.key().zip(self.value()))
            .flatten()
    }

    pub(crate) fn is_fixed(&self) -> bool {
        self.policy == Policy::Fixed
    }

    /// How far back a layer's window may look, where the cache forgets.
    pub(crate) fn window(&self) -> Option<usize> {
        match self.policy {
            Policy::Rolling { window } => Some(window),
            _ => None,
        }
    }

    /// Adds new positions behind those kept and gives all that the call may see.
    pub(crate) fn append(
        &mut self,
        key: Tensor<4>,
        value: Tensor<4>,
    ) -> Result<Cached, AttentionError> {
        let new = key.dims()[2];
        self.check(&key, &value)?;
        if let Policy::Rolling { window } = self.policy {
            let forgotten = self.len.saturating_sub(window);
            self.start += forgotten;
            self.len -= forgotten;
        }
        let past = self.len;
        self.reserve(&key, &value)?;
        if let Some(buffers) = &mut self.buffers
            && new > 0
        {
            let at = self.start + past;
            write(&mut buffers.key, key, at);
            write(&mut buffers.value, value, at);
        }
        self.len += new;
        self.fed += new;
        let buffers = self.buffers.as_ref().expect("reserve makes the buffers");
        Ok(Cached {
            key: self.kept(&buffers.key),
            value: self.kept(&buffers.value),
            past,
        })
    }

    /// Makes room behind the kept places.
    fn reserve(&mut self, key: &Tensor<4>, value: &Tensor<4>) -> Result<(), AttentionError> {
        let needed = self.len + key.dims()[2];
        let capacity = match self.policy {
            Policy::Preallocated { capacity } if needed > capacity => {
                return Err(value_error(
                    "cache",
                    format!("full: {} of {capacity} positions are kept", self.len),
                    format!("and {} more do not fit", key.dims()[2]),
                ));
            }
            Policy::Preallocated { capacity } => capacity,
            Policy::Fixed => needed,
            Policy::Growing => needed.next_power_of_two(),
            // Room for as much again, so that what is kept moves once a window, not once a step.
            Policy::Rolling { window } => needed + window,
        };
        let fits = |buffers: &Buffers| buffers.key.dims()[2] >= self.start + needed;
        if self.buffers.as_ref().is_some_and(fits) {
            return Ok(());
        }
        let grown = |buffer: Option<Tensor<4>>, like: &Tensor<4>| {
            let [batch, heads, _, width] = like.dims();
            let room = Tensor::zeros(
                [batch, heads, capacity, width],
                (&like.device(), like.dtype()),
            );
            match buffer {
                Some(kept) if self.len > 0 => {
                    let mut room = room;
                    write(&mut room, kept, 0);
                    room
                }
                _ => room,
            }
        };
        let kept = (self.key(), self.value());
        let buffers = Buffers {
            key: grown(kept.0, key),
            value: grown(kept.1, value),
        };
        self.buffers = Some(buffers);
        self.start = 0;
        Ok(())
    }

    fn check(&self, key: &Tensor<4>, value: &Tensor<4>) -> Result<(), AttentionError> {
        let Some(buffers) = &self.buffers else {
            return Ok(());
        };
        for (argument, new, old) in [("key", key, &buffers.key), ("value", value, &buffers.value)] {
            for (axis, name) in [(0, "batch"), (1, "kv_heads"), (3, "width")] {
                check_axis(
                    argument,
                    axis,
                    name,
                    new.dims()[axis],
                    old.dims()[axis],
                    "the cache",
                )?;
            }
        }
        Ok(())
    }

    fn kept(&self, buffer: &Tensor<4>) -> Tensor<4> {
        if self.len == 0 {
            let [batch, heads, _, width] = buffer.dims();
            let options = (&buffer.device(), buffer.dtype());
            return Tensor::zeros([batch, heads, 0, width], options);
        }
        match (self.start, self.len) == (0, buffer.dims()[2]) {
            true => buffer.clone(),
            false => buffer.clone().narrow(2, self.start, self.len),
        }
    }
}

/// Writes into the buffer, in place where the backend can and nobody else holds it.
fn write(buffer: &mut Tensor<4>, part: Tensor<4>, at: usize) {
    let [batch, heads, length, width] = part.dims();
    // Moved out and back: a second handle would force a copy of the whole buffer.
    let device = buffer.device();
    let owned = core::mem::replace(buffer, Tensor::empty([0, 0, 0, 0], &device));
    *buffer = owned.slice_assign([0..batch, 0..heads, at..at + length, 0..width], part);
}
