//! Several documents packed in one row.

/// Which document each place of a row belongs to, for each sample.
///
/// The places of one document must be neighbours. A place that belongs to none, such as padding,
/// may get an id that occurs on one side alone: it then sees, and is seen by, nothing.
///
/// # Example
///
/// ```
/// use layers::Segments;
///
/// // One sample of 7 places that holds documents of 3 and 4 places.
/// let packed = Segments::from_cumulative_lengths([vec![0, 3, 7]]);
/// assert_eq!(packed, Segments::from_ids([vec![0, 0, 0, 1, 1, 1, 1]]));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segments {
    ids: Vec<Vec<u32>>,
}

impl Segments {
    /// From the id of each place, one list a sample (as JAX's `segment_ids`).
    pub fn from_ids(ids: impl Into<Vec<Vec<u32>>>) -> Self {
        Self { ids: ids.into() }
    }

    /// From the bounds of the documents, one list a sample that starts with 0 and ends with the
    /// length of the row (as flash-attention's `cu_seqlens`).
    ///
    /// # Panics
    ///
    /// If a list does not start with 0 or falls.
    ///
    /// ```should_panic
    /// layers::Segments::from_cumulative_lengths([vec![0, 5, 3]]); // 3 is below 5
    /// ```
    pub fn from_cumulative_lengths(bounds: impl Into<Vec<Vec<usize>>>) -> Self {
        let ids = bounds.into().into_iter().enumerate().map(|(sample, bounds)| {
            if let Some(first) = bounds.first().filter(|first| **first != 0) {
                panic!("cumulative_lengths: sample {sample} starts with {first}, but must start with 0");
            }
            let mut ids = Vec::new();
            for (document, pair) in bounds.windows(2).enumerate() {
                let [start, end] = [pair[0], pair[1]];
                if end < start {
                    panic!("cumulative_lengths: sample {sample} falls from {start} to {end}");
                }
                ids.resize(end, document as u32);
            }
            ids
        });
        Self { ids: ids.collect() }
    }

    pub(crate) fn into_ids(self) -> Vec<Vec<u32>> {
        self.ids
    }
}

impl From<Vec<Vec<u32>>> for Segments {
    fn from(ids: Vec<Vec<u32>>) -> Self {
        Self::from_ids(ids)
    }
}
