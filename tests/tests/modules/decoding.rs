//! Decoding token by token through a cache.

use burn::tensor::{Device, Tensor};
use layers::{
    KvCache, MhaInput, MultiHeadAttention, MultiHeadAttentionConfig, RotaryConfig, Window,
};
use tests::{Random, Tolerance, assert_bits, assert_close, floats, on_each_backend, values};

const CLOSE: Tolerance = Tolerance::absolute(2e-6);

fn config() -> MultiHeadAttentionConfig {
    MultiHeadAttentionConfig::new(16, 4)
        .with_n_kv_heads(Some(2))
        .with_causal(true)
        .with_rotary(Some(RotaryConfig::new()))
}

fn tokens(batch: usize, length: usize, device: &Device) -> Tensor<3> {
    let numbers = Random::new(1).normals(batch * length * 16);
    floats(&numbers, [batch, length, 16], device)
}

fn step_by_step(module: &MultiHeadAttention, x: &Tensor<3>, cache: &mut KvCache) -> Tensor<3> {
    let steps = (0..x.dims()[1]).map(|token| {
        let step = x.clone().narrow(1, token, 1);
        module.forward(MhaInput::self_attn(step).cache(cache))
    });
    Tensor::cat(steps.collect(), 1)
}

#[test]
fn five_hundred_tokens_one_by_one_equal_the_full_pass() {
    on_each_backend(|device| {
        let module = config().init(device);
        let x = tokens(1, 512, device);
        let expected = values(module.forward(MhaInput::self_attn(x.clone())));
        for mut cache in [KvCache::growing(), KvCache::preallocated(512)] {
            let found = values(step_by_step(&module, &x, &mut cache));
            assert_close("steps", &found, &expected, &[512, 16], CLOSE);
            assert_eq!(cache.len(), 512);
        }
    });
}

#[test]
fn a_rolling_cache_keeps_the_window_and_gives_the_same() {
    on_each_backend(|device| {
        let module = config().with_window(Some(Window::before(7))).init(device);
        let x = tokens(2, 60, device);
        let expected = values(module.forward(MhaInput::self_attn(x.clone())));
        let mut cache = KvCache::rolling(7);
        let found = values(step_by_step(&module, &x, &mut cache));
        assert_close("steps", &found, &expected, &[2, 60, 16], CLOSE);
        assert!(cache.len() <= 8, "{} positions are kept", cache.len());
        assert_eq!(cache.position(), 60);
    });
}

#[test]
fn the_kept_keys_do_not_change_when_more_come() {
    on_each_backend(|device| {
        let module = config().init(device);
        let x = tokens(1, 9, device);
        let mut cache = KvCache::growing();
        let feed = |cache: &mut KvCache, start: usize, count: usize| {
            let part = x.clone().narrow(1, start, count);
            module.forward(MhaInput::self_attn(part).cache(cache));
        };
        feed(&mut cache, 0, 4);
        let kept = cache.clone();
        let (key, value) = (kept.key().unwrap(), kept.value().unwrap());
        assert_eq!(key.dims(), [1, 2, 4, 4]);
        let before = (values(key), values(value));
        feed(&mut cache, 4, 5);
        // A clone is a snapshot: beams may branch from it.
        let after = (values(kept.key().unwrap()), values(kept.value().unwrap()));
        assert_eq!(after, before);
        let longer = cache.key().unwrap().narrow(2, 0, 4);
        assert_bits("key", &values(longer), &before.0);
    });
}

#[test]
fn a_refused_draft_leaves_no_trace() {
    on_each_backend(|device| {
        let module = config().init(device);
        let x = tokens(1, 8, device);
        let expected = values(module.forward(MhaInput::self_attn(x.clone())));
        let mut cache = KvCache::preallocated(16);
        let mut feed = |part: Tensor<3>, refused: usize| {
            let output = module.forward(MhaInput::self_attn(part).cache(&mut cache));
            cache.rewind(refused);
            output
        };
        let first = feed(x.clone().narrow(1, 0, 5), 0);
        feed(x.clone().narrow(1, 0, 3) * 10.0, 3);
        let rest = feed(x.narrow(1, 5, 3), 0);
        let found = values(Tensor::cat(vec![first, rest], 1));
        assert_close("output", &found, &expected, &[8, 16], CLOSE);
        assert_eq!(cache.position(), 8);
        cache.clear();
        assert!(cache.is_empty());
    });
}

#[test]
fn beams_are_reordered_with_their_cache() {
    on_each_backend(|device| {
        let module = config().init(device);
        let x = tokens(3, 6, device);
        let past = x.clone().narrow(1, 0, 5);
        let step = x.narrow(1, 5, 1);
        let beams = [2, 0, 0];
        let pick = |tensor: Tensor<3>| {
            let rows = beams.map(|beam| tensor.clone().narrow(0, beam, 1));
            Tensor::cat(rows.into(), 0)
        };
        let mut cache = KvCache::growing();
        module.forward(MhaInput::self_attn(past.clone()).cache(&mut cache));
        cache.reorder(&beams);
        let found = module.forward(MhaInput::self_attn(step.clone()).cache(&mut cache));

        let mut fresh = KvCache::growing();
        module.forward(MhaInput::self_attn(pick(past)).cache(&mut fresh));
        let expected = module.forward(MhaInput::self_attn(step).cache(&mut fresh));
        assert_bits("beams", &values(found), &values(expected));
    });
}

#[test]
fn the_keys_of_cross_attention_are_computed_once() {
    on_each_backend(|device| {
        let module = MultiHeadAttentionConfig::new(16, 4)
            .with_d_key(Some(5))
            .with_d_value(Some(5))
            .init(device);
        let x = tokens(2, 4, device);
        let memory = floats::<3>(&Random::new(2).normals(2 * 7 * 5), [2, 7, 5], device);
        let lengths = [7, 3];
        let whole = MhaInput::cross_attn(x.clone(), memory.clone()).key_lengths(lengths);
        let expected = values(module.forward(whole));
        let mut cache = KvCache::fixed();
        let steps = (0..4).map(|token| {
            let step = x.clone().narrow(1, token, 1);
            // Only the first call looks at the memory.
            let memory = match token {
                0 => memory.clone(),
                _ => Tensor::empty([2, 0, 5], device),
            };
            let input = MhaInput::cross_attn(step, memory).key_lengths(lengths);
            module.forward(input.cache(&mut cache))
        });
        let found = values(Tensor::cat(steps.collect(), 1));
        assert_close("steps", &found, &expected, &[2, 4, 16], CLOSE);
        assert_eq!(cache.len(), 7);
    });
}
