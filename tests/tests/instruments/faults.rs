//! A seeded fault gives its own finding and no other.

use burn::module::{Initializer, Module};
use burn::tensor::{DType, Device, Tensor};
use layers::{
    AttentionInput, Doctor, Fault, Finding, LayerStatistics, MhaInput, MultiHeadAttentionConfig,
    Probes, Scale, ScaledDotProductAttentionConfig,
};
use tests::{Random, floats_as, on_each_backend, on_each_backend_with};

use crate::model::{Model, Plain, findings, tokens, train};
use crate::seeded;

/// The only fault that is found, in each of the layers.
#[track_caller]
fn assert_only(findings: &[Finding], fault: Fault, layers: usize, what: &str) {
    let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
    let only = findings.iter().all(|finding| finding.fault == fault);
    assert!(
        only && findings.len() == layers,
        "{what}: expected {fault} in {layers} layers, found {lines:#?}"
    );
}

/// Sizes of one head and numbers of heads.
const SIZES: [(usize, usize); 4] = [(8, 4), (16, 2), (64, 4), (256, 1)];

fn trained(scale: impl Fn(usize, usize) -> Scale, fault: Fault, sizes: &[(usize, usize)]) {
    on_each_backend(|device| {
        let device = &device.clone().autodiff();
        let _turn = seeded(device, 21);
        for &(d_k, heads) in sizes {
            let config = MultiHeadAttentionConfig::new(d_k * heads, heads)
                .with_scale(scale(d_k, heads))
                .with_causal(true);
            let model = Model::new(2, &config, device);
            let (_, steps) = train(model, [4, 12, d_k * heads], 2, 1e-4, device);
            let what = format!("d_k {d_k}, {heads} heads");
            assert_only(&findings(&steps), fault, 2, &what);
        }
    });
}

#[test]
fn a_missing_scale() {
    trained(|_, _| Scale::Unscaled, Fault::ScaleMissing, &SIZES);
}

#[test]
fn a_scale_that_is_applied_twice_by_its_number() {
    let twice = |d_k: usize, _| Scale::Fixed((d_k as f64).recip());
    trained(twice, Fault::ScaleTwice, &SIZES);
}

#[test]
fn a_scale_by_the_width_of_the_model() {
    let by_d_model = |d_k: usize, heads: usize| Scale::Fixed(((d_k * heads) as f64).sqrt().recip());
    // One head is as wide as the model.
    trained(by_d_model, Fault::ScaleWrongDimension, &SIZES[..3]);
}

#[test]
fn a_number_that_is_both_is_told_by_how_it_was_given() {
    on_each_backend(|device| {
        let _turn = seeded(device, 28);
        for (scale, fault) in [
            (Scale::InvDim, Fault::ScaleTwice),
            (Scale::Fixed(0.125), Fault::ScaleWrongDimension),
        ] {
            let attention = MultiHeadAttentionConfig::new(64, 8)
                .with_scale(scale)
                .init(device);
            let probes = Probes::of(&attention);
            probes.on();
            attention.forward(MhaInput::self_attn(tokens([4, 16, 64], device)));
            let found = findings(&[probes.take()]);
            assert_only(&found, fault, 1, "8 heads of 8");
            let both = "the layer's factor is 0.125, which is both 1/d_k and 1/sqrt(d_model)";
            assert!(found[0].measured.ends_with(both), "{}", found[0]);
        }
    });
}

#[test]
fn a_missing_scale_of_a_layer_that_starts_small() {
    on_each_backend(|device| {
        let _turn = seeded(device, 29);
        let attention = MultiHeadAttentionConfig::new(128, 2)
            .with_initializer(Initializer::Normal {
                mean: 0.0,
                std: 0.02,
            })
            .with_scale(Scale::Unscaled)
            .init(device);
        let probes = Probes::of(&attention);
        probes.on();
        attention.forward(MhaInput::self_attn(tokens([4, 16, 128], device)));
        let found = findings(&[probes.take()]);
        assert_only(&found, Fault::ScaleMissing, 1, "GPT-2's initialisation");
    });
}

#[test]
fn a_scale_by_the_width_of_a_model_whose_heads_are_not_its_parts() {
    on_each_backend(|device| {
        let _turn = seeded(device, 27);
        let attention = MultiHeadAttentionConfig::new(64, 4)
            .with_d_head(Some(32))
            .with_n_kv_heads(Some(2))
            .with_scale(Scale::Fixed(0.125))
            .init(device);
        let probes = Probes::of(&attention);
        probes.on();
        attention.forward(MhaInput::self_attn(tokens([4, 16, 64], device)));
        let found = findings(&[probes.take()]);
        assert_only(&found, Fault::ScaleWrongDimension, 1, "d_head 32");
    });
}

