//! One call cut into tiles of scores, with backend primitives alone.

use burn::backend::get_or_init_device_settings;
use burn::backend::tensor::{BoolTensor, Device, FloatTensor, IntTensor};
use burn::backend::{Backend, DType, Shape, Slice, TensorData, TensorMetadata};
use burn::tensor::{FloatDType, IntDType};

use super::{AttentionOptions, Modifiers, dropout};
use crate::rows::Rows;

/// A tile holds at most this many scores over all batches and heads, and so does each of the few
/// temporaries of its size: memory beside the inputs does not depend on the lengths.
const SCORES_PER_TILE: usize = 1 << 20;
/// Longer sides than this do not make the products faster.
const LONGEST_SIDE: usize = 256;
/// Shorter sides than this make the hand-out of tiles dearer than the tiles.
const SHORTEST_SIDE: usize = 32;

/// The sizes of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub batch: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub query_len: usize,
    pub key_len: usize,
    pub d_k: usize,
    pub d_v: usize,
}

impl Sizes {
    pub fn of<B: Backend>(
        query: &FloatTensor<B>,
        key: &FloatTensor<B>,
        value: &FloatTensor<B>,
    ) -> Self {
        let [batch, heads, query_len, d_k] = query.shape().dims();
        let [_, kv_heads, key_len, d_v] = value.shape().dims();
        debug_assert_eq!(key.shape().dims(), [batch, kv_heads, key_len, d_k]);
        Self {
            batch,
            heads,
            kv_heads,
            query_len,
            key_len,
            d_k,
            d_v,
        }
    }

    /// Whether there is any score at all.
    pub fn any_score(&self) -> bool {
        self.batch * self.heads * self.query_len * self.key_len > 0
    }

    /// How many query heads share a key head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    fn tile_side(&self) -> usize {
        let per_head = SCORES_PER_TILE / (self.batch * self.heads).max(1);
        per_head.isqrt().clamp(SHORTEST_SIDE, LONGEST_SIDE)
    }
}

/// A run of queries or keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Which tile of its axis this is.
    pub index: usize,
    pub start: usize,
    pub end: usize,
}

impl Run {
    pub fn len(&self) -> usize {
        self.end - self.start
    }
}

/// The scores of one tile, `[batch, heads, queries, keys]`, minus infinity where blocked.
pub(super) struct Scores<B: Backend> {
    pub scores: FloatTensor<B>,
    /// `tanh(score / softcap)` before bias and mask, where there is a softcap.
    pub capped: Option<FloatTensor<B>>,
}

/// A call with everything in the element type of the arithmetic and in the shapes of the tiles.
pub(super) struct Tiles<'a, B: Backend> {
    pub sizes: Sizes,
    pub options: &'a AttentionOptions,
    /// Scaled.
    pub query: FloatTensor<B>,
    pub key: FloatTensor<B>,
    pub value: FloatTensor<B>,
    pub sink: Option<FloatTensor<B>>,
    /// The shape of the bias.
    pub bias_shape: Option<[usize; 4]>,
    bias: Option<FloatTensor<B>>,
    mask: Option<BoolTensor<B>>,
    runs: Option<RowTensors<B>>,
    /// Slope times minus one, `[1, heads, 1, 1]`.
    slopes: Option<FloatTensor<B>>,
    side: usize,
}

/// The rows on the device, each `[samples, 1, query_len, 1]`.
struct RowTensors<B: Backend> {
    first: IntTensor<B>,
    end: IntTensor<B>,
    position: FloatTensor<B>,
}

/// The element type that scores, softmax and sums are computed in.
pub(super) fn compute_dtype(dtype: DType) -> FloatDType {
    match dtype {
        DType::F64 => FloatDType::F64,
        _ => FloatDType::F32,
    }
}

/// The smallest finite number of the arithmetic, which stands in for minus infinity where a
/// difference of two infinities would not be a number.
pub(super) fn lowest(dtype: FloatDType) -> f64 {
    match dtype {
        FloatDType::F64 => f64::MIN,
        _ => f32::MIN as f64,
    }
}

pub(super) fn cast<B: Backend>(tensor: FloatTensor<B>, dtype: FloatDType) -> FloatTensor<B> {
    if tensor.dtype() == DType::from(dtype) {
        return tensor;
    }
    B::float_cast(tensor, dtype)
}

