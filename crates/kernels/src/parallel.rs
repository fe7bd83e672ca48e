//! Handing tasks to threads.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Tasks `0..len`, handed out in runs to whoever asks next.
pub(crate) struct Tasks {
    next: AtomicUsize,
    len: usize,
    run: usize,
}

impl Tasks {
    /// The next run of tasks, in order.
    #[inline]
    pub(crate) fn next(&self) -> Option<Range<usize>> {
        // Only the counter is shared; what the tasks write is published when the threads join, or by `turns`.
        let start = self.next.fetch_add(self.run, Ordering::Relaxed);
        (start < self.len).then(|| start..(start + self.run).min(self.len))
    }
}

/// Floating point operations that are worth handing over: some ten microseconds of one core.
const WORTH: f64 = 1e6;

/// Calls `worker` on as many threads as the work is worth; together they take tasks `0..len`, each of `flops` operations.
///
/// Which thread takes a task must not matter for its result. A task may wait for one of a lower number: those are taken
/// first, and a worker does its own in order. A worker must not use the pool, which could give it tasks of others.
pub(crate) fn run(len: usize, flops: f64, worker: impl Fn(&Tasks) + Sync) {
    if len == 0 {
        return;
    }
    let run = ((WORTH / 8.0 / flops.max(1.0)) as usize).clamp(1, len);
    let tasks = Tasks {
        next: AtomicUsize::new(0),
        len,
        run,
    };
    let threads = worth(flops * len as f64).min(len.div_ceil(run));
    spread(threads, &tasks, worker);
}

/// How many threads so many operations are worth.
pub(crate) fn worth(flops: f64) -> usize {
    threads().min((flops / WORTH) as usize).max(1)
}

/// How many threads there are.
#[cfg(feature = "rayon")]
pub(crate) fn threads() -> usize {
    rayon::current_num_threads()
}

/// How many threads there are.
#[cfg(not(feature = "rayon"))]
pub(crate) fn threads() -> usize {
    1
}

#[cfg(feature = "rayon")]
fn spread(threads: usize, tasks: &Tasks, worker: impl Fn(&Tasks) + Sync) {
    if threads == 1 {
        return worker(tasks);
    }
    // The caller works, too: one thread less to wake.
    rayon::in_place_scope(|scope| {
        for _ in 1..threads {
            scope.spawn(|_| worker(tasks));
        }
        worker(tasks);
    });
}

#[cfg(not(feature = "rayon"))]
fn spread(_: usize, tasks: &Tasks, worker: impl Fn(&Tasks) + Sync) {
    worker(tasks);
}
