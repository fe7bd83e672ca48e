//! The operation on Burn's own tensors, whatever backend their device picks.

use burn::backend::ops::FloatTensorOps;
use burn::backend::{Dispatch, DispatchDevice};
use burn::tensor::{Bool, Tensor};

use super::tiles::{Tiles, cast, lowest};
use super::{
    AttentionBackend, AttentionOptions, MaybeBool, MaybeFloat, Modifiers, statistics, tiled,
};

/// What the operation gives.
pub(crate) struct Attended {
    /// `[batch, heads, query_len, d_v]`.
    pub context: Tensor<4>,
    /// `[batch, heads, query_len]`.
    pub logsumexp: Tensor<3>,
}

/// The tensors of one call, checked by the caller.
#[derive(Clone)]
pub(crate) struct Call {
    pub query: Tensor<4>,
    pub key: Tensor<4>,
    pub value: Tensor<4>,
    /// True where blocked.
    pub mask: Option<Tensor<4, Bool>>,
    pub bias: Option<Tensor<4>>,
    pub sink: Option<Tensor<1>>,
}

pub(crate) fn attend(call: Call, options: AttentionOptions) -> Attended {
    let device = call.query.device();
    let listed = is_listed(device.clone().inner().as_dispatch());
    let probed = options.probe.clone().filter(|_| !device.is_autodiff());
    let measured = probed.map(|probe| (probe, call.clone()));

    let (query, key, value) = (
        call.query.into_dispatch(),
        call.key.into_dispatch(),
        call.value.into_dispatch(),
    );
    let modifiers = modifiers(call.mask, call.bias, call.sink);
    let (context, logsumexp) = match listed {
        true => Dispatch::attention_forward(query, key, value, modifiers, options.clone()),
        // The default body on the dispatching backend: any backend, its gradient by composition.
        false => tiled::forward::<Dispatch>(query, key, value, modifiers, &options),
    };
    if let Some((probe, call)) = measured {
        let rows = statistics::rows::<Dispatch>(
            call.query.into_dispatch(),
            call.key.into_dispatch(),
            call.value.into_dispatch(),
            self::modifiers(call.mask, call.bias, call.sink),
            &options,
            logsumexp.clone(),
            None,
        );
        probe.record::<Dispatch>(rows);
    }
    Attended {
        context: Tensor::from_dispatch(context),
        logsumexp: Tensor::from_dispatch(logsumexp),
    }
}

fn modifiers(
    mask: Option<Tensor<4, Bool>>,
    bias: Option<Tensor<4>>,
    sink: Option<Tensor<1>>,
) -> Modifiers<Dispatch> {
    Modifiers {
        mask: MaybeBool::from_option(mask.map(Tensor::into_dispatch)),
        bias: MaybeFloat::from_option(bias.map(Tensor::into_dispatch)),
        sink: MaybeFloat::from_option(sink.map(Tensor::into_dispatch)),
    }
}

/// Whether this crate was built with an implementation for the device's backend.
pub(super) fn is_listed(device: &DispatchDevice) -> bool {
    match device {
        #[cfg(feature = "flex")]
        DispatchDevice::Flex(_) => true,
        #[cfg(feature = "ndarray")]
        DispatchDevice::NdArray(_) => true,
        #[cfg(feature = "cube")]
        DispatchDevice::Cube(_) => true,
        #[allow(unreachable_patterns)] // All variants are listed when all features are on.
        _ => false,
    }
}

/// The weights `[batch, heads, query_len, key_len]` before dropout, all at once, in the element
/// type of the query.
///
/// They are normalised by the sum of their own scores: another backend product's rounding would
/// show in a saturated row.
pub(crate) fn weights(call: Call, options: &AttentionOptions) -> Tensor<4> {
    let dtype = call.query.dtype();
    let [batch, heads, queries, _] = call.query.dims();
    let keys = call.key.dims()[2];
    if batch * heads * queries * keys == 0 {
        return Tensor::zeros([batch, heads, queries, keys], (&call.query.device(), dtype));
    }
    let (tiles, queries, keys) = tiles(call, options).whole();
    let sink = tiles.sink.clone().map(Tensor::<4>::from_dispatch);
    let scores = Tensor::<4>::from_dispatch(tiles.scores(queries, keys).scores);
    let lowest = lowest(tiles.dtype());
    // A constant: the weights do not depend on it. Finite also where a row sees nothing.
    let mut highest = scores.clone().detach().max_dim(3).clamp_min(lowest);
    if let Some(sink) = &sink {
        let sink = sink.clone().detach().expand(highest.dims());
        highest = Tensor::cat(vec![highest, sink], 3).max_dim(3);
    }
    let weights = (scores - highest.clone()).exp();
    let mut sum = weights.clone().sum_dim(3);
    if let Some(sink) = sink {
        sum = sum + (sink - highest).exp();
    }
    // Zero where a row sees nothing, at least 1 elsewhere.
    let nothing = sum.clone().equal_elem(0);
    (weights / sum.mask_fill(nothing, 1)).cast(dtype)
}

/// How far scores have come on their way to the softmax.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Scaled products of query and key.
    Scaled,
    /// After the softcap, where there is one.
    Capped,
    /// After bias and masks: minus infinity where blocked.
    Masked,
}

/// The scores `[batch, heads, query_len, key_len]`, all at once, in the element type of the query.
pub(crate) fn scores(call: Call, options: &AttentionOptions, stage: Stage) -> Tensor<4> {
    let dtype = call.query.dtype();
    let (tiles, queries, keys) = tiles(call, options).whole();
    let scores = match stage {
        Stage::Masked => tiles.scores(queries, keys).scores,
        Stage::Scaled => tiles.products(queries, keys),
        Stage::Capped => {
            let products = tiles.products(queries, keys);
            match options.softcap {
                None => products,
                Some(cap) => {
                    let tanh = Dispatch::float_mul_scalar(products, cap.recip().into());
                    Dispatch::float_mul_scalar(Dispatch::float_tanh(tanh), cap.into())
                }
            }
        }
    };
    Tensor::from_dispatch(cast::<Dispatch>(scores, dtype.into()))
}

fn tiles(call: Call, options: &AttentionOptions) -> Tiles<'_, Dispatch> {
    Tiles::new(
        call.query.into_dispatch(),
        call.key.into_dispatch(),
        call.value.into_dispatch(),
        modifiers(call.mask, call.bias, call.sink),
        options,
    )
}