/// Part of a tensor along the axes 2 and 3.
pub(super) fn slice<B: Backend>(
    tensor: &FloatTensor<B>,
    rows: Option<Run>,
    columns: Option<Run>,
) -> FloatTensor<B> {
    match slices(tensor.shape().dims(), rows, columns) {
        Some(slices) => B::float_slice(tensor.clone(), &slices),
        None => tensor.clone(),
    }
}

/// The slices of a tile out of a tensor that may broadcast; `None` if that is all of it.
fn slices(dims: [usize; 4], rows: Option<Run>, columns: Option<Run>) -> Option<[Slice; 4]> {
    let part = |axis: usize, run: Option<Run>| match run {
        Some(run) if dims[axis] > 1 => (run.start, run.end),
        _ => (0, dims[axis]),
    };
    let (rows, columns) = (part(2, rows), part(3, columns));
    if rows == (0, dims[2]) && columns == (0, dims[3]) {
        return None;
    }
    Some([
        Slice::from(0..dims[0]),
        Slice::from(0..dims[1]),
        Slice::from(rows.0..rows.1),
        Slice::from(columns.0..columns.1),
    ])
}

impl<'a, B: Backend> Tiles<'a, B> {
    pub fn new(
        query: FloatTensor<B>,
        key: FloatTensor<B>,
        value: FloatTensor<B>,
        modifiers: Modifiers<B>,
        options: &'a AttentionOptions,
    ) -> Self {
        let sizes = Sizes::of::<B>(&query, &key, &value);
        let dtype = compute_dtype(query.dtype());
        let device = query.device();
        let rows = options.rows.as_deref();
        let query = hide_unseeing_queries::<B>(cast::<B>(query, dtype), rows);
        let bias = modifiers.bias.into_option();
        Self {
            query: B::float_mul_scalar(query, options.scale.into()),
            key: hide_unseen_keys::<B>(cast::<B>(key, dtype), rows),
            value: hide_unseen_keys::<B>(cast::<B>(value, dtype), rows),
            sink: modifiers.sink.into_option().map(|sink| {
                let sink =
                    B::float_reshape(cast::<B>(sink, dtype), Shape::new([1, sizes.heads, 1, 1]));
                B::float_clamp_min(sink, lowest(dtype).into())
            }),
            bias_shape: bias.as_ref().map(|bias| bias.shape().dims()),
            bias: bias.map(|bias| cast::<B>(bias, dtype)),
            mask: modifiers.mask.into_option(),
            runs: rows.map(|rows| RowTensors::new(rows, &device, dtype)),
            slopes: options.alibi.as_deref().map(|slopes| {
                let slopes: Vec<f64> = slopes.iter().map(|slope| -f64::from(*slope)).collect();
                let data = TensorData::new(slopes, [1, sizes.heads, 1, 1]);
                B::float_from_data(data.convert_dtype(dtype.into()), &device)
            }),
            side: sizes.tile_side(),
            sizes,
            options,
        }
    }

    pub fn dtype(&self) -> FloatDType {
        compute_dtype(self.query.dtype())
    }

    pub fn device(&self) -> Device<B> {
        self.query.device()
    }

    /// One tile that is everything, for what is asked for in full.
    pub fn whole(mut self) -> (Self, Run, Run) {
        self.side = self.sizes.query_len.max(self.sizes.key_len).max(1);
        let run = |end| Run {
            index: 0,
            start: 0,
            end,
        };
        let (queries, keys) = (run(self.sizes.query_len), run(self.sizes.key_len));
        (self, queries, keys)
    }

    /// The query tiles.
    pub fn query_runs(&self) -> Vec<Run> {
        cut(0, self.sizes.query_len, self.side)
    }

    /// All key tiles.
    pub fn all_key_runs(&self) -> Vec<Run> {
        cut(0, self.sizes.key_len, self.side)
    }

    /// The key tiles that some query of the tile may see.
    pub fn key_runs(&self, queries: Run) -> Vec<Run> {
        let (first, end) = match self.options.rows.as_deref() {
            Some(rows) => rows.span(queries.start, queries.end),
            None => (0, self.sizes.key_len),
        };
        let mut runs = self.all_key_runs();
        runs.retain(|run| run.start < end && first < run.end);
        runs
    }

