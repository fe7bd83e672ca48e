//! Clipping to a global norm.

use burn::module::{Module, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Tensor, TensorData};
use gradnorm::clip_global_norm;

#[derive(Module, Debug)]
struct Pair {
    first: Param<Tensor<1>>,
    second: Param<Tensor<2>>,
}

fn pair(dtype: DType) -> Pair {
    let options = (&Device::default(), dtype);
    Pair {
        first: Param::initialized(ParamId::new(), Tensor::ones([1], options)),
        second: Param::initialized(ParamId::new(), Tensor::ones([1, 1], options)),
    }
}

fn grads(pair: &Pair, dtype: DType, first: f64, second: f64) -> GradientsParams {
    let mut grads = GradientsParams::new();
    let options = (&Device::default(), dtype);
    let first = TensorData::new(vec![first], [1]);
    let second = TensorData::new(vec![second], [1, 1]);
    grads.register(pair.first.id, Tensor::<1>::from_data(first, options));
    grads.register(pair.second.id, Tensor::<2>::from_data(second, options));
    grads
}

fn values(pair: &Pair, grads: &GradientsParams) -> [f64; 2] {
    let first = grads.get::<1>(pair.first.id).unwrap().into_data();
    let second = grads.get::<2>(pair.second.id).unwrap().into_data();
    [
        first.iter::<f64>().next().unwrap(),
        second.iter::<f64>().next().unwrap(),
    ]
}

#[test]
fn three_and_four_clipped_to_one_are_0_6_and_0_8_and_the_norm_before_is_five() {
    let pair = pair(DType::F32);
    let mut grads = grads(&pair, DType::F32, 3.0, 4.0);

    let clipped = clip_global_norm(&pair, &mut grads, 1.0).unwrap();

    assert_eq!(clipped.norm(), 5.0);
    assert_eq!(clipped.norms.get("first"), Some(3.0));
    assert_eq!(clipped.factor, 0.2);
    assert_eq!(
        values(&pair, &grads),
        [f64::from(0.6f32), f64::from(0.8f32)]
    );
}

#[test]
fn gradients_within_the_bound_do_not_change_by_a_bit() {
    let pair = pair(DType::F32);
    for max_norm in [5.0, 5.1, f64::INFINITY] {
        let mut grads = grads(&pair, DType::F32, 3.0, 4.0);
        let clipped = clip_global_norm(&pair, &mut grads, max_norm).unwrap();
        assert_eq!(clipped.norm(), 5.0);
        assert_eq!(clipped.factor, 1.0);
        assert_eq!(values(&pair, &grads), [3.0, 4.0]);
    }

    let (first, second) = (f64::from(0.1f32), f64::from(0.7f32));
    let mut grads = grads(&pair, DType::F32, first, second);
    clip_global_norm(&pair, &mut grads, 1.0).unwrap();
    assert_eq!(values(&pair, &grads), [first, second]);
}

#[test]
fn half_precision_gradients_are_scaled_in_a_wider_type_and_keep_their_own() {
    let pair = pair(DType::F16);
    let mut grads = grads(&pair, DType::F16, 30_000.0, 40_000.0);

    // The factor, 2e-8, is below the smallest f16.
    let clipped = clip_global_norm(&pair, &mut grads, 1e-3).unwrap();

    assert!((clipped.norm() - 50_000.0).abs() < 1.0);
    let dtype = grads.get::<1>(pair.first.id).unwrap().dtype();
    assert_eq!(dtype, DType::F16);
    let [first, second] = values(&pair, &grads);
    assert!((first / 6e-4 - 1.0).abs() < 1e-3, "{first}");
    assert!((second / 8e-4 - 1.0).abs() < 1e-3, "{second}");
}

#[test]
fn huge_gradients_are_brought_to_the_bound_and_not_to_zero() {
    let pair = pair(DType::F32);
    let mut grads = grads(&pair, DType::F32, 3e38, 3e38);
    clip_global_norm(&pair, &mut grads, 1e-3).unwrap();
    let [first, second] = values(&pair, &grads);
    assert!((first.hypot(second) / 1e-3 - 1.0).abs() < 1e-6);
}

#[test]
fn gradients_that_are_not_finite_are_refused_by_name_and_left_alone() {
    let pair = pair(DType::F32);
    for (bad, name) in [(f64::NAN, "NaN"), (f64::INFINITY, "inf")] {
        let mut grads = grads(&pair, DType::F32, 3.0, bad);
        let error = clip_global_norm(&pair, &mut grads, 1.0).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "gradients cannot be clipped: gradient norm {name} of 2 parameters, \
                 largest first 3, not finite: second {name}"
            )
        );
        let [first, second] = values(&pair, &grads);
        assert_eq!(first, 3.0);
        assert_eq!(second.to_bits(), bad.to_bits());
    }
}

#[test]
fn a_tied_parameter_is_scaled_once() {
    #[derive(Module, Debug)]
    struct Tied {
        input: Pair,
        output: Pair,
    }
    let shared = pair(DType::F32);
    let mut grads = grads(&shared, DType::F32, 3.0, 4.0);
    let tied = Tied {
        input: shared.clone(),
        output: shared.clone(),
    };
    let clipped = clip_global_norm(&tied, &mut grads, 2.5).unwrap();
    assert_eq!(clipped.norm(), 5.0);
    assert_eq!(values(&shared, &grads), [1.5, 2.0]);
}

#[test]
fn gradients_of_other_modules_are_neither_counted_nor_scaled() {
    let (model, other) = (pair(DType::F32), pair(DType::F32));
    let mut grads = grads(&model, DType::F32, 3.0, 4.0);
    let apart = Tensor::<1>::from_floats([100.0], &Device::default());
    grads.register(other.first.id, apart);
    let clipped = clip_global_norm(&model, &mut grads, 2.5).unwrap();
    assert_eq!(clipped.norm(), 5.0);
    assert_eq!(
        grads.get::<1>(other.first.id).unwrap().into_scalar::<f32>(),
        100.0
    );
}

#[test]
fn no_gradients_are_no_reason_to_fail() {
    let pair = pair(DType::F32);
    let clipped = clip_global_norm(&pair, &mut GradientsParams::new(), 1.0).unwrap();
    assert_eq!(clipped.norm(), 0.0);
    assert_eq!(clipped.factor, 1.0);
}

#[test]
#[should_panic(expected = "max_norm must be 0 or more, but it is NaN")]
fn a_bound_that_is_no_number_is_refused() {
    let pair = pair(DType::F32);
    let _ = clip_global_norm(&pair, &mut GradientsParams::new(), f64::NAN);
}
