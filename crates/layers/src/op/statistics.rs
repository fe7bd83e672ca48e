//! What the softmax did, row by row and tile by tile: nothing of the size of the scores is kept.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Shape, TensorMetadata, get_or_init_device_settings};

use super::tiles::{Run, Sizes, Tiles, cast, hide_unseeing_queries, lowest, slice};
use super::{AttentionOptions, MaybeFloat, Modifiers};

/// Where each number of a row stands in what [`rows`] gives.
pub(crate) mod column {
    /// How many keys the row sees.
    pub const KEYS: usize = 0;
    /// The sum of its scores, as they enter the softmax.
    pub const SCORE_SUM: usize = 1;
    /// The sum of their squares.
    pub const SCORE_SQUARES: usize = 2;
    /// Its largest weight.
    pub const MAX_WEIGHT: usize = 3;
    /// The entropy of its weights in nats.
    pub const ENTROPY: usize = 4;
    /// The L2 norm of the loss's gradient at its scores.
    pub const SCORE_GRADIENT: usize = 5;
    /// Its largest score.
    pub const MAX_SCORE: usize = 6;
    /// The sum of the scaled products of the query and the keys that it sees.
    pub const PRODUCT_SUM: usize = 7;
    /// The sum of their squares.
    pub const PRODUCT_SQUARES: usize = 8;
    /// The largest of them, without its sign.
    pub const MAX_PRODUCT: usize = 9;
    /// The L2 norm of the loss's gradient at the row's context.
    pub const CONTEXT_GRADIENT: usize = 10;
    /// The squared L2 norm of the scaled query.
    pub const QUERY_SQUARES: usize = 11;
    /// The mean squared L2 norm of the keys that any query of the row's head sees.
    pub const KEY_SQUARES: usize = 12;
    /// The mean squared distance of those keys from their mean.
    pub const KEY_SPREAD: usize = 13;
    /// The mean squared L2 norm of the values of those keys.
    pub const VALUE_SQUARES: usize = 14;
    /// The mean squared distance of those values from their mean.
    pub const VALUE_SPREAD: usize = 15;
    /// The lowest finite number of the call's bias, 0 without one.
    pub const LOWEST_BIAS: usize = 16;
}

/// How many numbers each row has.
pub(crate) const PER_ROW: usize = 17;

/// How many of them are put together from the row's tiles: the first ones.
const FROM_TILES: usize = column::MAX_PRODUCT + 1;

/// Stands for the norm of a gradient that was not given: no norm is negative.
pub(crate) const NO_GRADIENT: f64 = -1.0;

