//! Everything that makes a query see a contiguous run of keys, resolved to that run.
//!
//! Causal masks, windows, lengths and packed documents differ only in the run of keys that each
//! row sees. The operation below the modules knows the runs alone, so each of these costs the same
//! everywhere, and none needs a mask of query_len x key_len.

use crate::error::{AttentionError, check_axis, value_error};
use crate::mask::{Alignment, Window};

/// The keys that each query row sees, and where it stands among them.
///
/// Each list holds `query_len` entries if all samples are alike, else `batch * query_len`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    /// 1 if all samples are alike, else the batch.
    pub samples: usize,
    /// The first key of the run.
    pub first: Vec<u32>,
    /// One past the last key of the run; at most `first` if the row sees nothing.
    pub end: Vec<u32>,
    /// The key that the query stands at, which may lie outside of the keys.
    pub position: Vec<i32>,
}

/// What the run of keys is computed from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Visibility<'a> {
    pub batch: usize,
    pub query_len: usize,
    pub key_len: usize,
    /// No key after the query's own place.
    pub causal: bool,
    pub alignment: Alignment,
    pub window: Option<Window>,
    pub key_lengths: Option<&'a [usize]>,
    pub query_lengths: Option<&'a [usize]>,
    pub documents: Option<&'a Documents>,
    /// Whether positions are wanted though every row sees every key (ALiBi).
    pub positions: bool,
}

/// Several documents in one row: the document of each query and of each key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Documents {
    pub queries: Vec<Vec<u32>>,
    pub keys: Vec<Vec<u32>>,
}

impl Visibility<'_> {
    /// The rows, or `None` if every query sees every key and no position is asked for.
    pub fn rows(&self) -> Result<Option<Rows>, AttentionError> {
        self.check()?;
        let windowed = self
            .window
            .is_some_and(|w| w.before.is_some() || w.after.is_some());
        let lengths = self.key_lengths.is_some() || self.query_lengths.is_some();
        let documents = self.documents.is_some();
        if !(self.causal || windowed || lengths || documents || self.positions) {
            return Ok(None);
        }
        let samples = if lengths || documents { self.batch } else { 1 };
        let entries = samples * self.query_len;
        let mut rows = Rows {
            samples,
            first: Vec::with_capacity(entries),
            end: Vec::with_capacity(entries),
            position: Vec::with_capacity(entries),
        };
        for sample in 0..samples {
            self.push_sample(sample, &mut rows)?;
        }
        Ok(Some(rows))
    }

    fn push_sample(&self, sample: usize, rows: &mut Rows) -> Result<(), AttentionError> {
        let keys = self
            .key_lengths
            .map_or(self.key_len, |lengths| lengths[sample]);
        let queries = self
            .query_lengths
            .map_or(self.query_len, |lengths| lengths[sample]);
        let offset = match self.alignment {
            Alignment::BottomRight => self.key_len as i64 - self.query_len as i64,
            Alignment::TopLeft => 0,
            Alignment::Offset(offset) => offset,
            Alignment::ValidBottomRight => keys as i64 - queries as i64,
        };
        let window = self.window.unwrap_or_default();
        let before = window.before.map(|keys| keys as i64);
        let after = match window.after {
            _ if self.causal => Some(0),
            after => after.map(|keys| keys as i64),
        };
        let runs = self
            .documents
            .map(|documents| documents.runs(sample, keys))
            .transpose()?;
        for query in 0..self.query_len {
            let place = query as i64 + offset;
            let (mut first, mut end) = (0, keys as i64);
            if let Some(before) = before {
                first = first.max(place.saturating_sub(before));
            }
            if let Some(after) = after {
                end = end.min(place.saturating_add(after).saturating_add(1));
            }
            if let Some(runs) = &runs {
                let (start, stop) = runs[query];
                first = first.max(start as i64);
                end = end.min(stop as i64);
            }
            if query >= queries {
                (first, end) = (0, 0);
            }
            // A run behind or before all keys is as empty as any.
            if first >= end {
                (first, end) = (0, 0);
            }
            rows.first.push(first as u32);
            rows.end.push(end as u32);
            rows.position
                .push(place.clamp(i32::MIN as i64, i32::MAX as i64) as i32);
        }
        Ok(())
    }

    fn check(&self) -> Result<(), AttentionError> {
        for (argument, lengths, limit, axis) in [
            ("key_lengths", self.key_lengths, self.key_len, "key_len"),
            (
                "query_lengths",
                self.query_lengths,
                self.query_len,
                "query_len",
            ),
        ] {
            let Some(lengths) = lengths else { continue };
            check_axis(argument, 0, "batch", lengths.len(), self.batch, "query")?;
            if let Some((sample, &length)) = lengths
                .iter()
                .enumerate()
                .find(|(_, length)| **length > limit)
            {
                return Err(value_error(
                    argument,
                    format!("{length} for sample {sample}"),
                    format!("but {axis} is {limit}"),
                ));
            }
        }
        if let Some(documents) = self.documents {
            for (argument, lists, length, axis) in [
                (
                    "query_segments",
                    &documents.queries,
                    self.query_len,
                    "query_len",
                ),
                ("key_segments", &documents.keys, self.key_len, "key_len"),
            ] {
                check_axis(argument, 0, "batch", lists.len(), self.batch, "query")?;
                for list in lists {
                    check_axis(argument, 1, axis, list.len(), length, "the scores' axis")?;
                }
            }
        }
        Ok(())
    }
}

