//! Norms of gradients that are known because the loss is linear: the gradient of
//! `sum(param * constant)` is the constant.

use burn::module::{Module, Param, ParamId};
use burn::nn::{BatchNormConfig, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use gradnorm::GradientNorms;

#[derive(Module, Debug)]
struct Attention {
    query: Projection,
    key: Projection,
}

#[derive(Module, Debug)]
struct Projection {
    weight: Param<Tensor<2>>,
    bias: Option<Param<Tensor<1>>>,
}

#[derive(Module, Debug)]
struct Model {
    layers: Vec<Attention>,
    table: Param<Tensor<1, Int>>,
}

fn device() -> Device {
    Device::default().autodiff()
}

fn ones<const D: usize>(shape: [usize; D], dtype: DType) -> Param<Tensor<D>> {
    let value = Tensor::ones(shape, (&device(), dtype)).require_grad();
    Param::initialized(ParamId::new(), value)
}

fn model(dtype: DType) -> Model {
    let projection = || Projection {
        weight: ones([1, 2], dtype),
        bias: Some(ones([1], dtype)),
    };
    Model {
        layers: vec![Attention {
            query: projection(),
            key: projection(),
        }],
        table: Param::initialized(ParamId::new(), Tensor::from_ints([7], &device())),
    }
}

/// A loss whose gradient for the parameter is `grad`.
fn pull<const D: usize>(param: &Param<Tensor<D>>, grad: &[f64]) -> Tensor<1> {
    let value = param.val();
    let data = TensorData::new(grad.to_vec(), value.shape());
    let grad = Tensor::from_data(data, (&value.device(), value.dtype()));
    (value * grad).sum()
}

/// Query weight [2, 3], query bias 6, key weight [4, 4], no gradient for the key's bias.
fn loss(model: &Model) -> Tensor<1> {
    let Attention { query, key } = &model.layers[0];
    pull(&query.weight, &[2.0, 3.0])
        + pull(query.bias.as_ref().unwrap(), &[6.0])
        + pull(&key.weight, &[4.0, 4.0])
}

#[test]
fn norms_are_exact_for_whole_numbers() {
    let model = model(DType::F32);
    let norms = GradientNorms::of(&model, &loss(&model).backward());

    // 2, 3 and 6 make 7; with 4 and 4 added, 9.
    assert_eq!(norms.get("layers.0.query.weight"), Some(13f64.sqrt()));
    assert_eq!(norms.get("layers.0.query.bias"), Some(6.0));
    assert_eq!(norms.get("layers.0.key.weight"), Some(32f64.sqrt()));
    assert!((norms.global() - 9.0).abs() < 1e-14);
}

#[test]
fn parameters_without_a_gradient_are_listed_and_not_zero() {
    let model = model(DType::F32);
    let norms = GradientNorms::of(&model, &loss(&model).backward());

    assert_eq!(norms.missing(), ["layers.0.key.bias"]);
    assert_eq!(norms.get("layers.0.key.bias"), None);
    assert_eq!(norms.len(), 3);
}

#[test]
fn parameters_that_require_no_gradient_are_frozen_and_not_missing() {
    let device = device();
    let norm = BatchNormConfig::new(2).init(&device);
    let x = Tensor::<3>::ones([2, 2, 3], &device);
    let grads = norm.forward(x).sum().backward();
    let norms = GradientNorms::of(&norm, &grads);

    assert_eq!(norms.missing(), [""; 0]);
    assert_eq!(norms.frozen(), ["running_mean", "running_var"]);
    assert_eq!(norms.len(), 2);

    let linear = LinearConfig::new(2, 2).init(&device).no_grad();
    let norms = GradientNorms::of(&linear, &grads);
    assert_eq!(norms.frozen(), ["weight", "bias"]);
    assert!(norms.is_empty());
    assert_eq!(norms.global(), 0.0);
}

#[test]
fn groups_add_up_squares_and_a_group_of_nothing_is_none() {
    let model = model(DType::F32);
    let norms = GradientNorms::of(&model, &loss(&model).backward());

    let query = norms.group(|path| path.contains(".query.")).unwrap();
    assert!((query - 7.0).abs() < 1e-14);
    assert_eq!(norms.matching("**.query.*"), Some(query));
    assert_eq!(norms.matching("**.value.*"), None);
    // The key's bias is there but has no gradient.
    assert_eq!(norms.matching("**.key.bias"), None);

    let groups = norms.groups([
        ("query", "**.query.*"),
        ("bias", "**.bias"),
        ("value", "**.value.*"),
    ]);
    assert_eq!(groups["query"], Some(query));
    assert_eq!(groups["bias"], Some(6.0));
    assert_eq!(groups["value"], None);
}

#[test]
fn gradients_for_the_optimizer_give_the_same_norms_and_stay_there() {
    let model = model(DType::F32);
    let of = GradientNorms::of(&model, &loss(&model).backward());
    let grads = GradientsParams::from_grads(loss(&model).backward(), &model);
    let of_params = GradientNorms::of_params(&model, &grads);

    assert!(of.iter().eq(of_params.iter()));
    assert_eq!(of.missing(), of_params.missing());
    assert_eq!(of.frozen(), of_params.frozen());
    assert_eq!(grads.len(), 3);
}

#[test]
fn half_precision_gradients_do_not_overflow_when_squared() {
    for dtype in [DType::F16, DType::BF16] {
        let weight = ones([1, 2], dtype);
        let projection = Projection { weight, bias: None };
        // 30000 squared is far beyond the largest f16, 65504.
        let grads = pull(&projection.weight, &[30_000.0, 40_000.0]).backward();
        let grad = projection.weight.val().grad(&grads).unwrap();
        assert_eq!(grad.dtype(), dtype);
        let stored: Vec<f64> = grad.into_data().iter::<f64>().collect();
        let expected = stored[0].hypot(stored[1]);

        let norms = GradientNorms::of(&projection, &grads);

        assert!((norms.global() / expected - 1.0).abs() < 1e-6);
        assert!((norms.global() / 5e4 - 1.0).abs() < 1e-2);
    }
}

#[test]
fn huge_and_tiny_gradients_have_a_norm() {
    for size in [1e25, 1e-25, 1e38, 1e-37] {
        let weight = ones([1, 2], DType::F32);
        let projection = Projection { weight, bias: None };
        let grads = pull(&projection.weight, &[3.0 * size, 4.0 * size / 2.0]).backward();
        let norms = GradientNorms::of(&projection, &grads);
        let expected = 13f64.sqrt() * size;
        assert!(
            (norms.global() / expected - 1.0).abs() < 1e-6,
            "{} for {size:e}",
            norms.global()
        );
    }
}

#[test]
fn nan_and_infinity_are_kept_and_found() {
    let model = model(DType::F32);
    let Attention { query, key } = &model.layers[0];
    let loss = pull(&query.weight, &[f64::NAN, 1.0])
        + pull(query.bias.as_ref().unwrap(), &[6.0])
        + pull(&key.weight, &[f64::NEG_INFINITY, 1.0]);
    let norms = GradientNorms::of(&model, &loss.backward());

    assert!(norms.get("layers.0.query.weight").unwrap().is_nan());
    assert_eq!(norms.get("layers.0.key.weight"), Some(f64::INFINITY));
    assert_eq!(norms.get("layers.0.query.bias"), Some(6.0));
    assert!(norms.global().is_nan());
    assert_eq!(norms.matching("**.key.*"), Some(f64::INFINITY));
    let found: Vec<&str> = norms.non_finite().map(|(path, _)| path).collect();
    assert_eq!(found, ["layers.0.query.weight", "layers.0.key.weight"]);
}

#[test]
fn a_gradient_without_elements_has_norm_zero() {
    let projection = Projection {
        weight: ones([0, 2], DType::F32),
        bias: Some(ones([1], DType::F32)),
    };
    let mut grads = GradientsParams::new();
    grads.register(projection.weight.id, projection.weight.val().inner());
    grads.register(
        projection.bias.as_ref().unwrap().id,
        Tensor::<1>::from_floats([3.0], &device()),
    );
    let norms = GradientNorms::of_params(&projection, &grads);

    assert_eq!(norms.get("weight"), Some(0.0));
    assert_eq!(norms.get("bias"), Some(3.0));
    assert_eq!(norms.global(), 3.0);
}

#[test]
fn tied_weights_are_listed_at_each_path_and_counted_once() {
    let shared = Projection {
        weight: ones([1, 2], DType::F32),
        bias: None,
    };
    let tied = Attention {
        query: shared.clone(),
        key: shared,
    };
    let loss = pull(&tied.query.weight, &[1.0, 1.0]) + pull(&tied.key.weight, &[2.0, 3.0]);
    let norms = GradientNorms::of(&tied, &loss.backward());

    assert_eq!(norms.get("query.weight"), Some(5.0));
    assert_eq!(norms.get("key.weight"), Some(5.0));
    assert_eq!(norms.global(), 5.0);
    assert_eq!(norms.matching("key.*"), Some(5.0));
}

#[test]
fn measuring_leaves_the_gradients_where_they_are() {
    let model = model(DType::F32);
    let grads = loss(&model).backward();
    let first = GradientNorms::of(&model, &grads);
    let second = GradientNorms::of(&model, &grads);
    assert!(first.iter().eq(second.iter()));
}

#[test]
fn the_display_is_one_line_that_names_what_is_wrong() {
    let model = model(DType::F32);
    let Attention { query, .. } = &model.layers[0];
    let bias = query.bias.as_ref().unwrap();

    let norms = GradientNorms::of(
        &model,
        &(pull(&query.weight, &[0.0, 3.0]) + pull(bias, &[4.0])).backward(),
    );
    assert_eq!(
        norms.to_string(),
        "gradient norm 5 of 2 parameters, largest layers.0.query.bias 4, \
         without gradient: layers.0.key.weight, layers.0.key.bias"
    );

    let norms = GradientNorms::of(
        &query.clone(),
        &(pull(&query.weight, &[f64::INFINITY, 3.0]) + pull(bias, &[4.0])).backward(),
    );
    assert_eq!(
        norms.to_string(),
        "gradient norm inf of 2 parameters, largest bias 4, not finite: weight inf"
    );
}

#[test]
fn norms_serialize_as_a_map_with_null_for_missing_gradients() {
    let model = model(DType::F32);
    let Attention { query, .. } = &model.layers[0];
    let norms = GradientNorms::of(&model, &pull(&query.weight, &[3.0, 4.0]).backward());
    assert_eq!(
        serde_json::to_value(&norms).unwrap(),
        serde_json::json!({
            "layers.0.query.weight": 5.0,
            "layers.0.query.bias": null,
            "layers.0.key.weight": null,
            "layers.0.key.bias": null,
        })
    );
}
