//! Sums at keys, in the target or beside it.

use crate::erased::{Shared, Sums, Target};
use crate::parallel;
use crate::real::Real;

/// Where the gradient at keys or values is summed up: in the target, if its rows are whole vectors of the arithmetic
/// type, else in memory of its own.
#[derive(Clone, Copy)]
pub(crate) struct Held<'a, A> {
    target: Target<'a, A>,
    direct: bool,
    /// Row length of the own memory.
    width: usize,
    memory: Shared<'a, A>,
}

impl<'a, A: Real> Held<'a, A> {
    /// Takes what it needs of its own memory in `memory`.
    pub(crate) fn new(target: Target<'a, A>, lanes: usize, memory: &'a mut Vec<A>) -> Self {
        let [batch, heads, rows, dim] = target.shape();
        let direct = target.is_direct() && dim.is_multiple_of(lanes);
        let width = dim.next_multiple_of(lanes);
        if !direct {
            *memory = vec![A::ZERO; batch * heads * rows * width];
        }
        Self {
            target,
            direct,
            width,
            memory: Shared::new(memory),
        }
    }

    /// The sums of a key head.
    ///
    /// # Safety
    ///
    /// While these live, nothing else may use rows of this head when they are reached through them.
    pub(crate) unsafe fn sums(&self, batch: usize, head: usize) -> Sums<'a, A> {
        let [_, heads, rows, _] = self.target.shape();
        let sums = if self.direct {
            // SAFETY: the caller's promise.
            unsafe { Sums::of(&self.target, batch, head) }
        } else {
            let first = (batch * heads + head) * rows;
            // SAFETY: the caller's promise.
            unsafe { Sums::part(&self.memory, first, rows, self.width) }
        };
        // A target without elements has no rows.
        sums.unwrap_or_else(Sums::nothing)
    }

    /// Writes what was summed up elsewhere to the target, once no sums are left.
    pub(crate) fn finish(self) {
        let [batch, heads, rows, dim] = self.target.shape();
        if self.direct || dim == 0 {
            return;
        }
        let len = rows * self.width;
        parallel::run(batch * heads, len as f64, |tasks| {
            while let Some(run) = tasks.next() {
                for task in run {
                    // SAFETY: the sums are done, and each task has a head of its own.
                    let sums = unsafe { self.memory.part(task * len, len) };
                    for (row, from) in sums.chunks_exact(self.width).enumerate() {
                        let (batch, head) = (task / heads, task % heads);
                        // SAFETY: as above.
                        unsafe { self.target.write(batch, head, row, &from[..dim]) };
                    }
                }
            }
        });
    }
}
