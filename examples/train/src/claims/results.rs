//! Everything that was measured, by its configuration.

use layers::Scale;

use super::plan::Plan;
use super::runs::{Arm, Curve, Training};
use super::scores::{Draw, Scores, ScoresAt};
use crate::figures::Weights;
use crate::summary::Spread;

/// The results of a plan's jobs.
#[derive(Clone, Debug)]
pub(super) struct Results {
    pub plan: Plan,
    pub draws: Vec<(Draw, Scores)>,
    pub curves: Vec<(Training, Curve)>,
    /// The worked examples.
    pub weights: Vec<Weights>,
}

impl Results {
    /// One quantity of the drawn scores, a number a seed.
    pub fn scores(
        &self,
        d: usize,
        sigma: f64,
        scale: Scale,
        of: impl Fn(&ScoresAt) -> f64,
    ) -> Spread {
        let seeds = self.plan.seeds.iter();
        super::claim::spread(seeds.map(|&seed| {
            let draw = self.plan.draw(d, sigma, seed);
            let found = self.draws.iter().find(|(measured, _)| *measured == draw);
            of(found.expect("the plan has this draw").1.at(scale))
        }))
    }

    /// The runs of one arm and width that take all their steps, by seed.
    pub fn trained(&self, arm: Arm, d_k: usize) -> Vec<&Curve> {
        let seeds = self.plan.seeds.iter();
        seeds
            .map(|&seed| self.curve(&self.plan.training(arm, d_k, seed)))
            .collect()
    }

    /// The runs of one arm, width and learning rate, by seed.
    pub fn at_rate(&self, arm: Arm, d_k: usize, rate: f64) -> Vec<&Curve> {
        let seeds = self.plan.seeds.iter();
        seeds
            .map(|&seed| self.curve(&self.plan.at_rate(arm, d_k, rate, seed)))
            .collect()
    }

    /// The runs of one arm and stack, by seed.
    pub fn stack(&self, arm: Arm, layers: usize, heads: usize) -> Vec<&Curve> {
        let seeds = self.plan.stack_seeds.iter();
        seeds
            .map(|&seed| self.curve(&self.plan.stack(arm, layers, heads, seed)))
            .collect()
    }

    fn curve(&self, training: &Training) -> &Curve {
        let found = self.curves.iter().find(|(ran, _)| ran == training);
        &found.expect("the plan has this run").1
    }
}
