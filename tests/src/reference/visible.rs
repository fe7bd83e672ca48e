//! Which query sees which key, one pair at a time.

use layers::Alignment;

use super::problem::{Problem, Row};

impl Problem {
    /// The key that a query stands at.
    pub(super) fn place(&self, sample: usize, query: usize) -> i64 {
        let (queries, keys) = (self.sizes.query_len, self.own_keys());
        let offset = match self.alignment {
            Alignment::BottomRight => keys as i64 - queries as i64,
            Alignment::TopLeft => 0,
            Alignment::Offset(offset) => offset,
            Alignment::ValidBottomRight => {
                let keys = self.key_lengths.as_ref().map_or(keys, |list| list[sample]);
                let queries = self
                    .query_lengths
                    .as_ref()
                    .map_or(queries, |list| list[sample]);
                keys as i64 - queries as i64
            }
        };
        query as i64 + offset
    }

    fn is_valid_query(&self, sample: usize, query: usize) -> bool {
        let lengths = self.query_lengths.as_ref();
        lengths.is_none_or(|list| query < list[sample])
    }

    /// Whether place, window, lengths and documents let a query see a key.
    pub(super) fn in_reach(&self, sample: usize, query: usize, key: usize) -> bool {
        let place = self.place(sample, query);
        let distance = key as i64 - place;
        let window = self.window.unwrap_or_default();
        self.is_valid_query(sample, query)
            && self
                .key_lengths
                .as_ref()
                .is_none_or(|list| key < list[sample])
            && (!self.causal || distance <= 0)
            && window.before.is_none_or(|keys| -distance <= keys as i64)
            && window.after.is_none_or(|keys| distance <= keys as i64)
            && self.segments.as_ref().is_none_or(|documents| {
                documents.queries[sample][query] == documents.keys[sample][key]
            })
    }

    /// Whether a query sees a key: within reach and not masked.
    pub(super) fn sees(&self, row: Row, key: usize) -> bool {
        if key >= self.own_keys() {
            return self.is_valid_query(row.sample, row.query);
        }
        self.in_reach(row.sample, row.query, key)
            && !self
                .blocked
                .as_ref()
                .is_some_and(|blocked| blocked.at(row, key))
    }
}
