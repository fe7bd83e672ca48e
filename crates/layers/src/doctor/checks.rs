//! One call of one layer, held against each fault.

use burn::tensor::DType;

use super::fault::{Fault, short};
use crate::probe::{HeadStatistics, LayerStatistics};
use crate::scale::Scale;

/// A number past its threshold.
pub(super) struct Sign {
    pub fault: Fault,
    pub heads: Vec<usize>,
    pub value: f64,
    pub threshold: f64,
    pub measured: String,
}

/// Scores are told apart by their factor only from this many on.
const SCORES_TO_TELL: usize = 16;
/// How far the factor may be from the one suspected, where the layer itself applies it.
const NEAR_OWN: f64 = 1.05;
/// The same where it is read from the sizes of queries and keys.
const NEAR_READ: f64 = 1.3;
/// A smaller quotient of the sizes of queries and keys is taken for a factor applied outside.
const SCALED_OUTSIDE: f64 = 0.4;
/// Scores that deviate by less saturate nothing, whatever their factor.
const HARMFUL: f64 = 0.3;
/// Scores that deviate by more do not give almost even weights, whatever their factor.
const EFFECTIVE: f64 = 1.0;
/// A bias this low hides a key.
const HIDES: f64 = -1e3;
/// A quarter of the largest f16: two more doublings are too many.
const NEAR_OVERFLOW: f64 = 65504.0 / 4.0;
/// From this share of a head's queries on, the head is what they are.
const MOST: f64 = 0.5;
/// The same for uniform queries, of which a healthy head has some.
const ALMOST_ALL: f64 = 0.95;

/// Everything that looks wrong in one call.
pub(super) fn signs(layer: &LayerStatistics) -> Vec<Sign> {
    let mut signs = Vec::new();
    signs.extend(non_finite(layer));
    signs.extend(finite_mask(layer));
    signs.extend(scale(layer));
    signs.extend(half_overflow(layer));
    signs.extend(heads(
        layer,
        Fault::Saturated,
        MOST,
        |head| head.one_hot,
        "of the queries have a weight above 0.99",
    ));
    signs.extend(heads(
        layer,
        Fault::Dead,
        MOST,
        |head| head.dead.unwrap_or(0.0),
        "of the queries pass less than 1 % of the usual gradient on to their scores",
    ));
    signs.extend(heads(
        layer,
        Fault::Uniform,
        ALMOST_ALL,
        |head| head.uniform,
        "of the queries have weights within 1 % of 1/keys",
    ));
    signs
}

/// The heads whose number is past the threshold, as one sign with the largest number.
fn past(
    layer: &LayerStatistics,
    fault: Fault,
    threshold: f64,
    number: impl Fn(&HeadStatistics) -> f64,
    measured: impl Fn(f64) -> String,
) -> Option<Sign> {
    let (mut heads, mut value) = (Vec::new(), threshold);
    for head in &layer.heads {
        let number = number(head);
        if number > threshold {
            heads.push(head.head);
            value = value.max(number);
        }
    }
    (!heads.is_empty()).then(|| Sign {
        fault,
        heads,
        value,
        threshold,
        measured: measured(value),
    })
}

/// The same of a share of the queries.
fn heads(
    layer: &LayerStatistics,
    fault: Fault,
    threshold: f64,
    share: impl Fn(&HeadStatistics) -> f64,
    measured: &str,
) -> Option<Sign> {
    past(layer, fault, threshold, share, |share| {
        format!("{} % {measured}", short(share * 100.0))
    })
}

fn non_finite(layer: &LayerStatistics) -> Option<Sign> {
    heads(
        layer,
        Fault::NonFinite,
        0.0,
        |head| head.non_finite,
        "of the queries have a score, a weight or a gradient that is NaN or infinite",
    )
}

fn finite_mask(layer: &LayerStatistics) -> Option<Sign> {
    let lowest = |head: &HeadStatistics| head.lowest_bias;
    let value = layer.heads.iter().map(lowest).fold(0.0, f64::min);
    let half = matches!(layer.dtype, DType::F16 | DType::BF16);
    let filled = layer.heads.iter().any(|head| head.filled > 0.0);
    (value <= HIDES && (half || filled)).then(|| Sign {
        fault: Fault::FiniteMask,
        heads: Vec::new(),
        value,
        threshold: HIDES,
        measured: match filled {
            true => format!(
                "keys are hidden by a bias of {}, and some queries see hidden keys alone",
                short(value)
            ),
            false => format!(
                "keys are hidden by a bias of {} in half precision",
                short(value)
            ),
        },
    })
}

fn half_overflow(layer: &LayerStatistics) -> Option<Sign> {
    if layer.dtype != DType::F16 {
        return None;
    }
    // Other programs multiply before they scale.
    let factor = layer.factor.abs().min(1.0);
    past(
        layer,
        Fault::HalfOverflow,
        NEAR_OVERFLOW,
        |head| head.max_product / factor,
        |largest| format!("a product of query and key is {}", short(largest)),
    )
}

