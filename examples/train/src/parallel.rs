//! Several jobs at a time.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Does `work` with each of the items, at most `jobs` of them at the same time, and gives the
/// results in the order of the items.
///
/// # Errors
///
/// The first by that order which `work` gives; no item is begun after one.
pub(crate) fn each<T: Sync, R: Send, E: Send>(
    items: &[T],
    jobs: usize,
    work: impl Fn(&T) -> Result<R, E> + Sync,
) -> Result<Vec<R>, E> {
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let results: Mutex<Vec<(usize, Result<R, E>)>> = Mutex::default();
    let worker = || {
        while !failed.load(Ordering::Relaxed) {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(place) else {
                break;
            };
            let result = work(item);
            if result.is_err() {
                failed.store(true, Ordering::Relaxed);
            }
            let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
            results.push((place, result));
        }
    };
    thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, items.len().max(1)) {
            scope.spawn(worker);
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(place, _)| *place);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_items_however_many_work_at_a_time() {
        let items: Vec<u64> = (0..20).collect();
        for jobs in [0, 1, 3, 50] {
            let doubled = each(&items, jobs, |item| Ok::<_, ()>(2 * item)).unwrap();
            assert_eq!(
                doubled,
                items.iter().map(|item| 2 * item).collect::<Vec<_>>()
            );
        }
        assert_eq!(each(&[0; 0], 2, |_| Ok::<_, ()>(0)), Ok(Vec::new()));
    }

    #[test]
    fn nothing_is_begun_after_an_error() {
        let begun = AtomicUsize::new(0);
        let result = each(&[1, 2, 3, 4], 1, |item| {
            begun.fetch_add(1, Ordering::Relaxed);
            if *item == 2 { Err("two") } else { Ok(()) }
        });
        assert_eq!(result, Err("two"));
        assert_eq!(begun.into_inner(), 2);
    }
}
