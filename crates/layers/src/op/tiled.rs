//! Forward and backward in tiles, with backend primitives alone: linear memory on every backend.
//!
//! The forward pass keeps a running maximum and sum for each row and rescales what it has
//! ([Milakov and Gimelshein 2018](https://arxiv.org/abs/1805.02867)); the backward pass is that of
//! [FlashAttention-2](https://arxiv.org/abs/2307.08691), section 3.1.2.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, DType, Shape, TensorMetadata, get_or_init_device_settings};
use burn::tensor::FloatDType;

use super::tiles::{Run, Sizes, Tiles, cast, compute_dtype, hide_unseeing_queries, lowest, slice};
use super::{AttentionGradients, AttentionOptions, MaybeFloat, Modifiers, Wanted};

/// What the forward pass left, with the gradients that arrive at it.
pub(super) struct Saved<B: Backend> {
    pub context: FloatTensor<B>,
    pub logsumexp: FloatTensor<B>,
    pub context_gradient: FloatTensor<B>,
    pub logsumexp_gradient: Option<FloatTensor<B>>,
}

pub(super) fn forward<B: Backend>(
    query: FloatTensor<B>,
    key: FloatTensor<B>,
    value: FloatTensor<B>,
    modifiers: Modifiers<B>,
    options: &AttentionOptions,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let sizes = Sizes::of::<B>(&query, &key, &value);
    let dtype = query.dtype();
    let device = query.device();
    if sizes.batch * sizes.heads * sizes.query_len == 0 {
        return (
            zeros::<B>(
                [sizes.batch, sizes.heads, sizes.query_len, sizes.d_v],
                dtype.into(),
                &device,
            ),
            B::float_zeros(
                Shape::new([sizes.batch, sizes.heads, sizes.query_len]),
                &device,
                compute_dtype(dtype),
            ),
        );
    }
    let tiles = Tiles::<B>::new(query, key, value, modifiers, options);
    let runs = tiles.query_runs();
    let (contexts, sums) = runs
        .iter()
        .map(|&queries| forward_rows(&tiles, queries))
        .unzip();
    let context = B::float_cat(contexts, 2);
    let logsumexp = B::float_cat(sums, 2);
    (
        cast::<B>(context, dtype.into()),
        B::float_reshape(
            logsumexp,
            Shape::new([sizes.batch, sizes.heads, sizes.query_len]),
        ),
    )
}

/// Context and logsumexp `[batch, heads, queries, 1]` of one tile of queries.
fn forward_rows<B: Backend>(tiles: &Tiles<B>, queries: Run) -> (FloatTensor<B>, FloatTensor<B>) {
    let Sizes {
        batch, heads, d_v, ..
    } = tiles.sizes;
    let device = tiles.device();
    let dtype = tiles.dtype();
    let column = Shape::new([batch, heads, queries.len(), 1]);

    // Starting at the sink's logit with sum 1, or at the lowest finite number with sum 0: a row
    // that sees nothing then ends with sum 0 and without a difference of infinities.
    let (mut max, mut sum) = match &tiles.sink {
        Some(sink) => (
            B::float_expand(sink.clone(), column.clone()),
            B::float_full(column.clone(), 1.0f32.into(), &device, dtype),
        ),
        None => (
            B::float_full(column.clone(), lowest(dtype).into(), &device, dtype),
            B::float_zeros(column.clone(), &device, dtype),
        ),
    };
    let mut context = zeros::<B>([batch, heads, queries.len(), d_v], dtype, &device);
    for keys in tiles.key_runs(queries) {
        let scores = tiles.scores(queries, keys).scores;
        let highest = B::float_max_dim(scores.clone(), 3);
        let new_max = B::float_max_dim(B::float_cat(vec![max.clone(), highest], 3), 3);
        let old = B::float_exp(B::float_sub(max, new_max.clone()));
        let weights = B::float_exp(B::float_sub(scores, new_max.clone()));
        sum = B::float_add(
            B::float_mul(sum, old.clone()),
            B::float_sum_dim(weights.clone(), 3),
        );
        let weights = match tiles.dropout(queries, keys) {
            Some(factors) => B::float_mul(weights, factors),
            None => weights,
        };
        let value = slice::<B>(&tiles.value, Some(keys), None);
        let part = tiles.ungrouped(B::float_matmul(tiles.grouped(weights), value));
        context = B::float_add(B::float_mul(context, old), part);
        max = new_max;
    }
    let bools = get_or_init_device_settings::<B>(&device).bool_dtype;
    let nothing = B::float_equal_elem(sum.clone(), 0.0f32.into(), bools);
    // The sum of a row that sees anything is at least about 1: its largest score adds exp(0).
    let sum = B::float_mask_fill(sum, nothing.clone(), 1.0f32.into());
    let logsumexp = B::float_add(max, B::float_log(sum.clone()));
    (
        B::float_div(context, sum),
        B::float_mask_fill(logsumexp, nothing, f32::NEG_INFINITY.into()),
    )
}

