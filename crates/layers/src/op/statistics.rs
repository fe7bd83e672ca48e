//! What the softmax did, row by row and tile by tile: nothing of the size of the scores is kept.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Shape, TensorMetadata, get_or_init_device_settings};

use super::tiles::{Sizes, Tiles, cast, hide_unseeing_queries, lowest, slice};
use super::{AttentionOptions, Modifiers};

/// How many numbers each row has, in the order of [`rows`].
pub(crate) const PER_ROW: usize = 6;

/// Stands for the norm of a gradient that was not given: no norm is negative.
pub(crate) const NO_GRADIENT: f64 = -1.0;

/// For each row `[batch, heads, query_len, 6]`: how many keys it sees, the sum and the sum of
/// squares of its scores, its largest weight, the entropy of its weights in nats, and the L2 norm
/// of the loss's gradient at its scores ([`NO_GRADIENT`] where none is given).
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
    let tiles = Tiles::<B>::new(query, key, value, modifiers, options);
    let Sizes {
        batch,
        heads,
        query_len,
        ..
    } = tiles.sizes;
    let dtype = tiles.dtype();
    let device = tiles.device();
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

    let mut parts = Vec::new();
    for queries in tiles.query_runs() {
        let logsumexp = slice::<B>(&logsumexp, Some(queries), None);
        let zero = || B::float_zeros(Shape::new([batch, heads, queries.len(), 1]), &device, dtype);
        let mut sums: [FloatTensor<B>; PER_ROW] = core::array::from_fn(|_| zero());
        for keys in tiles.key_runs(queries) {
            let scores = tiles.scores(queries, keys).scores;
            let blocked = B::float_equal_elem(scores.clone(), f32::NEG_INFINITY.into(), bools);
            let weights = B::float_exp(B::float_sub(scores.clone(), logsumexp.clone()));
            let scores = B::float_mask_fill(scores, blocked.clone(), 0.0f32.into());
            let ones = B::float_full(scores.shape(), 1.0f32.into(), &device, dtype);
            let seen = B::float_mask_fill(ones, blocked, 0.0f32.into());
            let surprise = B::float_sub(logsumexp.clone(), scores.clone());
            let mut found = vec![
                B::float_sum_dim(seen, 3),
                B::float_sum_dim(scores.clone(), 3),
                B::float_sum_dim(B::float_mul(scores.clone(), scores), 3),
                B::float_max_dim(weights.clone(), 3),
                B::float_sum_dim(B::float_mul(weights.clone(), surprise), 3),
            ];
            if let Some((gradient, delta)) = &gradient {
                let gradient = tiles.grouped(slice::<B>(gradient, Some(queries), None));
                let value = slice::<B>(&tiles.value, Some(keys), None);
                let at_weights = B::float_matmul(gradient, B::float_swap_dims(value, 2, 3));
                let mut at_weights = tiles.ungrouped(at_weights);
                if let Some(factors) = tiles.dropout(queries, keys) {
                    at_weights = B::float_mul(at_weights, factors);
                }
                let delta = slice::<B>(delta, Some(queries), None);
                let at_scores = B::float_mul(weights, B::float_sub(at_weights, delta));
                found.push(B::float_sum_dim(
                    B::float_mul(at_scores.clone(), at_scores),
                    3,
                ));
            }
            for (index, part) in found.into_iter().enumerate() {
                sums[index] = match index {
                    3 => B::float_max_dim(B::float_cat(vec![sums[3].clone(), part], 3), 3),
                    _ => B::float_add(sums[index].clone(), part),
                };
            }
        }
        sums[5] = match gradient {
            Some(_) => B::float_sqrt(sums[5].clone()),
            None => B::float_add_scalar(zero(), NO_GRADIENT.into()),
        };
        parts.push(B::float_cat(sums.to_vec(), 3));
    }
    match parts.is_empty() {
        true => B::float_zeros(Shape::new([batch, heads, 0, PER_ROW]), &device, dtype),
        false => B::float_cat(parts, 2),
    }
}