/// The numbers of each row, `[batch, heads, query_len, PER_ROW]`, in the order of [`column`];
/// [`NO_GRADIENT`] where no gradient is given.
///
/// Scores are those that enter the softmax; the gradient is with respect to them.
pub(crate) fn rows<B: Backend>(
    query: FloatTensor<B>,
    key: FloatTensor<B>,
    value: FloatTensor<B>,
    modifiers: Modifiers<B>,
    options: &AttentionOptions,
    logsumexp: FloatTensor<B>,
    context: Option<(FloatTensor<B>, FloatTensor<B>)>,
) -> FloatTensor<B> {
    let bias = modifiers.bias.clone();
    let tiles = Tiles::<B>::new(query, key, value, modifiers, options);
    let Sizes {
        batch,
        heads,
        query_len,
        ..
    } = tiles.sizes;
    let dtype = tiles.dtype();
    let device = tiles.device();
    if batch * heads * query_len == 0 {
        let shape = Shape::new([batch, heads, query_len, PER_ROW]);
        return B::float_zeros(shape, &device, dtype);
    }
    let bools = get_or_init_device_settings::<B>(&device).bool_dtype;
    let column = Shape::new([batch, heads, query_len, 1]);
    let logsumexp = B::float_reshape(logsumexp, column.clone());
    let logsumexp = B::float_clamp_min(logsumexp, lowest(dtype).into());
    let gradient = context.map(|(context, gradient)| {
        let rows = options.rows.as_deref();
        let gradient = hide_unseeing_queries::<B>(cast::<B>(gradient, dtype), rows);
        let products = B::float_mul(cast::<B>(context, dtype), gradient.clone());
        (gradient, B::float_sum_dim(products, 3))
    });
    let products_are_scores =
        matches!(bias, MaybeFloat::None) && options.softcap.is_none() && options.alibi.is_none();

    let mut seen_keys: Vec<Option<FloatTensor<B>>> = vec![None; tiles.all_key_runs().len()];
    let mut parts = Vec::new();
    for queries in tiles.query_runs() {
        let logsumexp = slice::<B>(&logsumexp, Some(queries), None);
        let filled = |number: f32| {
            let shape = Shape::new([batch, heads, queries.len(), 1]);
            B::float_full(shape, number.into(), &device, dtype)
        };
        let mut sums: [FloatTensor<B>; FROM_TILES] = core::array::from_fn(|index| match index {
            column::MAX_SCORE => filled(f32::NEG_INFINITY),
            _ => filled(0.0),
        });
        for keys in tiles.key_runs(queries) {
            let masked = tiles.scores(queries, keys).scores;
            let blocked = B::float_equal_elem(masked.clone(), f32::NEG_INFINITY.into(), bools);
            let weights = B::float_exp(B::float_sub(masked.clone(), logsumexp.clone()));
            let scores = B::float_mask_fill(masked.clone(), blocked.clone(), 0.0f32.into());
            let products = match products_are_scores {
                true => scores.clone(),
                false => {
                    let products = tiles.products(queries, keys);
                    B::float_mask_fill(products, blocked.clone(), 0.0f32.into())
                }
            };
            let ones = B::float_full(scores.shape(), 1.0f32.into(), &device, dtype);
            let seen = B::float_mask_fill(ones, blocked, 0.0f32.into());
            let by_any = B::float_max_dim(seen.clone(), 2);
            let before = seen_keys[keys.index].take();
            seen_keys[keys.index] = Some(match before {
                Some(before) => B::float_max_dim(B::float_cat(vec![before, by_any], 2), 2),
                None => by_any,
            });
            let surprise = B::float_sub(logsumexp.clone(), scores.clone());
            let score_gradient = match &gradient {
                None => filled(0.0),
                Some((gradient, delta)) => {
                    let gradient = tiles.grouped(slice::<B>(gradient, Some(queries), None));
                    let value = slice::<B>(&tiles.value, Some(keys), None);
                    let at_weights = B::float_matmul(gradient, B::float_swap_dims(value, 2, 3));
                    let mut at_weights = tiles.ungrouped(at_weights);
                    if let Some(factors) = tiles.dropout(queries, keys) {
                        at_weights = B::float_mul(at_weights, factors);
                    }
                    let delta = slice::<B>(delta, Some(queries), None);
                    let at_scores = B::float_mul(weights.clone(), B::float_sub(at_weights, delta));
                    sum_of_squares::<B>(at_scores)
                }
            };
            let found: [FloatTensor<B>; FROM_TILES] = [
                B::float_sum_dim(seen, 3),
                B::float_sum_dim(scores.clone(), 3),
                sum_of_squares::<B>(scores),
                B::float_max_dim(weights.clone(), 3),
                B::float_sum_dim(B::float_mul(weights, surprise), 3),
                score_gradient,
                B::float_max_dim(masked, 3),
                B::float_sum_dim(products.clone(), 3),
                sum_of_squares::<B>(products.clone()),
                B::float_max_dim(B::float_abs(products), 3),
            ];
            for (index, part) in found.into_iter().enumerate() {
                sums[index] = match index {
                    column::MAX_WEIGHT | column::MAX_SCORE | column::MAX_PRODUCT => {
                        B::float_max_dim(B::float_cat(vec![sums[index].clone(), part], 3), 3)
                    }
                    _ => B::float_add(sums[index].clone(), part),
                };
            }
        }
        let mut columns = sums.to_vec();
        let at_context = match &gradient {
            Some((gradient, _)) => {
                let sum = columns[column::SCORE_GRADIENT].clone();
                columns[column::SCORE_GRADIENT] = B::float_sqrt(sum);
                let gradient = slice::<B>(gradient, Some(queries), None);
                B::float_sqrt(sum_of_squares::<B>(gradient))
            }
            None => {
                columns[column::SCORE_GRADIENT] = filled(NO_GRADIENT as f32);
                filled(NO_GRADIENT as f32)
            }
        };
        columns.push(at_context);
        let query = slice::<B>(&tiles.query, Some(queries), None);
        columns.push(sum_of_squares::<B>(query));
        parts.push(B::float_cat(columns, 3));
    }

    let mut columns = vec![B::float_cat(parts, 2)];
    let of_heads = head_moments(&tiles, &seen_keys)
        .into_iter()
        .chain([lowest_finite::<B>(bias, &tiles)]);
    columns.extend(of_heads.map(|number| B::float_expand(number, column.clone())));
    B::float_cat(columns, 3)
}