#[test]
fn a_scale_that_is_applied_before_the_layer_too() {
    on_each_backend(|device| {
        let _turn = seeded(device, 22);
        for (width, heads) in [(64, 2), (64, 1), (256, 2)] {
            let factor = (width as f64 / heads as f64).sqrt().recip();
            let model = Plain::new(width, &ScaledDotProductAttentionConfig::new(), device);
            let probes = Probes::of(&model);
            probes.on();
            model.forward(tokens([4, 16, width], device), heads, factor);
            let found = findings(&[probes.take()]);
            assert_only(&found, Fault::ScaleTwice, 1, &format!("width {width}"));
        }
    });
}

/// Query, key and value of unit variance, the query times a number.
fn heads(times: f64, dtype: DType, device: &Device) -> AttentionInput {
    let shape = [2, 2, 16, 32];
    let mut random = Random::new(23);
    let mut draw = |times: f64| -> Tensor<4> {
        let numbers: Vec<f64> = random
            .normals(shape.iter().product())
            .iter()
            .map(|number| number * times)
            .collect();
        floats_as(&numbers, shape, dtype, device)
    };
    AttentionInput::new(draw(times), draw(times), draw(1.0))
}

fn examined(config: &ScaledDotProductAttentionConfig, input: AttentionInput) -> Vec<Finding> {
    let attention = config.init(&Device::default());
    let probes = Probes::of(&attention);
    probes.on();
    attention.forward(input);
    findings(&[probes.take()])
}

#[test]
fn a_finite_mask_in_half_precision() {
    on_each_backend_with(DType::F16, |device| {
        // The last 6 keys of each sample are padding.
        let bias: Vec<f64> = (0..16)
            .map(|key| if key > 9 { -1e4 } else { 0.0 })
            .collect();
        let bias: Tensor<4> = floats_as(&bias, [1, 1, 1, 16], DType::F16, device);
        let input = heads(1.0, DType::F16, device).bias(bias);
        let found = examined(&ScaledDotProductAttentionConfig::new(), input);
        assert_only(&found, Fault::FiniteMask, 1, "padding");
        assert_eq!(found[0].value, -10000.0);
        assert_eq!(
            found[0].to_string(),
            "attention: finite mask: keys are hidden by a bias of -10000 in half precision \
             (threshold -1000): f16 holds numbers near -1e4 in steps of 8 only, and a query all of \
             whose keys are filled spreads its weight over them instead of giving 0; give the mask \
             as `Mask`, or minus infinity in the bias"
        );
    });
}

#[test]
fn a_causal_mask_by_a_finite_bias_in_half_precision() {
    on_each_backend_with(DType::F16, |device| {
        let bias: Vec<f64> = (0..16 * 16)
            .map(|at| if at % 16 > at / 16 { -1e4 } else { 0.0 })
            .collect();
        let bias: Tensor<4> = floats_as(&bias, [1, 1, 16, 16], DType::F16, device);
        let input = heads(1.0, DType::F16, device).bias(bias);
        let found = examined(&ScaledDotProductAttentionConfig::new(), input);
        assert_only(&found, Fault::FiniteMask, 1, "causal");
    });
}

#[test]
fn a_finite_mask_that_hides_all_keys_of_a_query() {
    on_each_backend(|device| {
        let bias: Vec<f64> = (0..2 * 16)
            .map(|at| if at < 16 { -1e9 } else { 0.0 })
            .collect();
        let bias: Tensor<4> = floats_as(&bias, [2, 1, 1, 16], DType::F32, device);
        let input = heads(1.0, DType::F32, device).bias(bias);
        let found = examined(&ScaledDotProductAttentionConfig::new(), input);
        assert_only(&found, Fault::FiniteMask, 1, "hidden");
    });
}

#[test]
fn products_near_the_largest_f16() {
    on_each_backend_with(DType::F16, |device| {
        let input = heads(40.0, DType::F16, device);
        let found = examined(&ScaledDotProductAttentionConfig::new(), input);
        assert_only(&found, Fault::HalfOverflow, 1, "large");
        assert_eq!(found[0].heads, [0, 1]);
    });
}

#[test]
fn saturated_heads() {
    on_each_backend(|device| {
        let input = heads(20.0, DType::F32, device);
        let found = examined(&ScaledDotProductAttentionConfig::new(), input);
        assert_only(&found, Fault::Saturated, 1, "large");
        assert_eq!(found[0].heads, [0, 1]);
        assert!(found[0].value > 0.9, "{}", found[0]);
    });
}

