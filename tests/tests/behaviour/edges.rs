//! Axes of size zero, and calls that differ in what they ask for alone.

use burn::tensor::{DType, Tensor};
use layers::{
    AttentionInput, KvCache, MhaInput, MultiHeadAttentionConfig, ScaledDotProductAttentionConfig,
};
use tests::reference::{Problem, Sizes};
use tests::{
    Random, Tolerance, assert_bits, assert_close, attend, attend_and_differentiate, floats,
    on_each_backend, values,
};

use crate::{autodiff, context_loss};

#[test]
fn any_axis_may_be_empty_forward_and_backward() {
    on_each_backend(|device| {
        for plain in [device, &autodiff(device)] {
            for [batch, heads, queries, keys, d_v] in [
                [0, 2, 3, 4, 5],
                [2, 0, 3, 4, 5],
                [2, 2, 0, 4, 5],
                [2, 2, 3, 0, 5],
                [2, 2, 0, 0, 5],
                [2, 2, 3, 4, 0],
            ] {
                for causal in [false, true] {
                    let tensor = |shape: [usize; 4]| {
                        let tensor = Tensor::<4>::ones(shape, plain);
                        match plain.is_autodiff() {
                            true => tensor.require_grad(),
                            false => tensor,
                        }
                    };
                    let query = tensor([batch, heads, queries, 2]);
                    let key = tensor([batch, heads, keys, 2]);
                    let value = tensor([batch, heads, keys, d_v]);
                    let input = AttentionInput::new(query.clone(), key, value);
                    let module = ScaledDotProductAttentionConfig::new()
                        .with_causal(causal)
                        .init(plain);
                    let output = module.forward_with_weights(input.clone());
                    assert_eq!(output.context.dims(), [batch, heads, queries, d_v]);
                    assert_eq!(output.weights.dims(), [batch, heads, queries, keys]);
                    assert_eq!(output.logsumexp.dims(), [batch, heads, queries]);
                    let context = module.forward(input);
                    if plain.is_autodiff() {
                        let gradients = context.sum().backward();
                        if let Some(gradient) = query.grad(&gradients) {
                            assert!(values(gradient).iter().all(|number| *number == 0.0));
                        }
                    }
                }
            }
        }
    });
}

#[test]
fn multi_head_attention_takes_empty_batches_and_lengths() {
    on_each_backend(|device| {
        let module = MultiHeadAttentionConfig::new(8, 2).init(device);
        for [batch, queries, keys] in [[0, 3, 4], [2, 0, 4], [2, 3, 0]] {
            let query = Tensor::<3>::ones([batch, queries, 8], device);
            let memory = Tensor::<3>::ones([batch, keys, 8], device);
            let context = module.forward(MhaInput::cross_attn(query, memory));
            assert_eq!(context.dims(), [batch, queries, 8]);
        }
        // No key: what is left is the bias of the output projection.
        let query = Tensor::<3>::ones([1, 1, 8], device);
        let memory = Tensor::<3>::ones([1, 0, 8], device);
        let context = values(module.forward(MhaInput::cross_attn(query, memory)));
        let bias = values(module.output.bias.as_ref().expect("a bias").val());
        assert_close("context", &context, &bias, &[8], Tolerance::absolute(0.0));
    });
}

#[test]
fn a_cache_takes_an_empty_chunk() {
    on_each_backend(|device| {
        let module = MultiHeadAttentionConfig::new(8, 2)
            .with_causal(true)
            .init(device);
        let x = floats(&Random::new(1).normals(3 * 8), [1, 3, 8], device);
        let expected = values(module.forward(MhaInput::self_attn(x.clone())));
        let mut cache = KvCache::growing();
        let nothing = Tensor::<3>::empty([1, 0, 8], device);
        module.forward(MhaInput::self_attn(nothing.clone()).cache(&mut cache));
        let found = values(module.forward(MhaInput::self_attn(x).cache(&mut cache)));
        module.forward(MhaInput::self_attn(nothing).cache(&mut cache));
        assert_eq!(cache.len(), 3);
        assert_close(
            "context",
            &found,
            &expected,
            &[3, 8],
            Tolerance::absolute(1e-6),
        );
    });
}

