//! One call of attention, written down in full.

use layers::{Alignment, Scale, Window};

use crate::random::Random;

/// The sizes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Samples.
    pub batch: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Queries a sample.
    pub query_len: usize,
    /// Keys a sample.
    pub key_len: usize,
    /// The width of query and key.
    pub d_k: usize,
    /// The width of value.
    pub d_v: usize,
}

impl Sizes {
    /// As many key heads as heads, and one width.
    pub fn new(batch: usize, heads: usize, query_len: usize, key_len: usize, width: usize) -> Self {
        Self {
            batch,
            heads,
            kv_heads: heads,
            query_len,
            key_len,
            d_k: width,
            d_v: width,
        }
    }

    /// `[batch, heads, query_len, d_k]`.
    pub fn query(&self) -> [usize; 4] {
        [self.batch, self.heads, self.query_len, self.d_k]
    }

    /// `[batch, kv_heads, key_len, d_k]`.
    pub fn key(&self) -> [usize; 4] {
        [self.batch, self.kv_heads, self.key_len, self.d_k]
    }

    /// `[batch, kv_heads, key_len, d_v]`.
    pub fn value(&self) -> [usize; 4] {
        [self.batch, self.kv_heads, self.key_len, self.d_v]
    }

    /// `[batch, heads, query_len, d_v]`.
    pub fn context(&self) -> [usize; 4] {
        [self.batch, self.heads, self.query_len, self.d_v]
    }

    /// `[batch, heads, query_len, key_len]`.
    pub fn scores(&self) -> [usize; 4] {
        [self.batch, self.heads, self.query_len, self.key_len]
    }

    /// `[batch, heads, query_len]`.
    pub fn rows(&self) -> [usize; 3] {
        [self.batch, self.heads, self.query_len]
    }

    /// How many samples, heads and queries there are, each with a row of scores.
    pub fn each_row(self) -> impl Iterator<Item = Row> {
        (0..self.batch).flat_map(move |sample| {
            (0..self.heads).flat_map(move |head| {
                (0..self.query_len).map(move |query| Row {
                    sample,
                    head,
                    query,
                })
            })
        })
    }
}

/// One query of one head of one sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub sample: usize,
    pub head: usize,
    pub query: usize,
}

/// Something for each score that may be the same along an axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Broadcast<T> {
    /// 1 or the full size of the scores' axis.
    pub shape: [usize; 4],
    /// Row-major.
    pub values: Vec<T>,
}

impl<T: Copy> Broadcast<T> {
    /// Where the value of a score is.
    pub(super) fn index(&self, row: Row, key: usize) -> usize {
        let place = [row.sample, row.head, row.query, key];
        (0..4).fold(0, |index, axis| {
            let size = self.shape[axis];
            index * size + if size == 1 { 0 } else { place[axis] }
        })
    }

    pub(super) fn at(&self, row: Row, key: usize) -> T {
        self.values[self.index(row, key)]
    }
}

/// A logit that joins the softmax's denominator only.
#[derive(Clone, Debug, PartialEq)]
pub enum Sink {
    /// No logit.
    None,
    /// Zero, in every head.
    Quiet,
    /// One a head.
    Learned(Vec<f64>),
}

/// The document of each query and of each key, a list a sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Documents {
    /// `[batch, query_len]`.
    pub queries: Vec<Vec<u32>>,
    /// `[batch, key_len]`.
    pub keys: Vec<Vec<u32>>,
}

/// One call of attention: its tensors, row-major, and every option.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// The sizes of all of it.
    pub sizes: Sizes,
    /// `[batch, heads, query_len, d_k]`.
    pub query: Vec<f64>,
    /// `[batch, kv_heads, key_len, d_k]`.
    pub key: Vec<f64>,
    /// `[batch, kv_heads, key_len, d_v]`.
    pub value: Vec<f64>,
    /// The policy of the scale.
    pub scale: Scale,
    /// What the factor of [`Scale::Learned`] has become.
    pub learned_factor: f64,
    /// No key after the query's place.
    pub causal: bool,
    /// Where the queries stand.
    pub alignment: Alignment,
    /// Keys around the query's place.
    pub window: Option<Window>,
    /// The bound of the scores.
    pub softcap: Option<f64>,
    /// The logit beside the scores.
    pub sink: Sink,
    /// Whether scores fall with the distance.
    pub alibi: bool,
    /// Added to the scores.
    pub bias: Option<Broadcast<f64>>,
    /// True where blocked.
    pub blocked: Option<Broadcast<bool>>,
    /// Valid keys a sample.
    pub key_lengths: Option<Vec<usize>>,
    /// Valid queries a sample.
    pub query_lengths: Option<Vec<usize>>,
    /// Several documents in a row.
    pub segments: Option<Documents>,
    /// How many of the last keys every valid query sees, whatever masks and biases say.
    pub extra_keys: usize,
    /// What each weight is multiplied by after the softmax, `[batch, heads, query_len, key_len]`.
    pub dropout: Option<Vec<f64>>,
}

impl Problem {
    /// Without options, on given numbers.
    pub fn new(sizes: Sizes, query: Vec<f64>, key: Vec<f64>, value: Vec<f64>) -> Self {
        Self {
            sizes,
            query,
            key,
            value,
            scale: Scale::InvSqrtDim,
            learned_factor: 1.0,
            causal: false,
            alignment: Alignment::BottomRight,
            window: None,
            softcap: None,
            sink: Sink::None,
            alibi: false,
            bias: None,
            blocked: None,
            key_lengths: None,
            query_lengths: None,
            segments: None,
            extra_keys: 0,
            dropout: None,
        }
    }

    /// How many keys there are before the extra ones.
    pub(super) fn own_keys(&self) -> usize {
        self.sizes.key_len - self.extra_keys
    }

    /// Without options, on numbers of unit variance.
    pub fn random(sizes: Sizes, random: &mut Random) -> Self {
        let mut draw = |shape: [usize; 4]| random.normals(shape.iter().product());
        let (query, key, value) = (draw(sizes.query()), draw(sizes.key()), draw(sizes.value()));
        Self::new(sizes, query, key, value)
    }
}