    /// Queries as rows of one product per key head: `[batch, kv_heads, group * queries, width]`.
    pub fn grouped(&self, tensor: FloatTensor<B>) -> FloatTensor<B> {
        let [batch, _, rows, width] = tensor.shape().dims();
        let shape = [batch, self.sizes.kv_heads, self.sizes.group() * rows, width];
        B::float_reshape(tensor, Shape::new(shape))
    }

    /// The way back from [`grouped`](Self::grouped).
    pub fn ungrouped(&self, tensor: FloatTensor<B>) -> FloatTensor<B> {
        let [batch, _, rows, width] = tensor.shape().dims();
        let shape = [batch, self.sizes.heads, rows / self.sizes.group(), width];
        B::float_reshape(tensor, Shape::new(shape))
    }

    /// The scaled products of queries and keys.
    pub fn products(&self, queries: Run, keys: Run) -> FloatTensor<B> {
        let query = self.grouped(slice::<B>(&self.query, Some(queries), None));
        let key = slice::<B>(&self.key, Some(keys), None);
        self.ungrouped(B::float_matmul(query, B::float_swap_dims(key, 2, 3)))
    }

    /// Scores after scale, softcap, bias and mask.
    pub fn scores(&self, queries: Run, keys: Run) -> Scores<B> {
        let mut scores = self.products(queries, keys);
        let mut capped = None;
        if let Some(cap) = self.options.softcap {
            let tanh = B::float_tanh(B::float_mul_scalar(scores, cap.recip().into()));
            scores = B::float_mul_scalar(tanh.clone(), cap.into());
            capped = Some(tanh);
        }
        if let Some(bias) = &self.bias {
            scores = B::float_add(scores, slice::<B>(bias, Some(queries), Some(keys)));
        }
        if let (Some(slopes), Some(runs)) = (&self.slopes, &self.runs) {
            let place = slice::<B>(&runs.position, Some(queries), None);
            let distance = B::float_sub(place, self.key_places(keys));
            let distance = B::float_abs(distance);
            scores = B::float_add(scores, B::float_mul(distance, slopes.clone()));
        }
        if let Some(blocked) = self.blocked(queries, keys, scores.shape()) {
            scores = B::float_mask_fill(scores, blocked, f32::NEG_INFINITY.into());
        }
        Scores { scores, capped }
    }

    /// What each weight is multiplied by under dropout: 0, or `1 / (1 - probability)`.
    pub fn dropout(&self, queries: Run, keys: Run) -> Option<FloatTensor<B>> {
        let options = self.options.dropout?;
        let dropped = dropout::dropped::<B>(options, &self.sizes, queries, keys, &self.device());
        let shape = dropped.shape();
        let kept = B::float_full(
            shape,
            (1.0 - options.probability).recip().into(),
            &self.device(),
            self.dtype(),
        );
        Some(B::float_mask_fill(kept, dropped, 0.0f32.into()))
    }

    fn key_places(&self, keys: Run) -> FloatTensor<B> {
        let places: Vec<f64> = (keys.start..keys.end).map(|place| place as f64).collect();
        let data = TensorData::new(places, [1, 1, 1, keys.len()]);
        B::float_from_data(data.convert_dtype(self.dtype().into()), &self.device())
    }

    /// Where any mask blocks.
    fn blocked(&self, queries: Run, keys: Run, shape: Shape) -> Option<BoolTensor<B>> {
        let expanded = |blocked| B::bool_expand(blocked, shape.clone());
        let by_mask = self.blocked_by_mask(queries, keys).map(expanded);
        let by_rows = self.blocked_by_rows(queries, keys).map(expanded);
        match (by_mask, by_rows) {
            (Some(by_mask), Some(by_rows)) => Some(B::bool_or(by_mask, by_rows)),
            (one, other) => one.or(other),
        }
    }

    fn blocked_by_mask(&self, queries: Run, keys: Run) -> Option<BoolTensor<B>> {
        let mask = self.mask.as_ref()?;
        Some(
            match slices(mask.shape().dims(), Some(queries), Some(keys)) {
                Some(slices) => B::bool_slice(mask.clone(), &slices),
                None => mask.clone(),
            },
        )
    }

