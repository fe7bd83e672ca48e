//! What a backend's forward pass may leave for its backward pass beside tensors.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// Room for one thing of whatever type a backend chooses; it is gone with the graph of the call.
#[derive(Clone, Default)]
pub(crate) struct Kept(Arc<OnceLock<Box<dyn Any + Send + Sync>>>);

impl Kept {
    /// Leaves it. Only the first thing stays.
    #[cfg(any(feature = "flex", feature = "ndarray"))]
    pub(crate) fn put<T: Send + Sync + 'static>(&self, thing: T) {
        let _ = self.0.set(Box::new(thing));
    }

    /// What was left, if it is of this type.
    #[cfg(any(feature = "flex", feature = "ndarray"))]
    pub(crate) fn get<T: 'static>(&self) -> Option<&T> {
        self.0.get()?.downcast_ref()
    }
}

impl PartialEq for Kept {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.0.get().is_some() {
            "full"
        } else {
            "empty"
        };
        f.debug_tuple("Kept").field(&state).finish()
    }
}
