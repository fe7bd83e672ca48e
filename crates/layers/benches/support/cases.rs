//! What is measured.

use burn::nn::attention::{
    MhaCache, MhaInput as BurnInput, MultiHeadAttentionConfig as BurnConfig,
    generate_autoregressive_mask,
};
use burn::tensor::module::attention as burn_attention;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Device, Distribution, Tensor};
use layers::{
    AttentionInput, KvCache, MhaInput, MultiHeadAttentionConfig, ScaledDotProductAttentionConfig,
};

/// Whose attention.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Burn,
    Ours,
}

/// One row of the table.
pub struct Case {
    pub name: String,
    /// Whether Burn's side fits into an ordinary machine's memory.
    pub burn: bool,
    pub turns: usize,
    run: Box<dyn Fn(Side) -> Box<dyn FnMut()>>,
}

impl Case {
    /// What is to be timed, with everything made beforehand.
    pub fn prepared(&self, side: Side) -> Box<dyn FnMut()> {
        (self.run)(side)
    }
}

pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for (backend, device) in devices() {
        for causal in [false, true] {
            for length in [2048, 4096, 8192, 16384] {
                // Burn keeps every score: 2 GiB at 4,096, 8 GiB at 8,192.
                cases.push(operation(
                    backend,
                    &device,
                    [1, 8, length, 64],
                    causal,
                    length <= 4096,
                ));
            }
        }
        for shape in [[1, 1, 8, 8], [32, 4, 64, 32], [1, 8, 1024, 64]] {
            cases.push(operation(backend, &device, shape, false, true));
        }
        for (batch, length, d_model, heads) in [
            (8, 256, 512, 8),
            (1, 1024, 512, 8),
            (64, 17, 64, 1),
            (64, 17, 256, 1),
        ] {
            cases.push(module(backend, &device, [batch, length, d_model], heads));
        }
        cases.push(decoding(backend, &device, 1024, 512, 8));
    }
    cases
}

#[cfg_attr(feature = "ndarray", allow(deprecated))] // The crate is deprecated as a whole.
fn devices() -> Vec<(&'static str, Device)> {
    vec![
        ("flex", Device::flex()),
        #[cfg(feature = "ndarray")]
        ("ndarray", Device::ndarray()),
    ]
}

/// Attention alone, forward and backward, from leaves to gradients.
fn operation(backend: &str, device: &Device, shape: [usize; 4], causal: bool, burn: bool) -> Case {
    let [batch, heads, length, width] = shape;
    let long = if length > 1024 { "long " } else { "" };
    let kind = if causal { "causal" } else { "full" };
    let device = device.clone().autodiff();
    Case {
        name: format!("{long}attention {kind} {batch}x{heads}x{length}x{width} {backend}"),
        burn,
        turns: if length > 4096 { 1 } else { 3 },
        run: Box::new(move |side| {
            let device = device.clone();
            let random = || Tensor::<4>::random(shape, Distribution::Normal(0.0, 1.0), &device);
            let (q, k, v, weight) = (random(), random(), random(), random().inner());
            let layer = ScaledDotProductAttentionConfig::new()
                .with_causal(causal)
                .init(&device);
            Box::new(move || {
                let leaf = |tensor: &Tensor<4>| tensor.clone().detach().require_grad();
                let (q, k, v) = (leaf(&q), leaf(&k), leaf(&v));
                let context = match side {
                    Side::Ours => {
                        layer.forward(AttentionInput::new(q.clone(), k.clone(), v.clone()))
                    }
                    Side::Burn => {
                        let options = AttentionModuleOptions {
                            is_causal: causal,
                            ..Default::default()
                        };
                        burn_attention(q.clone(), k.clone(), v.clone(), None, None, options)
                    }
                };
                let weight = Tensor::from_inner(weight.clone());
                let gradients = (context * weight).sum().backward();
                for leaf in [q, k, v] {
                    assert!(leaf.grad(&gradients).is_some());
                }
            })
        }),
    }
}

/// The whole module, forward and backward.
fn module(backend: &str, device: &Device, shape: [usize; 3], heads: usize) -> Case {
    let [batch, length, d_model] = shape;
    let device = device.clone().autodiff();
    Case {
        name: format!("module B {batch} N {length} d_model {d_model} heads {heads} {backend}"),
        burn: true,
        turns: 3,
        run: Box::new(move |side| {
            let device = device.clone();
            let x = Tensor::<3>::random(shape, Distribution::Normal(0.0, 1.0), &device);
            let ours = MultiHeadAttentionConfig::new(d_model, heads).init(&device);
            let theirs = BurnConfig::new(d_model, heads)
                .with_dropout(0.0)
                .init(&device);
            Box::new(move || {
                let x = x.clone().detach().require_grad();
                let output = match side {
                    Side::Ours => ours.forward(MhaInput::self_attn(x.clone())),
                    Side::Burn => theirs.forward(BurnInput::self_attn(x.clone())).context,
                };
                let gradients = output.sum().backward();
                assert!(x.grad(&gradients).is_some());
            })
        }),
    }
}

/// Decoding token by token with a cache, from the first to the last.
fn decoding(backend: &str, device: &Device, length: usize, d_model: usize, heads: usize) -> Case {
    let device = device.clone();
    Case {
        name: format!("decoding {length} tokens d_model {d_model} heads {heads} {backend}"),
        burn: true,
        turns: 1,
        run: Box::new(move |side| {
            let device = device.clone();
            let shape = [1, length, d_model];
            let x = Tensor::<3>::random(shape, Distribution::Normal(0.0, 1.0), &device);
            let ours = MultiHeadAttentionConfig::new(d_model, heads)
                .with_causal(true)
                .init(&device);
            let theirs = BurnConfig::new(d_model, heads).init(&device);
            Box::new(move || match side {
                Side::Ours => {
                    let mut cache = KvCache::growing();
                    for token in 0..length {
                        let step = x.clone().narrow(1, token, 1);
                        ours.forward(MhaInput::self_attn(step).cache(&mut cache));
                    }
                }
                Side::Burn => {
                    let mut cache = MhaCache::autoregressive();
                    for token in 0..length {
                        let so_far = x.clone().narrow(1, 0, token + 1);
                        let mask = generate_autoregressive_mask(1, token + 1, &device);
                        let input = BurnInput::self_attn(so_far).mask_attn(mask);
                        theirs.forward_cache(input, &mut cache);
                    }
                }
            })
        }),
    }
}
