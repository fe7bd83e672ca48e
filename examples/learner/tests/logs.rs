//! The metrics stand in Burn's own log files.

use std::fs;
use std::path::Path;

use burn::tensor::Device;
use burn::train::metric::NumericEntry;

/// The numbers of a metric's log, one a step, then the epoch's.
fn numbers(dir: &Path, epoch: usize, metric: &str) -> Vec<f64> {
    let path = dir.join(format!("train/epoch-{epoch}/{metric}.log"));
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.lines()
        .map(|line| NumericEntry::deserialize(line).unwrap().current())
        .collect()
}

#[test]
fn gradient_norms_and_attention_stand_in_the_log_files_of_burn() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("run");
    learner::train(&dir, 2, &Device::default());
    for epoch in [1, 2] {
        let all = numbers(&dir, epoch, "Gradient_Norm");
        let query = numbers(&dir, epoch, "Gradient_Norm_query");
        let value = numbers(&dir, epoch, "Gradient_Norm_value");
        assert!(all.len() >= 25, "{} lines", all.len());
        for ((all, query), value) in all.iter().zip(&query).zip(&value) {
            assert!(*query > 0.0 && *value > 0.0);
            let parts = (query * query + value * value).sqrt();
            assert!(parts < *all && *all < 100.0, "{query} and {value} of {all}");
        }
        let entropy = numbers(&dir, epoch, "Attention_Entropy");
        let second = numbers(&dir, epoch, "Attention_Entropy_blocks.1.attention");
        let saturated = numbers(&dir, epoch, "Attention_Saturation");
        let gradient = numbers(&dir, epoch, "Attention_Score_Gradient");
        assert_eq!(entropy.len(), all.len());
        assert!(
            entropy
                .iter()
                .chain(&second)
                .all(|e| (0.0..=1.0).contains(e))
        );
        assert!(saturated.iter().all(|share| (0.0..=1.0).contains(share)));
        assert!(gradient.iter().all(|norm| *norm >= 0.0 && norm.is_finite()));
        assert_ne!(entropy, second);
    }
    // At the start, weights are nearly even, and none is near 1.
    assert!(numbers(&dir, 1, "Attention_Entropy")[0] > 0.9);
    assert_eq!(numbers(&dir, 1, "Attention_Saturation")[0], 0.0);
    // Gradients are a matter of training.
    assert!(dir.join("valid/epoch-1/Loss.log").exists());
    assert!(!dir.join("valid/epoch-1/Gradient_Norm.log").exists());
}