pub(super) fn backward<B: Backend>(
    query: FloatTensor<B>,
    key: FloatTensor<B>,
    value: FloatTensor<B>,
    saved: Saved<B>,
    modifiers: Modifiers<B>,
    options: &AttentionOptions,
    wanted: Wanted,
) -> AttentionGradients<B> {
    let sizes = Sizes::of::<B>(&query, &key, &value);
    let (dtype, device) = (query.dtype(), query.device());
    let key_shape = key.shape().dims::<4>();
    let bias_dtype = float_dtype_of::<B>(&modifiers.bias);
    let sink_dtype = float_dtype_of::<B>(&modifiers.sink);
    let tiles = Tiles::<B>::new(query, key, value, modifiers, options);
    let mut grids = Grids::<B>::new(&tiles);
    let mut sink = None;
    if sizes.any_score() {
        let rows = RowGradients::new(&tiles, saved);
        for queries in tiles.query_runs() {
            rows.add(&tiles, queries, wanted, &mut grids);
        }
        if wanted.sink {
            sink = rows.sink(&tiles);
        }
    }

    let compute = compute_dtype(dtype);
    let finish = |grid: Grid<B>, shape: [usize; 4], dtype: DType, wanted: bool| {
        let gradient = wanted.then(|| grid.assemble(shape, compute, &device));
        MaybeFloat::from_option(gradient.map(|gradient| cast::<B>(gradient, dtype.into())))
    };
    let Sizes {
        batch,
        heads,
        kv_heads,
        query_len,
        key_len,
        d_k,
        d_v,
    } = sizes;
    debug_assert_eq!(key_shape, [batch, kv_heads, key_len, d_k]);
    AttentionGradients {
        query: finish(
            grids.query,
            [batch, heads, query_len, d_k],
            dtype,
            wanted.query,
        ),
        key: finish(
            grids.key,
            [batch, kv_heads, key_len, d_k],
            dtype,
            wanted.key,
        ),
        value: finish(
            grids.value,
            [batch, kv_heads, key_len, d_v],
            dtype,
            wanted.value,
        ),
        bias: match tiles.bias_shape {
            Some(shape) => finish(grids.bias, shape, bias_dtype, wanted.bias),
            None => MaybeFloat::None,
        },
        sink: match wanted.sink {
            true => {
                let gradient =
                    sink.unwrap_or_else(|| B::float_zeros(Shape::new([heads]), &device, compute));
                MaybeFloat::Some(cast::<B>(gradient, sink_dtype.into()))
            }
            false => MaybeFloat::None,
        },
    }
}

fn float_dtype_of<B: Backend>(tensor: &MaybeFloat<B>) -> DType {
    match tensor {
        MaybeFloat::None => DType::F32,
        MaybeFloat::Some(tensor) => tensor.dtype(),
    }
}

/// What each query row contributes with.
struct RowGradients<B: Backend> {
    /// The gradient at the context.
    context: FloatTensor<B>,
    /// `sum over d_v of context * gradient - gradient of the logsumexp`, `[batch, heads, query_len, 1]`.
    delta: FloatTensor<B>,
    /// The logsumexp, finite, `[batch, heads, query_len, 1]`.
    logsumexp: FloatTensor<B>,
}

