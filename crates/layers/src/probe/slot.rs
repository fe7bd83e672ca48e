//! Where a module finds whether anybody measures it.
//!
//! Burn's module derive carries a module's fields through everything that happens to a model:
//! clones, optimizer steps, device moves, `valid`, loaded records. So each attention module holds
//! a handle that all its descendants share, and a walk over the model's fields finds the handles
//! with their paths. A parameter's id would do the same, but attention on heads has no parameters.

use core::fmt;
use core::mem;
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use burn::backend::Backend;
use burn::backend::tensor::FloatTensor;
use burn::module::{
    Content, Devices, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper, ModuleVisitor,
};
use burn::tensor::{DType, Device};

use super::Probe;
use crate::scale::Scale;

/// A module's handle on who measures it, shared by all its clones.
#[derive(Clone, Default)]
pub(crate) struct Slot {
    shared: Arc<Listeners>,
}

#[derive(Default)]
struct Listeners {
    /// Whether there is any: all that a call looks at while nobody measures.
    any: AtomicBool,
    list: Mutex<Vec<Listener>>,
}

/// Someone who measures what their thread computes, and what this layer is to them.
struct Listener {
    layer: usize,
    thread: ThreadId,
    session: Arc<Session>,
}

/// The calls that one measurement has seen, in their order.
#[derive(Default)]
pub(super) struct Session {
    calls: Mutex<Vec<MeasuredCall>>,
}

/// One call of one layer.
pub(super) struct MeasuredCall {
    pub layer: usize,
    pub facts: CallFacts,
    pub probe: Probe,
}

/// What a call knows beside its tensors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallFacts {
    pub scale: Scale,
    /// The number that the query is multiplied by.
    pub factor: f64,
    pub batch: usize,
    pub heads: usize,
    pub query_len: usize,
    pub d_model: usize,
    pub d_k: usize,
    pub d_v: usize,
    pub dtype: DType,
}

/// A panic elsewhere leaves these lists whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Slot {
    /// The recorder of one call: the probe attached to it, and one for each measurement.
    #[inline]
    pub fn recorder(
        &self,
        attached: Option<Recorder>,
        facts: impl FnOnce() -> CallFacts,
    ) -> Option<Recorder> {
        if !self.shared.any.load(Ordering::Relaxed) {
            return attached;
        }
        let facts = facts();
        let thread = thread::current().id();
        let mut probes = attached.map_or_else(Vec::new, |recorder| recorder.probes);
        let list = lock(&self.shared.list);
        for listener in list.iter().filter(|listener| listener.thread == thread) {
            let probe = Probe::new();
            lock(&listener.session.calls).push(MeasuredCall {
                layer: listener.layer,
                facts,
                probe: probe.clone(),
            });
            probes.push(probe);
        }
        (!probes.is_empty()).then_some(Recorder { probes })
    }

    /// Measures from now on what this thread computes, as the session's layer of that number.
    pub(super) fn listen(&self, layer: usize, session: &Arc<Session>) {
        let mut list = lock(&self.shared.list);
        list.retain(|other| !Arc::ptr_eq(&other.session, session));
        list.push(Listener {
            layer,
            thread: thread::current().id(),
            session: session.clone(),
        });
        self.shared.any.store(true, Ordering::Relaxed);
    }

    /// Measures no more for the session.
    pub(super) fn leave(&self, session: &Arc<Session>) {
        let mut list = lock(&self.shared.list);
        list.retain(|other| !Arc::ptr_eq(&other.session, session));
        self.shared.any.store(!list.is_empty(), Ordering::Relaxed);
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    pub(super) fn is_measured_by(&self, session: &Arc<Session>) -> bool {
        let list = lock(&self.shared.list);
        list.iter()
            .any(|other| Arc::ptr_eq(&other.session, session))
    }
}

impl Session {
    pub fn take(&self) -> Vec<MeasuredCall> {
        mem::take(&mut lock(&self.calls))
    }
}

/// Where one call's numbers go.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorder {
    probes: Vec<Probe>,
}

impl Recorder {
    pub(crate) fn record<B: Backend>(&self, rows: FloatTensor<B>) {
        for probe in &self.probes {
            probe.record::<B>(rows.clone());
        }
    }
}

impl From<Probe> for Recorder {
    fn from(probe: Probe) -> Self {
        Self {
            probes: vec![probe],
        }
    }
}

thread_local! {
    /// The walk that is under way on this thread: a visitor is not told of fields that are no
    /// parameters, so the slots tell of themselves.
    static WALK: RefCell<Option<Walk>> = const { RefCell::new(None) };
}

/// The slots of a model, each with all its paths, in the order of the model's fields.
#[derive(Default)]
struct Walk {
    /// The name of each module on the way, and what it is a field of.
    way: Vec<(String, String)>,
    found: Vec<(Vec<String>, Slot)>,
}

/// Ends the walk, also where a model's own visit panics.
struct EndOfWalk;

impl Drop for EndOfWalk {
    fn drop(&mut self) {
        WALK.take();
    }
}

pub(super) fn slots<M: Module>(model: &M) -> Vec<(Vec<String>, Slot)> {
    struct Way;
    impl ModuleVisitor for Way {
        fn enter_module(&mut self, name: &str, container_type: &str) {
            with_walk(|walk| walk.way.push((name.into(), container_type.into())));
        }

        fn exit_module(&mut self, _name: &str, _container_type: &str) {
            with_walk(|walk| walk.way.pop());
        }
    }
    WALK.set(Some(Walk::default()));
    let _end = EndOfWalk;
    model.visit(&mut Way);
    WALK.take().map_or_else(Vec::new, |walk| walk.found)
}

fn with_walk<T>(act: impl FnOnce(&mut Walk) -> T) -> Option<T> {
    WALK.with_borrow_mut(|walk| walk.as_mut().map(act))
}

impl Walk {
    fn add(&mut self, slot: &Slot) {
        let mut way = self.way.as_slice();
        // The last step is the slot's own field. The attention within multi-head attention is
        // what that does, not a layer of its own.
        way = &way[..way.len().saturating_sub(1)];
        if let Some(((name, container), rest)) = way.split_last()
            && name == "attention"
            && container == "Struct:MultiHeadAttention"
        {
            way = rest;
        }
        let names: Vec<&str> = way.iter().map(|(name, _)| name.as_str()).collect();
        let path = names.join(".");
        match self.found.iter_mut().find(|(_, found)| found.is_same(slot)) {
            Some((paths, _)) => paths.push(path),
            None => self.found.push((vec![path], slot.clone())),
        }
    }
}

impl Module for Slot {
    fn visit<V: ModuleVisitor>(&self, _visitor: &mut V) {
        with_walk(|walk| walk.add(self));
    }

    fn map<M: ModuleMapper>(self, _mapper: &mut M) -> Self {
        self
    }

    fn collect_devices(&self, devices: Devices) -> Devices {
        devices
    }

    fn fork(self, _device: &Device) -> Self {
        self
    }

    fn to_device(self, _device: &Device) -> Self {
        self
    }

    fn train(self) -> Self {
        self
    }

    fn valid(&self) -> Self {
        self.clone()
    }

    fn materialize(self) -> Self {
        self
    }
}

impl ModuleDisplayDefault for Slot {
    fn content(&self, _content: Content) -> Option<Content> {
        None
    }
}

impl ModuleDisplay for Slot {}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot")
            .field("measured", &self.shared.any.load(Ordering::Relaxed))
            .finish()
    }
}
