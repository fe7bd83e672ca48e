//! How many cases each backend passed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use burn::tensor::DType;
use tests::TestBackend;

/// The counts of each backend.
pub struct Report {
    counts: Mutex<BTreeMap<&'static str, Counts>>,
}

#[derive(Default)]
struct Counts {
    passed: usize,
    failed: usize,
    skipped: Vec<String>,
}

impl Report {
    pub fn new(backends: &[TestBackend]) -> Self {
        let counts = backends
            .iter()
            .map(|backend| (backend.name, Counts::default()));
        Self {
            counts: Mutex::new(counts.collect()),
        }
    }

    pub fn skipped(&self, backend: &'static str, case: &str, dtype: DType) {
        self.change(backend, |counts| {
            counts.skipped.push(format!("{case} (no {dtype:?})"));
        });
    }

    pub fn ran(&self, backend: &'static str, passed: bool) {
        self.change(backend, |counts| match passed {
            true => counts.passed += 1,
            false => counts.failed += 1,
        });
    }

    fn change(&self, backend: &'static str, change: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        change(counts.entry(backend).or_default());
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        for (backend, counts) in counts.iter() {
            let Counts {
                passed,
                failed,
                skipped,
            } = counts;
            writeln!(
                f,
                "{backend}: {passed} passed, {failed} failed, {} skipped",
                skipped.len()
            )?;
            for case in skipped {
                writeln!(f, "  skipped: {case}")?;
            }
        }
        Ok(())
    }
}
