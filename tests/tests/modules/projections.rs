//! The linear layers around attention: on CPU backends their products are the kernels'.

use burn::backend::bf16;
use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig, LinearLayout};
use burn::tensor::{DType, Device, Gradients, Tensor};
use layers::{AttentionInput, MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use tests::{
    Random, Tolerance, assert_close, floats, leaf, on_each_backend, on_each_backend_with, values,
};

const BATCH: usize = 3;
const LENGTH: usize = 7;
const WIDTH: usize = 20;

fn module(device: &Device) -> MultiHeadAttention {
    MultiHeadAttentionConfig::new(WIDTH, 4)
        .with_key_bias(false)
        .init(device)
}

type Numbers = Vec<(&'static str, Option<Vec<f64>>)>;

/// Output and gradients of the module on what is made of a leaf.
fn run(
    module: &MultiHeadAttention,
    leaf: &Tensor<3>,
    input: impl Fn(Tensor<3>) -> Tensor<3>,
) -> Numbers {
    measured(module, leaf, |leaf| {
        module.forward(MhaInput::self_attn(input(leaf)))
    })
}

/// An output and its gradients at the leaf, the weights and the biases, by name.
fn measured(
    module: &MultiHeadAttention,
    leaf: &Tensor<3>,
    forward: impl Fn(Tensor<3>) -> Tensor<3>,
) -> Numbers {
    let output = forward(leaf.clone());
    let weights = Random::new(9).normals(output.shape().num_elements());
    let weights = floats(&weights, output.dims(), &output.device());
    let gradients = (output.clone() * weights).sum().backward();
    let of = |param: &Param<Tensor<2>>| param.val().grad(&gradients).map(values);
    let bias = |layer: &Linear| {
        let bias = layer.bias.as_ref().map(|bias| bias.val());
        bias.and_then(|bias| bias.grad(&gradients)).map(values)
    };
    vec![
        ("output", Some(values(output))),
        ("input", grad(leaf, &gradients)),
        ("query weight", of(&module.query.weight)),
        ("key weight", of(&module.key.weight)),
        ("value weight", of(&module.value.weight)),
        ("output weight", of(&module.output.weight)),
        ("query bias", bias(&module.query)),
        ("key bias", bias(&module.key)),
        ("output bias", bias(&module.output)),
    ]
}

fn grad(leaf: &Tensor<3>, gradients: &Gradients) -> Option<Vec<f64>> {
    leaf.grad(gradients).map(values)
}

fn numbers() -> Vec<f64> {
    Random::new(8).normals(BATCH * LENGTH * WIDTH)
}

#[track_caller]
fn assert_same(found: &Numbers, expected: &Numbers) {
    for ((name, found), (_, expected)) in found.iter().zip(expected) {
        match (found, expected) {
            (Some(found), Some(expected)) => {
                let tolerance = Tolerance::new(2e-5, 2e-5);
                assert_close(name, found, expected, &[found.len()], tolerance);
            }
            (None, None) => {}
            (found, _) => panic!("{name} has a gradient: {}", found.is_some()),
        }
    }
}

#[test]
fn they_are_burns_linear_layers() {
    on_each_backend(|device| {
        let device = device.clone().autodiff();
        let module = module(&device);
        let x = leaf(&numbers(), [BATCH, LENGTH, WIDTH], &device);
        let found = run(&module, &x, |x| x);
        let by_hand = measured(&module, &x, |x| {
            let rows = x.reshape([BATCH * LENGTH, WIDTH]);
            let heads = |layer: &Linear| {
                let heads = layer.forward(rows.clone());
                heads.reshape([BATCH, LENGTH, 4, WIDTH / 4]).swap_dims(1, 2)
            };
            let heads = [&module.query, &module.key, &module.value].map(heads);
            let [query, key, value] = heads;
            let context = module
                .attention
                .forward(AttentionInput::new(query, key, value));
            let rows = context.swap_dims(1, 2).reshape([BATCH * LENGTH, WIDTH]);
            module.output.forward(rows).reshape([BATCH, LENGTH, WIDTH])
        });
        assert_same(&found, &by_hand);
    });
}

#[test]
fn tokens_between_others_give_what_they_give_alone() {
    on_each_backend(|device| {
        let device = device.clone().autodiff();
        let module = module(&device);
        let alone = leaf(&numbers(), [BATCH, LENGTH, WIDTH], &device);
        let expected = run(&module, &alone, |x| x);

        // The same tokens with one before, two behind and some of a width beside them.
        let mut wide = vec![7.0; BATCH * (LENGTH + 3) * (WIDTH + 5)];
        for (at, number) in numbers().into_iter().enumerate() {
            let (sample, token) = (at / WIDTH / LENGTH, at / WIDTH % LENGTH);
            wide[(sample * (LENGTH + 3) + token + 1) * (WIDTH + 5) + 2 + at % WIDTH] = number;
        }
        let among = leaf(&wide, [BATCH, LENGTH + 3, WIDTH + 5], &device);
        let mut found = run(&module, &among, |x| {
            x.narrow(1, 1, LENGTH).narrow(2, 2, WIDTH)
        });
        let at_all = found[1].1.take().expect("a gradient at the input");
        let others = at_all.iter().filter(|gradient| **gradient == 0.0).count();
        assert_eq!(others, wide.len() - BATCH * LENGTH * WIDTH);
        let at_all: Tensor<3> = floats(&at_all, among.dims(), &device);
        found[1].1 = Some(values(at_all.narrow(1, 1, LENGTH).narrow(2, 2, WIDTH)));
        assert_same(&found, &expected);

        // And with the width before the length in memory.
        let turned = values(alone.clone().inner().swap_dims(1, 2));
        let turned = leaf(&turned, [BATCH, WIDTH, LENGTH], &device);
        let mut found = run(&module, &turned, |x| x.swap_dims(1, 2));
        let at_turned = found[1].1.take().expect("a gradient at the input");
        let at_turned: Tensor<3> = floats(&at_turned, turned.dims(), &device);
        found[1].1 = Some(values(at_turned.swap_dims(1, 2)));
        assert_same(&found, &expected);
    });
}

#[test]
fn one_token_or_one_sample_gives_what_it_gives_among_others() {
    on_each_backend(|device| {
        let module = module(device);
        let x: Tensor<3> = floats(&numbers(), [BATCH, LENGTH, WIDTH], device);
        let memory = x.clone();
        let attend = |x, memory| module.forward(MhaInput::cross_attn(x, memory));
        let all = attend(x.clone(), memory.clone());
        let close = |name: &str, found: Tensor<3>, expected: Tensor<3>| {
            let shape = found.dims();
            let tolerance = Tolerance::absolute(1e-5);
            assert_close(name, &values(found), &values(expected), &shape, tolerance);
        };
        let token = attend(x.clone().narrow(1, 4, 1), memory.clone());
        close("token", token, all.clone().narrow(1, 4, 1));
        let sample = attend(x.narrow(0, 2, 1), memory.narrow(0, 2, 1));
        close("sample", sample, all.narrow(0, 2, 1));
    });
}

#[test]
fn a_weight_stored_by_columns_gives_the_same() {
    on_each_backend(|device| {
        let device = device.clone().autodiff();
        let mut module = module(&device);
        let x = leaf(&numbers(), [BATCH, LENGTH, WIDTH], &device);
        let expected = run(&module, &x, |x| x);
        for layer in [&mut module.query, &mut module.value, &mut module.output] {
            let by_columns = LinearConfig::new(WIDTH, WIDTH).with_layout(LinearLayout::Col);
            let mut by_columns = by_columns.init(&device);
            let same = layer.weight.val().inner().transpose();
            let same: Tensor<2> = floats(&values(same), [WIDTH, WIDTH], &device);
            by_columns.weight = Param::from_tensor(same.transpose().detach());
            by_columns.bias = layer.bias.clone();
            *layer = by_columns;
        }
        assert_same(&run(&module, &x, |x| x), &expected);
    });
}

#[test]
fn frozen_parameters_and_a_constant_input_have_no_gradient_and_change_no_other() {
    on_each_backend(|device| {
        let device = device.clone().autodiff();
        let mut module = module(&device);
        let x = leaf(&numbers(), [BATCH, LENGTH, WIDTH], &device);
        let all = run(&module, &x, |x| x);
        assert!(all[7].1.is_none(), "the key has no bias");

        let constant = floats(&numbers(), [BATCH, LENGTH, WIDTH], &device);
        let mut expected = all.clone();
        expected[1].1 = None;
        assert_same(&run(&module, &constant, |x| x), &expected);

        let mut expected = all.clone();
        module.query.weight = module.query.weight.clone().set_require_grad(false);
        module.output.weight = module.output.weight.clone().set_require_grad(false);
        (expected[2].1, expected[5].1) = (None, None);
        let bias = module.value.bias.take().expect("a bias");
        module.value.bias = Some(bias.set_require_grad(false));
        let bias = module.output.bias.take().expect("a bias");
        module.output.bias = Some(bias.set_require_grad(false));
        expected[8].1 = None;
        assert_same(&run(&module, &x, |x| x), &expected);
    });
}

#[test]
fn recomputed_inputs_give_the_same_gradients() {
    on_each_backend(|device| {
        let plain = device.clone().autodiff();
        let record = module(&plain).into_record();
        let on = |device: &Device| {
            let module = module(device).load_record(record.clone());
            let x = leaf(&numbers(), [BATCH, LENGTH, WIDTH], device);
            // Operations that checkpointing recomputes come before the projections.
            run(&module, &x, |x| x.tanh() * 2.0)
        };
        let recomputing = device.clone().autodiff().gradient_checkpointing();
        assert_same(&on(&recomputing), &on(&plain));
    });
}

#[test]
fn half_precision_inputs_are_projected_by_the_backend() {
    on_each_backend_with(DType::BF16, |device| {
        let single = module(device);
        let mut half = single.clone();
        for layer in [
            &mut half.query,
            &mut half.key,
            &mut half.value,
            &mut half.output,
        ] {
            layer.weight = Param::from_tensor(layer.weight.val().cast(DType::BF16));
            let bias = layer.bias.as_ref().map(|bias| bias.val().cast(DType::BF16));
            layer.bias = bias.map(Param::from_tensor);
        }
        let x: Tensor<3> = floats(&numbers(), [BATCH, LENGTH, WIDTH], device);
        let expected = single.forward(MhaInput::self_attn(x.clone()));
        let found = half.forward(MhaInput::self_attn(x.cast(DType::BF16)));
        assert_eq!(found.dtype(), DType::BF16);
        let tolerance = Tolerance::absolute(8.0 * f64::from(bf16::EPSILON));
        let shape = expected.dims();
        assert_close(
            "output",
            &values(found),
            &values(expected),
            &shape,
            tolerance,
        );
    });
}
