//! The layers against the reference.

use burn::tensor::{DType, Device};
use tests::reference::{Problem, Upstream, backward, forward};
use tests::{Tolerance, assert_bits, attend, attend_and_differentiate, compare};

/// What outputs may be off by for inputs of unit variance, and what gradients.
const OUTPUT: f64 = 2e-6;
const GRADIENT: f64 = 2e-5;
/// How much less that is in f64: its precision over that of f32, with some room for exponentials.
const F64_OVER_F32: f64 = 1e-8;
/// How much more that is in f16: the ratio of the epsilons.
const F16_OVER_F32: f64 = 8192.0;

/// The largest score that inputs of unit variance have under the usual scale, and so the one that
/// the tolerances hold for.
const USUAL_SCORE: f64 = 4.0;

/// What is wrong with a problem on a device, or nothing.
pub fn attention(problem: &Problem, upstream: &Upstream, dtype: DType, device: &Device) -> String {
    let sizes = problem.sizes;
    let expected = forward(problem);
    let gradients = backward(problem, upstream);
    let found = attend(problem, dtype, device);
    let (tracked, found_gradients) = attend_and_differentiate(problem, upstream, dtype, device);
    assert_bits("context with autodiff", &tracked.context, &found.context);
    assert_bits("weights with autodiff", &tracked.weights, &found.weights);

    // A score is rounded in proportion to its magnitude, and its error is what reaches the rest.
    let mut larger = (expected.largest_score / USUAL_SCORE).max(1.0);
    larger *= match dtype {
        DType::F64 => F64_OVER_F32,
        DType::F16 => F16_OVER_F32,
        _ => 1.0,
    };
    let mut wrong = Vec::new();
    let mut check = |name: &str, found: &[f64], expected: &[f64], shape: &[usize], bound: f64| {
        let tolerance = Tolerance::new(bound * larger, bound * larger);
        if let Err(difference) = compare(found, expected, shape, tolerance) {
            wrong.push(format!("{name}: {difference}"));
        }
    };
    let context = sizes.context();
    check(
        "context",
        &found.context,
        &expected.context,
        &context,
        OUTPUT,
    );
    let scores = sizes.scores();
    check(
        "weights",
        &found.weights,
        &expected.weights,
        &scores,
        OUTPUT,
    );
    let rows = sizes.rows();
    check(
        "logsumexp",
        &found.logsumexp,
        &expected.logsumexp,
        &rows,
        OUTPUT,
    );

    let mut check = |name, found: &[f64], expected: &[f64], shape: &[usize]| {
        check(name, found, expected, shape, GRADIENT);
    };
    check(
        "gradient of query",
        &found_gradients.query,
        &gradients.query,
        &sizes.query(),
    );
    check(
        "gradient of key",
        &found_gradients.key,
        &gradients.key,
        &sizes.key(),
    );
    check(
        "gradient of value",
        &found_gradients.value,
        &gradients.value,
        &sizes.value(),
    );
    if let (Some(found), Some(expected), Some(bias)) =
        (&found_gradients.bias, &gradients.bias, &problem.bias)
    {
        check("gradient of bias", found, expected, &bias.shape);
    }
    if let (Some(found), Some(expected)) = (&found_gradients.sink, &gradients.sink) {
        check("gradient of sink", found, expected, &[sizes.heads]);
    }
    if let (Some(found), Some(expected)) =
        (found_gradients.learned_factor, gradients.learned_factor)
    {
        check("gradient of scale", &[found], &[expected], &[1]);
    }
    match wrong.is_empty() {
        true => String::new(),
        false => format!("{}\n{}", wrong.join("\n"), summary(problem)),
    }
}

/// The options of a problem without its numbers.
fn summary(problem: &Problem) -> String {
    let shape = |shape: [usize; 4]| format!("{shape:?}");
    format!(
        "  {:?} {} causal {} {} window {:?} softcap {:?} sink {:?} alibi {} bias {:?} mask {:?} \
         keys {:?} queries {:?} segments {:?}",
        problem.sizes,
        problem.scale,
        problem.causal,
        problem.alignment,
        problem.window,
        problem.softcap,
        problem.sink,
        problem.alibi,
        problem.bias.as_ref().map(|bias| shape(bias.shape)),
        problem.blocked.as_ref().map(|mask| shape(mask.shape)),
        problem.key_lengths,
        problem.query_lengths,
        problem.segments,
    )
}