impl Documents {
    /// The run of keys of each query's document in one sample.
    fn runs(&self, sample: usize, keys: usize) -> Result<Vec<(usize, usize)>, AttentionError> {
        let mut spans: Vec<(u32, usize, usize)> = Vec::new();
        for (place, &id) in self.keys[sample][..keys].iter().enumerate() {
            match spans.last_mut() {
                Some((last, _, end)) if *last == id => *end = place + 1,
                _ => spans.push((id, place, place + 1)),
            }
        }
        spans.sort_unstable();
        if let Some(pair) = spans.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(value_error(
                "key_segments",
                format!(
                    "{} at keys {} and {} of sample {sample} with another between them",
                    pair[0].0, pair[0].1, pair[1].1
                ),
                "but the keys of one segment must be neighbours",
            ));
        }
        let find = |id: &u32| {
            spans
                .binary_search_by_key(id, |span| span.0)
                .map_or((0, 0), |at| (spans[at].1, spans[at].2))
        };
        Ok(self.queries[sample].iter().map(find).collect())
    }
}

impl Rows {
    /// How many queries each sample has.
    pub fn query_len(&self) -> usize {
        self.first.len() / self.samples.max(1)
    }

    /// How many keys each row sees.
    pub fn visible(&self) -> impl Iterator<Item = usize> + '_ {
        self.first
            .iter()
            .zip(&self.end)
            .map(|(first, end)| end.saturating_sub(*first) as usize)
    }

    /// The keys that any row of the queries `from..to` sees in any sample: `(first, end)`.
    pub fn span(&self, from: usize, to: usize) -> (usize, usize) {
        let mut span = (u32::MAX, 0);
        self.for_each(from, to, |first, end| {
            if first < end {
                span = (span.0.min(first), span.1.max(end));
            }
        });
        (span.0.min(span.1) as usize, span.1 as usize)
    }

    /// Whether every row of the queries `from..to` sees all of the keys `start..stop`.
    pub fn covers(&self, from: usize, to: usize, start: usize, stop: usize) -> bool {
        let mut covered = true;
        self.for_each(from, to, |first, end| {
            covered &= first as usize <= start && stop <= end as usize;
        });
        covered
    }

    /// The keys that any row of one sample sees.
    pub fn sample_span(&self, sample: usize) -> (usize, usize) {
        let one = sample * self.query_len()..(sample + 1) * self.query_len();
        let rows = self.first[one.clone()].iter().zip(&self.end[one]);
        let seen = rows.filter(|(first, end)| first < end);
        let span = seen.fold((u32::MAX, 0), |(low, high), (first, end)| {
            (low.min(*first), high.max(*end))
        });
        (span.0.min(span.1) as usize, span.1 as usize)
    }

    fn for_each(&self, from: usize, to: usize, mut f: impl FnMut(u32, u32)) {
        let query_len = self.query_len();
        for sample in 0..self.samples {
            let base = sample * query_len;
            for row in base + from..base + to {
                f(self.first[row], self.end[row]);
            }
        }
    }
}
