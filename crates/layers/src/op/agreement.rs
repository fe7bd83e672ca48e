//! The default body and the kernels compute the same, dropout bits included.

use std::sync::Arc;

use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{Bool, Device, Distribution, Tensor, TensorData, Tolerance};

use super::{
    AttentionBackend, AttentionOptions, DropoutOptions, MaybeBool, MaybeFloat, Modifiers, Wanted,
    tiled,
};
use crate::mask::{Alignment, Window};
use crate::position::alibi_slopes;
use crate::rows::Visibility;

const ALL: Wanted = Wanted {
    query: true,
    key: true,
    value: true,
    bias: true,
    sink: true,
};

/// Batch, query heads, key heads, queries, keys, d_k, d_v: the lengths cross the borders of tiles.
const SIZES: [[usize; 7]; 3] = [
    [2, 6, 3, 7, 11, 5, 13],
    [1, 2, 1, 281, 523, 16, 8],
    [3, 4, 4, 67, 41, 8, 16],
];

fn plain() -> AttentionOptions {
    AttentionOptions {
        scale: 0.3,
        softcap: None,
        rows: None,
        alibi: None,
        dropout: None,
        probe: None,
        lse_gradient: false,
        kept: None,
    }
}

fn random(shape: [usize; 4], device: &Device) -> Tensor<4> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), device)
}

fn primitive<const D: usize>(tensor: Tensor<D>) -> FloatTensor<Flex> {
    tensor.try_into_primitive::<Flex>().expect("a flex tensor")
}

fn data(tensor: FloatTensor<Flex>) -> TensorData {
    let shape = tensor.layout().shape().clone();
    match shape.num_dims() {
        1 => Tensor::<1>::from_primitive::<Flex>(tensor).into_data(),
        3 => Tensor::<3>::from_primitive::<Flex>(tensor).into_data(),
        _ => Tensor::<4>::from_primitive::<Flex>(tensor).into_data(),
    }
}

/// Both bodies on the same random call.
fn agree(options: impl Fn([usize; 7]) -> AttentionOptions, modified: bool) {
    let device = Device::flex();
    device.seed(7);
    for sizes in SIZES {
        let [batch, heads, kv_heads, queries, keys, d_k, d_v] = sizes;
        let options = options(sizes);
        let q = random([batch, heads, queries, d_k], &device);
        let k = random([batch, kv_heads, keys, d_k], &device);
        let v = random([batch, kv_heads, keys, d_v], &device);
        let modifiers = match modified {
            false => Modifiers {
                mask: MaybeBool::None,
                bias: MaybeFloat::None,
                sink: MaybeFloat::None,
            },
            true => {
                let mask = random([batch, 1, queries, keys], &device).greater_elem(1.0);
                let mask: Tensor<4, Bool> = mask;
                let sink = Tensor::<1>::random([heads], Distribution::Default, &device);
                Modifiers {
                    mask: MaybeBool::Some(mask.try_into_primitive::<Flex>().expect("flex")),
                    bias: MaybeFloat::Some(primitive(random([1, heads, 1, keys], &device))),
                    sink: MaybeFloat::Some(primitive(sink)),
                }
            }
        };
        let (q, k, v) = (primitive(q), primitive(k), primitive(v));
        let (context, logsumexp) = Flex::attention_forward(
            q.clone(),
            k.clone(),
            v.clone(),
            modifiers.clone(),
            options.clone(),
        );
        let (tiled_context, tiled_logsumexp) =
            tiled::forward::<Flex>(q.clone(), k.clone(), v.clone(), modifiers.clone(), &options);
        let tolerance = Tolerance::absolute(2e-5);
        data(context.clone()).assert_approx_eq::<f32>(&data(tiled_context), tolerance);
        data(logsumexp.clone()).assert_approx_eq::<f32>(&data(tiled_logsumexp), tolerance);

        let gradient = primitive(random([batch, heads, queries, d_v], &device));
        let rows: Tensor<3> =
            Tensor::random([batch, heads, queries], Distribution::Default, &device);
        let rows = primitive(rows);
        let found = Flex::attention_backward(
            q.clone(),
            k.clone(),
            v.clone(),
            context.clone(),
            logsumexp.clone(),
            gradient.clone(),
            MaybeFloat::Some(rows.clone()),
            modifiers.clone(),
            options.clone(),
            ALL,
        );
        let saved = tiled::Saved {
            context,
            logsumexp,
            context_gradient: gradient,
            logsumexp_gradient: Some(rows),
        };
        let wanted = Wanted {
            bias: modified,
            sink: modified,
            ..ALL
        };
        let tiled = tiled::backward::<Flex>(q, k, v, saved, modifiers, &options, wanted);
        for (name, found, tiled) in [
            ("query", found.query, tiled.query),
            ("key", found.key, tiled.key),
            ("value", found.value, tiled.value),
            ("bias", found.bias, tiled.bias),
            ("sink", found.sink, tiled.sink),
        ] {
            match (found.into_option(), tiled.into_option()) {
                (Some(found), Some(tiled)) => {
                    data(found).assert_approx_eq::<f32>(&data(tiled), Tolerance::absolute(2e-4))
                }
                (None, None) => assert!(!modified, "{name} is missing from both"),
                (found, _) => panic!("{name}: only one has it, the kernels: {}", found.is_some()),
            }
        }
    }
}

#[test]
fn plain_attention_agrees() {
    agree(|_| plain(), false);
}

#[test]
fn softcap_mask_bias_and_sink_agree() {
    let capped = |_| AttentionOptions {
        softcap: Some(1.5),
        ..plain()
    };
    agree(capped, true);
}

#[test]
fn windows_lengths_and_alibi_agree() {
    let windowed = |[batch, heads, _, query_len, key_len, ..]: [usize; 7]| {
        let lengths: Vec<usize> = (0..batch).map(|sample| key_len - 3 * sample).collect();
        let queries: Vec<usize> = (0..batch).map(|sample| query_len - 2 * sample).collect();
        let rows = Visibility {
            batch,
            query_len,
            key_len,
            causal: true,
            alignment: Alignment::BottomRight,
            window: Some(Window::before(29)),
            key_lengths: Some(&lengths),
            query_lengths: Some(&queries),
            positions: true,
            ..Visibility::default()
        };
        AttentionOptions {
            rows: rows.rows().expect("valid lengths").map(Arc::new),
            alibi: Some(alibi_slopes(heads).into()),
            ..plain()
        }
    };
    agree(windowed, true);
}

#[test]
fn dropped_weights_agree_bit_by_bit() {
    let dropping = |_| AttentionOptions {
        dropout: Some(DropoutOptions {
            probability: 0.3,
            seed: [123_456_789, 987_654_321],
        }),
        ..plain()
    };
    // One weight dropped on one side alone would be far outside of the tolerance.
    agree(dropping, false);
}