/// The layer's heads taken together.
struct Sizes {
    /// The deviation of a query's scaled products.
    product_std: f64,
    query: f64,
    key: f64,
    key_spread: f64,
    value: f64,
}

impl Sizes {
    /// Root mean squares over the heads, which have about as many rows each.
    fn of(heads: &[HeadStatistics]) -> Self {
        let rms = |number: &dyn Fn(&HeadStatistics) -> f64| {
            let squares = heads.iter().map(|head| number(head).powi(2));
            (squares.sum::<f64>() / heads.len() as f64).sqrt()
        };
        Self {
            product_std: rms(&|head| head.product_std),
            query: rms(&|head| head.query_rms),
            key: rms(&|head| head.key_rms),
            key_spread: rms(&|head| head.key_spread),
            value: rms(&|head| head.value_rms),
        }
    }
}

/// Whether the products' factor is one of those that are applied by mistake.
///
/// Products of independent queries and keys deviate, times `1 / sqrt(d_k)`, by the product of
/// their root mean squares. The layer knows the factor that it applies. One that was applied
/// before it shows as queries smaller than keys, or keys smaller than queries, by as much: both
/// come out of alike projections of alike inputs. Where those differ, values tell: they come out of
/// the inputs of the keys. So "what queries and keys imply" is the deviation that the larger of the
/// two would give with the other unscaled.
fn scale(layer: &LayerStatistics) -> Option<Sign> {
    let sizes = Sizes::of(&layer.heads);
    let scores: usize = layer.heads.iter().map(|head| head.scores).sum();
    let root = (layer.d_k as f64).sqrt();
    let larger = sizes.query.max(sizes.key);
    // The part of the keys that tells them apart: what they have in common moves no weight.
    let implied = larger.powi(2) * (sizes.key_spread / sizes.key);
    let times = sizes.product_std / implied;
    if scores < SCORES_TO_TELL || !times.is_finite() {
        return None;
    }

    let quotient = sizes.query.min(sizes.key) / larger;
    let small_memory =
        sizes.key < sizes.query && ratio(sizes.value, sizes.key) < ratio(sizes.value, sizes.query);
    let outside = match layer.scale {
        // The layer's own factor is counted to the queries.
        Scale::Learned { .. } => quotient,
        // Its part that differs from query to query is.
        Scale::LogLength { .. } => 1.0,
        _ if quotient < SCALED_OUTSIDE && !small_memory => quotient,
        _ => 1.0,
    };
    let near = if outside == 1.0 { NEAR_OWN } else { NEAR_READ };
    // 1 where the factor is 1 / sqrt(d_k).
    let applied = layer.factor.abs() * root * outside;
    // Values come out of a projection like the others: queries and keys that are both smaller,
    // by sqrt(d_k) together, were both scaled before.
    let both_scaled = ratio(sizes.query * sizes.key * root, sizes.value.powi(2)) <= NEAR_READ;

    let deviation = sizes.product_std;
    let wrong = (layer.d_k as f64 / layer.d_model as f64).sqrt();
    let weak = |threshold: f64| deviation <= EFFECTIVE && times <= threshold;
    let suspects = [
        (
            Fault::ScaleMissing,
            root,
            root / 2.0,
            deviation >= HARMFUL && times >= root / 2.0 && !both_scaled,
        ),
        (
            Fault::ScaleTwice,
            root.recip(),
            2.0 / root,
            weak(2.0 / root),
        ),
        (
            Fault::ScaleWrongDimension,
            wrong,
            1.4 * wrong,
            weak(1.4 * wrong),
        ),
    ];
    let found: Vec<(Fault, f64, f64)> = suspects
        .into_iter()
        .filter(|(_, factor, _, shows)| {
            *shows && ratio(*factor, 1.0) > near && ratio(applied, *factor) <= near
        })
        .map(|(fault, factor, threshold, _)| (fault, threshold, ratio(applied, factor)))
        .collect();
    // With as many heads as each is wide, 1/d_k and 1/sqrt(d_model) are one number.
    let same = layer.d_model == layer.d_k * layer.d_k;
    let by_number = matches!(layer.scale, Scale::Fixed(_) | Scale::Unscaled);
    let (fault, threshold, _) = *match same {
        true if by_number => found.last()?,
        true => found.first()?,
        false => found
            .iter()
            .min_by(|one, other| one.2.total_cmp(&other.2))?,
    };
    let or = match same && fault != Fault::ScaleMissing {
        true => ", which is both 1/d_k and 1/sqrt(d_model)",
        false => "",
    };
    Some(Sign {
        fault,
        heads: Vec::new(),
        value: times,
        threshold,
        measured: format!(
            "scores deviate by {}, {} times what queries and keys imply with 1/sqrt({}); the \
             layer's factor is {}{or}",
            short(deviation),
            short(times),
            layer.d_k,
            short(layer.factor)
        ),
    })
}

/// How many times one is the other, at least 1.
fn ratio(one: f64, other: f64) -> f64 {
    let ratio = one / other;
    ratio.max(ratio.recip())
}