#[test]
fn asking_for_weights_changes_neither_context_nor_gradients() {
    on_each_backend(|device| {
        let device = &autodiff(device);
        let mut random = Random::new(2);
        let problem = Problem::random(Sizes::new(2, 3, 7, 11, 5), &mut random);
        let upstream = floats(
            &context_loss(&problem, &mut random).context,
            [2, 3, 7, 5],
            device,
        );
        let module = tests::module(&problem, DType::F32, device);
        let run = |with_weights: bool| {
            let call = tests::input(&problem, DType::F32, device);
            let context = match with_weights {
                true => module.forward_with_weights(call.input).context,
                false => module.forward(call.input),
            };
            let gradients = (context.clone() * upstream.clone()).sum().backward();
            let gradient = |leaf: Tensor<4>| values(leaf.grad(&gradients).expect("a leaf"));
            [
                values(context),
                gradient(call.query),
                gradient(call.key),
                gradient(call.value),
            ]
        };
        for (asked, plain) in run(true).iter().zip(&run(false)) {
            assert_bits("with weights", asked, plain);
        }
    });
}

#[test]
fn with_autodiff_and_without_give_the_same_bits() {
    on_each_backend(|device| {
        let mut random = Random::new(3);
        let mut problem = Problem::random(Sizes::new(2, 3, 7, 11, 5), &mut random);
        problem.causal = true;
        let plain = attend(&problem, DType::F32, device);
        let upstream = context_loss(&problem, &mut random);
        let (tracked, _) = attend_and_differentiate(&problem, &upstream, DType::F32, device);
        assert_eq!(tracked, plain);
    });
}

#[test]
fn a_sample_gives_the_same_in_any_batch() {
    on_each_backend(|device| {
        let mut problem = Problem::random(Sizes::new(3, 2, 7, 9, 5), &mut Random::new(4));
        problem.key_lengths = Some(vec![9, 4, 6]);
        let together = attend(&problem, DType::F32, device).context;
        for sample in 0..3 {
            let part = |list: &[f64]| {
                let length = list.len() / 3;
                list[sample * length..][..length].to_vec()
            };
            let mut alone = Problem::new(
                Sizes::new(1, 2, 7, 9, 5),
                part(&problem.query),
                part(&problem.key),
                part(&problem.value),
            );
            alone.key_lengths = Some(vec![[9, 4, 6][sample]]);
            let expected = attend(&alone, DType::F32, device).context;
            let found = part(&together);
            assert_close(
                "sample",
                &found,
                &expected,
                &[70],
                Tolerance::absolute(1e-6),
            );
        }
    });
}

#[test]
fn inputs_may_be_views_of_other_tensors() {
    on_each_backend(|device| {
        let device = &autodiff(device);
        let mut random = Random::new(5);
        // One projection of queries, keys and values side by side, as fused projections give it.
        let [batch, length, heads, width] = [2, 5, 3, 4];
        let numbers = random.normals(batch * length * 3 * heads * width);
        let leaf = floats::<5>(&numbers, [batch, length, 3, heads, width], device).require_grad();
        let part = |index: usize| -> Tensor<4> {
            leaf.clone()
                .narrow(2, index, 1)
                .squeeze_dim::<4>(2)
                .swap_dims(1, 2)
        };
        let copy = |view: Tensor<4>| -> Tensor<4> {
            let shape = view.dims();
            floats(&values(view), shape, device)
        };
        let module = ScaledDotProductAttentionConfig::new()
            .with_causal(true)
            .init(device);
        let context = module.forward(AttentionInput::new(part(0), part(1), part(2)));
        let (query, key, value) = (
            copy(part(0)).require_grad(),
            copy(part(1)).require_grad(),
            copy(part(2)).require_grad(),
        );
        let input = AttentionInput::new(query.clone(), key.clone(), value.clone());
        let expected = module.forward(input);
        assert_bits(
            "context",
            &values(context.clone()),
            &values(expected.clone()),
        );
        let upstream = floats(
            &random.normals(batch * heads * length * width),
            [batch, heads, length, width],
            device,
        );
        let gradients = (context * upstream.clone()).sum().backward();
        let found = leaf.grad(&gradients).expect("a leaf");
        let gradients = (expected * upstream).sum().backward();
        for (index, leaf) in [query, key, value].into_iter().enumerate() {
            let found = found
                .clone()
                .narrow(2, index, 1)
                .squeeze_dim::<4>(2)
                .swap_dims(1, 2);
            let expected = leaf.grad(&gradients).expect("a leaf");
            assert_bits("gradient", &values(found), &values(expected));
        }
    });
}