impl<B: Backend> RowGradients<B> {
    fn new(tiles: &Tiles<B>, saved: Saved<B>) -> Self {
        let Sizes {
            batch,
            heads,
            query_len,
            ..
        } = tiles.sizes;
        let dtype = tiles.dtype();
        let rows = tiles.options.rows.as_deref();
        let column = Shape::new([batch, heads, query_len, 1]);
        let context = hide_unseeing_queries::<B>(cast::<B>(saved.context_gradient, dtype), rows);
        let products = B::float_mul(cast::<B>(saved.context, dtype), context.clone());
        let mut delta = match tiles.sizes.d_v {
            0 => B::float_zeros(column.clone(), &tiles.device(), dtype),
            _ => B::float_sum_dim(products, 3),
        };
        if let Some(gradient) = saved.logsumexp_gradient {
            let gradient = B::float_reshape(cast::<B>(gradient, dtype), column.clone());
            delta = B::float_sub(delta, gradient);
        }
        let logsumexp = B::float_reshape(saved.logsumexp, column);
        Self {
            context,
            delta,
            // A row that sees nothing has only scores of minus infinity, and exp(-inf - lowest) = 0.
            logsumexp: B::float_clamp_min(logsumexp, lowest(dtype).into()),
        }
    }

    fn add(&self, tiles: &Tiles<B>, queries: Run, wanted: Wanted, grids: &mut Grids<B>) {
        let context = tiles.grouped(slice::<B>(&self.context, Some(queries), None));
        let delta = slice::<B>(&self.delta, Some(queries), None);
        let logsumexp = slice::<B>(&self.logsumexp, Some(queries), None);
        let query = tiles.grouped(slice::<B>(&tiles.query, Some(queries), None));
        for keys in tiles.key_runs(queries) {
            let tile = tiles.scores(queries, keys);
            let weights = B::float_exp(B::float_sub(tile.scores, logsumexp.clone()));
            let dropout = tiles.dropout(queries, keys);
            if wanted.value {
                let applied = match &dropout {
                    Some(factors) => B::float_mul(weights.clone(), factors.clone()),
                    None => weights.clone(),
                };
                let applied = B::float_swap_dims(tiles.grouped(applied), 2, 3);
                grids
                    .value
                    .add(keys.index, 0, B::float_matmul(applied, context.clone()));
            }
            if !(wanted.query || wanted.key || wanted.bias) {
                continue;
            }
            let value = slice::<B>(&tiles.value, Some(keys), None);
            let at_weights = B::float_matmul(context.clone(), B::float_swap_dims(value, 2, 3));
            let mut at_weights = tiles.ungrouped(at_weights);
            if let Some(factors) = dropout {
                at_weights = B::float_mul(at_weights, factors);
            }
            let at_scores = B::float_mul(weights, B::float_sub(at_weights, delta.clone()));
            if wanted.bias
                && let Some(shape) = tiles.bias_shape
            {
                let part = sum_to_broadcast::<B>(at_scores.clone(), shape);
                let row = if shape[2] > 1 { queries.index } else { 0 };
                let column = if shape[3] > 1 { keys.index } else { 0 };
                grids.bias.add(row, column, part);
            }
            let at_scores = match tile.capped {
                // The derivative of tanh is 1 - tanh^2.
                Some(tanh) => {
                    let slope = B::float_neg(B::float_mul(tanh.clone(), tanh));
                    B::float_mul(at_scores, B::float_add_scalar(slope, 1.0f32.into()))
                }
                None => at_scores,
            };
            let at_scores = tiles.grouped(at_scores);
            if wanted.query {
                let key = slice::<B>(&tiles.key, Some(keys), None);
                let part = tiles.ungrouped(B::float_matmul(at_scores.clone(), key));
                let part = B::float_mul_scalar(part, tiles.options.scale.into());
                grids.query.add(queries.index, 0, part);
            }
            if wanted.key {
                let at_scores = B::float_swap_dims(at_scores, 2, 3);
                grids
                    .key
                    .add(keys.index, 0, B::float_matmul(at_scores, query.clone()));
            }
        }
    }

