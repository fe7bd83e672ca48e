//! Names what looks wrong with a model's attention, from the statistics of a few steps.
//!
//! | fault | the number | past |
//! |---|---|---|
//! | `non_finite` | share of queries with a number that is not finite | 0 |
//! | `finite_mask` | the lowest bias, in half precision or where a query sees hidden keys alone | -1000 |
//! | `scale_missing` | deviation of the scores, by what queries and keys imply | `sqrt(d_k) / 2`, if the factor is about 1 |
//! | `scale_twice` | the same | below `2 / sqrt(d_k)`, if the factor is about `1 / d_k` |
//! | `scale_wrong_dimension` | the same | below `1.4 sqrt(d_k / d_model)`, if the factor is about `1 / sqrt(d_model)` |
//! | `half_overflow` | the largest product of query and key in f16 | 16376 |
//! | `saturated` | share of a head's queries with a weight above 0.99 | 0.5, from the start |
//! | `dead` | share of a head's queries whose scores get under 1 % of the usual gradient | 0.5, from the start |
//! | `uniform` | share of a head's queries with weights within 1 % of `1 / keys` | 0.95, always |
//! | `entropy_collapse` | entropy of the layer's weights, as a fraction of `ln(keys)` | below 0.05, from four times as much |
//!
//! The factor is the layer's own, times one applied to queries or keys before the layer, which
//! shows as queries and keys of different size. What cannot be told from a call is whether the
//! weights were made for another factor: a model that is initialised for 1/d_k, as muP's are, is
//! told that its scale is applied twice until its scores deviate by 1. And queries that are small
//! by themselves, over a memory that is not, look like queries that were scaled.
//!
//! A layer that shows a fault is not reported for what follows from it: a missing scale saturates
//! heads and kills queries, and is the one finding.

mod checks;
mod fault;

pub use fault::{Fault, Finding};

use core::fmt;
use std::collections::BTreeMap;

use crate::probe::LayerStatistics;
use checks::Sign;
use fault::short;

/// Observes the layers of one model over a few steps, and names what looks wrong.
///
/// # Example
///
/// ```
/// use burn::tensor::{Device, Distribution, Tensor};
/// use layers::{Doctor, Fault, MhaInput, MultiHeadAttentionConfig, Probes, Scale};
///
/// let device = Device::default();
/// let config = MultiHeadAttentionConfig::new(64, 1);
/// let examine = |scale| {
///     let attention = config.clone().with_scale(scale).init(&device);
///     let probes = Probes::of(&attention);
///     let mut doctor = Doctor::new();
///     for _ in 0..3 {
///         probes.on();
///         let x = Tensor::random([4, 10, 64], Distribution::Normal(0.0, 1.0), &device);
///         attention.forward(MhaInput::self_attn(x));
///         doctor.observe(&probes.take());
///     }
///     doctor.findings()
/// };
///
/// assert!(examine(Scale::InvSqrtDim).is_empty());
/// let findings = examine(Scale::Unscaled);
/// assert_eq!(findings.len(), 1);
/// assert_eq!(findings[0].fault, Fault::ScaleMissing);
/// assert!(findings[0].value > findings[0].threshold);
/// println!("{}", findings[0]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Doctor {
    layers: Vec<History>,
}

/// What has been seen of one layer.
#[derive(Clone, Debug)]
struct History {
    path: String,
    calls: usize,
    first: Option<Activity>,
    seen: BTreeMap<Fault, Seen>,
}

/// What has been seen of one fault in one layer.
#[derive(Clone, Debug)]
struct Seen {
    calls: usize,
    from_the_start: bool,
    in_the_last: bool,
    finding: Finding,
}

/// How alive a layer is.
#[derive(Clone, Copy, Debug)]
struct Activity {
    entropy: f64,
    /// The mean norm of the gradient at what attention gives.
    gradient: Option<f64>,
}

/// Entropy below this has collapsed.
const COLLAPSED: f64 = 0.05;
/// If it was this many times as much.
const FALLEN: f64 = 4.0;
/// A loss that asks for less than this part of the first change is satisfied: single keys are then
/// what the layer has learned to look at.
const SATISFIED: f64 = 0.1;

impl Doctor {
    /// Has observed nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in what [`Probes::take`](crate::Probes::take) gave at one step.
    pub fn observe(&mut self, layers: &[LayerStatistics]) {
        for layer in layers {
            let known = self
                .layers
                .iter()
                .position(|known| known.path == layer.path);
            let at = known.unwrap_or_else(|| {
                self.layers.push(History::new(layer));
                self.layers.len() - 1
            });
            self.layers[at].add(layer);
        }
    }

