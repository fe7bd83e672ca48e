//! `Probes`: all attention layers of a model at once.

use core::fmt;
use std::sync::Arc;

use burn::module::Module;

use super::slot::{self, Session, Slot};
use super::{LayerStatistics, Probe};

/// Measures every attention layer of a model, at the steps where it is switched on.
///
/// Made from the model once. The layers are followed through everything that happens to the model
/// afterwards: optimizer steps, clones, moves between devices, `valid`, loaded records. While
/// nobody measures, a call of a layer costs one atomic load more.
///
/// A layer's clones are the same layer to this, as they are to an optimizer: what a clone computes
/// is measured too, so switch on around the step that is meant. Only calls of the thread that
/// switched on are measured, so that workers that train forks of one model measure their own.
/// Several `Probes` of one model measure apart from each other. Dropping one ends its measurement,
/// also where a panic drops it.
///
/// # Example
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use layers::{MhaInput, MultiHeadAttentionConfig, Probes};
///
/// let device = Device::default();
/// let attention = MultiHeadAttentionConfig::new(8, 2).init(&device);
/// let probes = Probes::of(&attention);
/// let forward = || attention.forward(MhaInput::self_attn(Tensor::ones([1, 3, 8], &device)));
///
/// forward();
/// assert!(probes.take().is_empty()); // off
/// probes.on();
/// forward();
/// forward();
/// let layers = probes.take();
/// assert_eq!(layers.len(), 2);
/// assert_eq!((layers[0].call, layers[1].call), (0, 1));
/// // Equal tokens get equal weights.
/// assert!((layers[0].statistics.max_weight - 1.0 / 3.0).abs() < 1e-6);
/// ```
pub struct Probes {
    layers: Vec<(Vec<String>, Slot)>,
    session: Arc<Session>,
}

impl Probes {
    /// Finds the attention layers of a model; off at first.
    ///
    /// A layer is found where Burn's module derive finds it: not in a field that is marked
    /// `#[module(skip)]`.
    pub fn of<M: Module>(model: &M) -> Self {
        Self {
            layers: slot::slots(model),
            session: Arc::default(),
        }
    }

    /// The paths of the layers, in the order of the model's fields: of a
    /// [`MultiHeadAttention`](crate::MultiHeadAttention) its own, `blocks.0.attention` say. Empty
    /// for a model that is itself a layer; the first one for a layer that the model holds at
    /// several paths.
    pub fn paths(&self) -> impl ExactSizeIterator<Item = &str> {
        self.layers.iter().map(|(paths, _)| paths[0].as_str())
    }

    /// Measures the calls of this thread from now on, beginning anew.
    ///
    /// Every call is kept until [`take`](Self::take), of the size of a few numbers a query: switch
    /// on at the steps that are wanted, not for good.
    pub fn on(&self) {
        self.session.take();
        for (layer, (_, slot)) in self.layers.iter().enumerate() {
            slot.listen(layer, &self.session);
        }
    }

    /// Measures no more, and keeps what has been measured.
    pub fn off(&self) {
        for (_, slot) in &self.layers {
            slot.leave(&self.session);
        }
    }

    /// Whether calls are measured.
    pub fn is_on(&self) -> bool {
        let slots = &self.layers;
        slots
            .iter()
            .any(|(_, slot)| slot.is_measured_by(&self.session))
    }

    /// Switches off and gives what has been measured, one entry a call of a layer, in the order of
    /// the calls. Waits for the device.
    ///
    /// Calls that no key or query had a part in are left out, and so are calls in training whose
    /// `backward` has not passed, or that ran on a backend that this crate has no feature for.
    pub fn take(&self) -> Vec<LayerStatistics> {
        self.off();
        let mut calls = vec![0; self.layers.len()];
        let mut taken = Vec::new();
        for measured in self.session.take() {
            let call = calls[measured.layer];
            calls[measured.layer] += 1;
            let path = &self.layers[measured.layer].0[0];
            let rows = Probe::take_numbers(&measured.probe);
            taken.extend(
                rows.and_then(|rows| {
                    LayerStatistics::of(path.clone(), call, &measured.facts, &rows)
                }),
            );
        }
        taken
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        self.off();
    }
}

impl fmt::Debug for Probes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probes")
            .field("layers", &self.paths().collect::<Vec<_>>())
            .field("on", &self.is_on())
            .finish()
    }
}