    fn blocked_by_rows(&self, queries: Run, keys: Run) -> Option<BoolTensor<B>> {
        let rows = self.options.rows.as_deref()?;
        if rows.covers(queries.start, queries.end, keys.start, keys.end) {
            return None;
        }
        let runs = self.runs.as_ref()?;
        let device = self.device();
        let settings = get_or_init_device_settings::<B>(&device);
        let places = B::int_arange(
            keys.start as i64..keys.end as i64,
            &device,
            settings.int_dtype,
        );
        let places = B::int_reshape(places, Shape::new([1, 1, 1, keys.len()]));
        let of_tile =
            |tensor: &IntTensor<B>| match slices(tensor.shape().dims(), Some(queries), None) {
                Some(slices) => B::int_slice(tensor.clone(), &slices),
                None => tensor.clone(),
            };
        let before = B::int_lower(places.clone(), of_tile(&runs.first), settings.bool_dtype);
        let behind = B::int_greater_equal(places, of_tile(&runs.end), settings.bool_dtype);
        Some(B::bool_or(before, behind))
    }
}

fn cut(start: usize, end: usize, side: usize) -> Vec<Run> {
    (start..end)
        .step_by(side)
        .enumerate()
        .map(|(index, start)| Run {
            index,
            start,
            end: (start + side).min(end),
        })
        .collect()
}

impl<B: Backend> RowTensors<B> {
    fn new(rows: &Rows, device: &Device<B>, dtype: FloatDType) -> Self {
        let shape = [rows.samples, 1, rows.query_len(), 1];
        let int = |list: &[u32]| {
            let list: Vec<i64> = list.iter().map(|entry| i64::from(*entry)).collect();
            int_tensor::<B>(list, shape, device)
        };
        let position: Vec<f64> = rows
            .position
            .iter()
            .map(|place| f64::from(*place))
            .collect();
        let position = TensorData::new(position, shape).convert_dtype(dtype.into());
        Self {
            first: int(&rows.first),
            end: int(&rows.end),
            position: B::float_from_data(position, device),
        }
    }
}

/// Integers in the element type that the backend uses for them.
pub(super) fn int_tensor<B: Backend>(
    list: Vec<i64>,
    shape: [usize; 4],
    device: &Device<B>,
) -> IntTensor<B> {
    let dtype: IntDType = get_or_init_device_settings::<B>(device).int_dtype;
    B::int_from_data(
        TensorData::new(list, shape).convert_dtype(dtype.into()),
        device,
    )
}

/// Zeros at the queries that see no key, whose content may be anything.
pub(super) fn hide_unseeing_queries<B: Backend>(
    tensor: FloatTensor<B>,
    rows: Option<&Rows>,
) -> FloatTensor<B> {
    let Some(rows) = rows else { return tensor };
    let blind: Vec<bool> = rows.visible().map(|keys| keys == 0).collect();
    hide::<B>(tensor, blind, [rows.samples, 1, rows.query_len(), 1])
}

/// Zeros at the keys or values that no query of their sample sees, whose content may be anything.
fn hide_unseen_keys<B: Backend>(tensor: FloatTensor<B>, rows: Option<&Rows>) -> FloatTensor<B> {
    let Some(rows) = rows else { return tensor };
    let [_, _, key_len, _] = tensor.shape().dims();
    let unseen = (0..rows.samples).flat_map(|sample| {
        let (first, end) = rows.sample_span(sample);
        (0..key_len).map(move |key| key < first || key >= end)
    });
    hide::<B>(tensor, unseen.collect(), [rows.samples, 1, key_len, 1])
}

fn hide<B: Backend>(
    tensor: FloatTensor<B>,
    hidden: Vec<bool>,
    shape: [usize; 4],
) -> FloatTensor<B> {
    if !hidden.contains(&true) {
        return tensor;
    }
    let device = tensor.device();
    let dtype = get_or_init_device_settings::<B>(&device).bool_dtype;
    let data = TensorData::new(hidden, shape).convert_dtype(dtype.into());
    let hidden = B::bool_expand(B::bool_from_data(data, &device), tensor.shape());
    B::float_mask_fill(tensor, hidden, 0.0f32.into())
}