    /// The sink is one more score whose value is zero: `sum of -weight * delta`.
    fn sink(&self, tiles: &Tiles<B>) -> Option<FloatTensor<B>> {
        let sink = tiles.sink.clone()?;
        let weight = B::float_exp(B::float_sub(sink, self.logsumexp.clone()));
        let gradient = B::float_neg(B::float_mul(weight, self.delta.clone()));
        let gradient = B::float_sum_dim(B::float_sum_dim(gradient, 2), 0);
        Some(B::float_reshape(gradient, Shape::new([tiles.sizes.heads])))
    }
}

/// The gradients, tile by tile: assigning tiles into one tensor would copy it each time.
struct Grids<B: Backend> {
    query: Grid<B>,
    key: Grid<B>,
    value: Grid<B>,
    bias: Grid<B>,
}

impl<B: Backend> Grids<B> {
    fn new(tiles: &Tiles<B>) -> Self {
        let rows = tiles.query_runs();
        let keys = tiles.all_key_runs();
        let whole = |length: usize| {
            vec![Run {
                index: 0,
                start: 0,
                end: length,
            }]
        };
        let bias = tiles.bias_shape.unwrap_or([1; 4]);
        Self {
            query: Grid::new(rows.clone(), whole(tiles.sizes.d_k)),
            key: Grid::new(keys.clone(), whole(tiles.sizes.d_k)),
            value: Grid::new(keys.clone(), whole(tiles.sizes.d_v)),
            bias: Grid::new(
                if bias[2] > 1 { rows } else { whole(1) },
                if bias[3] > 1 { keys } else { whole(1) },
            ),
        }
    }
}

/// A tensor in tiles along its axes 2 and 3; a tile that nothing was added to is zero.
struct Grid<B: Backend> {
    rows: Vec<Run>,
    columns: Vec<Run>,
    tiles: Vec<Option<FloatTensor<B>>>,
}

impl<B: Backend> Grid<B> {
    fn new(rows: Vec<Run>, columns: Vec<Run>) -> Self {
        let tiles = vec![None; rows.len() * columns.len()];
        Self {
            rows,
            columns,
            tiles,
        }
    }

    fn add(&mut self, row: usize, column: usize, part: FloatTensor<B>) {
        let tile = &mut self.tiles[row * self.columns.len() + column];
        *tile = Some(match tile.take() {
            Some(sum) => B::float_add(sum, part),
            None => part,
        });
    }

    fn assemble(
        mut self,
        shape: [usize; 4],
        dtype: FloatDType,
        device: &burn::backend::tensor::Device<B>,
    ) -> FloatTensor<B> {
        if shape.contains(&0) || self.tiles.iter().all(Option::is_none) {
            return zeros::<B>(shape, dtype, device);
        }
        let mut rows = Vec::with_capacity(self.rows.len());
        let mut tiles = self.tiles.drain(..);
        for row in &self.rows {
            let parts = self.columns.iter().map(|column| {
                tiles.next().flatten().unwrap_or_else(|| {
                    zeros::<B>([shape[0], shape[1], row.len(), column.len()], dtype, device)
                })
            });
            rows.push(joined::<B>(parts.collect(), 3));
        }
        joined::<B>(rows, 2)
    }
}

fn joined<B: Backend>(mut parts: Vec<FloatTensor<B>>, axis: usize) -> FloatTensor<B> {
    match parts.len() {
        1 => parts.remove(0),
        _ => B::float_cat(parts, axis),
    }
}

fn sum_to_broadcast<B: Backend>(mut tensor: FloatTensor<B>, shape: [usize; 4]) -> FloatTensor<B> {
    let dims = tensor.shape().dims::<4>();
    for axis in 0..4 {
        if shape[axis] == 1 && dims[axis] > 1 {
            tensor = B::float_sum_dim(tensor, axis);
        }
    }
    tensor
}

fn zeros<B: Backend>(
    shape: [usize; 4],
    dtype: FloatDType,
    device: &burn::backend::tensor::Device<B>,
) -> FloatTensor<B> {
    B::float_zeros(Shape::new(shape), device, dtype)
}