fn sum_of_squares<B: Backend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    B::float_sum_dim(B::float_mul(tensor.clone(), tensor), 3)
}

/// The mean squared norm and the mean squared distance from the mean, first of the keys and then
/// of the values that any query of a head sees, each `[batch, heads, 1, 1]`.
fn head_moments<B: Backend>(
    tiles: &Tiles<B>,
    seen_keys: &[Option<FloatTensor<B>>],
) -> Vec<FloatTensor<B>> {
    let runs: Vec<(Run, &FloatTensor<B>)> = tiles
        .all_key_runs()
        .into_iter()
        .zip(seen_keys)
        .filter_map(|(run, seen)| Some((run, seen.as_ref()?)))
        .collect();
    let total = |sum: &dyn Fn(Run, &FloatTensor<B>) -> FloatTensor<B>| {
        let parts = runs.iter().map(|(run, seen)| sum(*run, seen));
        parts.reduce(B::float_add)
    };
    // At least 1: a head whose queries see nothing has moments of 0.
    let count = total(&|_, seen| B::float_sum_dim(seen.clone(), 3));
    let count = count.map(|count| B::float_clamp_min(count, 1.0f32.into()));
    let Sizes { batch, heads, .. } = tiles.sizes;
    let nothing = || {
        B::float_zeros(
            Shape::new([batch, heads, 1, 1]),
            &tiles.device(),
            tiles.dtype(),
        )
    };
    let Some(count) = count else {
        return vec![nothing(); 4];
    };
    // `weights` is `[batch, heads, 1, keys]`, `rows` is `[batch, kv_heads, keys, width]`.
    let weighted = |weights: &FloatTensor<B>, rows: FloatTensor<B>| {
        tiles.ungrouped(B::float_matmul(tiles.grouped(weights.clone()), rows))
    };
    let mut moments = Vec::new();
    for rows in [&tiles.key, &tiles.value] {
        let sum = total(&|run, seen| weighted(seen, slice::<B>(rows, Some(run), None)));
        let squares = total(&|run, seen| {
            let rows = slice::<B>(rows, Some(run), None);
            weighted(seen, sum_of_squares::<B>(rows))
        });
        let (Some(sum), Some(squares)) = (sum, squares) else {
            return vec![nothing(); 4];
        };
        let squares = B::float_div(squares, count.clone());
        let mean = sum_of_squares::<B>(B::float_div(sum, count.clone()));
        let spread = B::float_clamp_min(B::float_sub(squares.clone(), mean), 0.0f32.into());
        moments.extend([squares, spread]);
    }
    moments
}

/// The lowest finite number of the bias, `[1, 1, 1, 1]`.
fn lowest_finite<B: Backend>(bias: MaybeFloat<B>, tiles: &Tiles<B>) -> FloatTensor<B> {
    let shape = Shape::new([1, 1, 1, 1]);
    let Some(bias) = bias.into_option() else {
        return B::float_zeros(shape, &tiles.device(), tiles.dtype());
    };
    let bools = get_or_init_device_settings::<B>(&tiles.device()).bool_dtype;
    let bias = cast::<B>(bias, tiles.dtype());
    let blocking = B::float_equal_elem(bias.clone(), f32::NEG_INFINITY.into(), bools);
    let finite = B::float_mask_fill(bias, blocking, 0.0f32.into());
    B::float_reshape(B::float_min(finite), shape)
}
