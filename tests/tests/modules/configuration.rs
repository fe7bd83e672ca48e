//! Configurations and displays: the record of a run says what was built.

use burn::config::Config;
use burn::tensor::Device;
use layers::{
    Alignment, MultiHeadAttentionConfig, QkNorm, RotaryConfig, RotaryLayout, RotaryScaling, Scale,
    ScaledDotProductAttentionConfig, Window,
};

#[test]
fn a_configuration_is_read_back_as_it_was_saved() {
    let config = MultiHeadAttentionConfig::new(16, 4)
        .with_n_kv_heads(Some(2))
        .with_d_key(Some(5))
        .with_scale(Scale::Fixed(0.37))
        .with_causal(true)
        .with_alignment(Alignment::Offset(-3))
        .with_window(Some(Window::around(2, 1)))
        .with_softcap(Some(30.0))
        .with_dropout(0.25)
        .with_sink(true)
        .with_rotary(Some(
            RotaryConfig::new()
                .with_layout(RotaryLayout::Interleaved)
                .with_scaling(RotaryScaling::Yarn {
                    factor: 4.0,
                    original_length: 2048,
                }),
        ))
        .with_qk_norm(Some(QkNorm::Rms { epsilon: 1e-6 }))
        .with_add_zero_attn(true);
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("config.json");
    config.save(&path).expect("to be saved");
    let loaded = MultiHeadAttentionConfig::load(&path).expect("to be loaded");
    assert_eq!(format!("{loaded:?}"), format!("{config:?}"));
    let text = std::fs::read_to_string(&path).expect("the file");
    assert!(text.contains("\"scale\""), "{text}");
}

#[test]
fn the_scale_is_saved_by_its_name() {
    for (scale, expected) in [
        (Scale::InvSqrtDim, r#""scale":"inv_sqrt_dim""#),
        (Scale::Unscaled, r#""scale":"unscaled""#),
        (Scale::InvDim, r#""scale":"inv_dim""#),
        (Scale::Fixed(0.5), r#""scale":{"fixed":0.5}"#),
        (
            Scale::LogLength { reference: 512 },
            r#""scale":{"log_length":{"reference":512}}"#,
        ),
        (
            Scale::Learned { initial: 0.25 },
            r#""scale":{"learned":{"initial":0.25}}"#,
        ),
    ] {
        let config = ScaledDotProductAttentionConfig::new().with_scale(scale);
        let text = serde_json::to_string(&config).expect("a configuration");
        assert!(text.contains(expected), "{text}");
        let read: ScaledDotProductAttentionConfig =
            serde_json::from_str(&text).expect("a configuration");
        assert_eq!(read, config);
    }
}

#[test]
fn a_display_says_the_scale_and_every_choice() {
    let device = &Device::default();
    for (config, parts) in [
        (
            MultiHeadAttentionConfig::new(8, 2),
            vec!["d_model: 8", "n_heads: 2", "scale: inv_sqrt_dim"],
        ),
        (
            MultiHeadAttentionConfig::new(8, 2)
                .with_scale(Scale::Unscaled)
                .with_n_kv_heads(Some(1))
                .with_causal(true)
                .with_window(Some(Window::before(3)))
                .with_softcap(Some(5.0))
                .with_quiet_softmax(true)
                .with_alibi(true)
                .with_dropout(0.5),
            vec![
                "n_kv_heads: 1",
                "scale: unscaled",
                "causal: bottom_right",
                "window: 3..",
                "softcap: 5",
                "quiet_softmax: true",
                "alibi: true",
                "dropout: 0.5",
            ],
        ),
    ] {
        let text = config.init(device).to_string();
        for part in parts {
            assert!(text.contains(part), "`{part}` is not in {text}");
        }
    }
}