#[test]
fn a_number_that_is_none() {
    on_each_backend(|device| {
        let shape = [1, 2, 4, 8];
        let mut numbers = Random::new(24).normals(64);
        // The last number of the second head's queries.
        numbers[63] = f64::NAN;
        let query: Tensor<4> = floats_as(&numbers, shape, DType::F32, device);
        let ones = Tensor::<4>::ones(shape, device);
        let input = AttentionInput::new(query, ones.clone(), ones);
        let found = examined(&ScaledDotProductAttentionConfig::new(), input);
        assert_only(&found, Fault::NonFinite, 1, "NaN");
        assert_eq!(found[0].heads, [1]);
        assert_eq!(found[0].value, 0.25);
    });
}

#[test]
fn uniform_heads() {
    on_each_backend(|device| {
        let _turn = seeded(device, 25);
        let config = MultiHeadAttentionConfig::new(32, 4);
        let mut attention = config.init(device);
        // One head's queries are nothing.
        let weight = attention.query.weight.val();
        let zeros = Tensor::zeros([32, 8], device);
        let weight = Tensor::cat(vec![weight.clone().narrow(1, 0, 24), zeros], 1);
        attention.query.weight = burn::module::Param::from_tensor(weight);
        attention.query.bias = None;
        let probes = Probes::of(&attention);
        probes.on();
        attention.forward(MhaInput::self_attn(tokens([4, 16, 32], device)));
        let found = findings(&[probes.take()]);
        assert_only(&found, Fault::Uniform, 1, "no queries");
        assert_eq!(found[0].heads, [3]);
    });
}

#[test]
fn dead_queries() {
    on_each_backend(|device| {
        let device = &device.clone().autodiff();
        let _turn = seeded(device, 26);
        // All values are equal: whatever the weights are, the context is the same.
        let mut model = Model::new(2, &MultiHeadAttentionConfig::new(32, 2), device);
        let value = &mut model.blocks[1].attention.value;
        *value = value.clone().map(&mut Zeros);
        let probes = Probes::of(&model);
        probes.on();
        model.loss(tokens([4, 12, 32], device)).backward();
        let found = findings(&[probes.take()]);
        assert_only(&found, Fault::Dead, 1, "equal values");
        assert_eq!(found[0].path, "blocks.1.attention");
    });
}

/// Makes the weights of a module 0, and leaves its biases.
struct Zeros;

impl burn::module::ModuleMapper for Zeros {
    fn map_float<const D: usize>(
        &mut self,
        param: burn::module::Param<Tensor<D>>,
    ) -> burn::module::Param<Tensor<D>> {
        match D {
            1 => param,
            _ => param.map(|tensor| tensor.zeros_like().detach().require_grad()),
        }
    }
}

/// A layer whose entropy and arriving gradient are as given.
fn layer(entropy: f64, gradient: f64) -> LayerStatistics {
    let device = Device::default();
    let attention = ScaledDotProductAttentionConfig::new().init(&device);
    let probes = Probes::of(&attention);
    probes.on();
    attention.forward(heads(1.0, DType::F32, &device));
    let mut layer = probes.take().remove(0);
    layer.statistics.entropy = entropy;
    for head in &mut layer.heads {
        head.context_gradient = Some(gradient);
    }
    layer
}

#[test]
fn entropy_that_collapses_while_the_loss_asks_for_change() {
    let collapsing = [(0.9, 1.0), (0.5, 1.2), (0.03, 1.1)];
    let steps = collapsing.map(|(entropy, gradient)| vec![layer(entropy, gradient)]);
    let found = findings(&steps);
    assert_only(&found, Fault::EntropyCollapse, 1, "collapsing");
    assert_eq!(
        found[0].measured,
        "the entropy of the weights has fallen from 0.900 to 0.030"
    );
    // Single keys are what the layer was to learn.
    let learned = [(0.9, 1.0), (0.5, 0.5), (0.03, 0.01)];
    let steps = learned.map(|(entropy, gradient)| vec![layer(entropy, gradient)]);
    assert_eq!(findings(&steps), []);
}

#[test]
fn a_finding_is_read_back_from_its_file() {
    let found = findings(&[vec![layer(0.9, 1.0)], vec![layer(0.01, 1.0)]]);
    let text = serde_json::to_string(&found).unwrap();
    assert!(text.contains(r#""fault":"entropy_collapse""#), "{text}");
    assert_eq!(serde_json::from_str::<Vec<Finding>>(&text).unwrap(), found);
    assert_eq!(Doctor::new().findings(), []);
    assert_eq!(Doctor::new().to_string(), "no attention layer was observed");
}