    /// What looks wrong, layer by layer in the order in which they were first seen; nothing for a
    /// healthy model.
    ///
    /// Numbers that are not finite are reported if any call showed them, a collapse if the last
    /// one does, and everything else if most calls of the layer did: from the first one on where
    /// training may come there by itself, all of them where it may start there.
    pub fn findings(&self) -> Vec<Finding> {
        self.layers.iter().flat_map(History::findings).collect()
    }
}

/// The findings, a line each, or that there are none, or that no layer was observed.
impl fmt::Display for Doctor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.findings().iter().map(Finding::to_string).collect();
        match (lines.len(), self.layers.len()) {
            (0, 0) => f.write_str("no attention layer was observed"),
            (0, 1) => f.write_str("nothing looks wrong in 1 attention layer"),
            (0, layers) => write!(f, "nothing looks wrong in {layers} attention layers"),
            _ => f.write_str(&lines.join("\n")),
        }
    }
}

impl History {
    fn new(layer: &LayerStatistics) -> Self {
        Self {
            path: layer.path.clone(),
            calls: 0,
            first: None,
            seen: BTreeMap::new(),
        }
    }

    fn add(&mut self, layer: &LayerStatistics) {
        let mut signs = checks::signs(layer);
        if let Some(now) = Activity::of(layer) {
            signs.extend(self.collapse(&now));
            self.first.get_or_insert(now);
        }
        for seen in self.seen.values_mut() {
            seen.in_the_last = false;
        }
        for sign in signs {
            let fault = sign.fault;
            let finding = sign.into_finding(&self.path);
            let seen = self.seen.entry(fault).or_insert_with(|| Seen {
                calls: 0,
                from_the_start: self.calls == 0,
                in_the_last: true,
                finding: finding.clone(),
            });
            seen.calls += 1;
            seen.in_the_last = true;
            seen.finding = finding;
        }
        self.calls += 1;
    }

    fn collapse(&self, now: &Activity) -> Option<Sign> {
        let first = self.first?;
        let satisfied = match (now.gradient, first.gradient) {
            (Some(now), Some(first)) => now < SATISFIED * first,
            _ => false,
        };
        let fallen = now.entropy < COLLAPSED && now.entropy * FALLEN < first.entropy;
        (fallen && !satisfied).then(|| Sign {
            fault: Fault::EntropyCollapse,
            heads: Vec::new(),
            value: now.entropy,
            threshold: COLLAPSED,
            measured: format!(
                "the entropy of the weights has fallen from {} to {}",
                short(first.entropy),
                short(now.entropy)
            ),
        })
    }

    fn findings(&self) -> Vec<Finding> {
        let holds = |fault: Fault, seen: &Seen| match fault {
            Fault::NonFinite => true,
            Fault::EntropyCollapse => seen.in_the_last,
            Fault::Saturated | Fault::Dead => seen.from_the_start && seen.calls * 2 > self.calls,
            Fault::Uniform => seen.calls == self.calls,
            _ => seen.calls * 2 > self.calls,
        };
        let held: Vec<&Finding> = self
            .seen
            .iter()
            .filter(|(fault, seen)| holds(**fault, seen))
            .map(|(_, seen)| &seen.finding)
            .collect();
        let explained = |fault: Fault| held.iter().any(|other| other.fault.explains(fault));
        held.iter()
            .filter(|finding| !explained(finding.fault))
            .map(|finding| (*finding).clone())
            .collect()
    }
}

impl Activity {
    /// `None` if no query of the call has a choice.
    fn of(layer: &LayerStatistics) -> Option<Self> {
        let gradients: Option<Vec<f64>> = layer
            .heads
            .iter()
            .map(|head| head.context_gradient)
            .collect();
        let chooses = layer.heads.iter().any(|head| head.choosing > 0);
        chooses.then(|| Self {
            entropy: layer.statistics.entropy,
            gradient: gradients.map(|list| list.iter().sum::<f64>() / list.len() as f64),
        })
    }
}

impl Sign {
    fn into_finding(self, path: &str) -> Finding {
        Finding {
            fault: self.fault,
            path: path.to_owned(),
            heads: self.heads,
            value: self.value,
            threshold: self.threshold,
            measured: self.measured,
        }
    }
}
