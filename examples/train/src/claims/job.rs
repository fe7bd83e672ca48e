//! What there is to do, and how far it is.

use std::time::Instant;

use burn::tensor::Device;
use indicatif::{ProgressBar, ProgressStyle};

use super::plan::Plan;
use super::runs::{Curve, Training};
use super::scores::{Draw, KEYS, Scores};
use super::store::Store;
use crate::Error;
use crate::comparison::folder;

/// One measurement: what is stored as a whole.
#[derive(Clone, Debug)]
pub(super) enum Job {
    Draw(Draw),
    Training(Training),
}

/// What a job gives.
#[derive(Debug)]
pub(super) enum Outcome {
    Draw(Scores),
    Training(Curve),
}

impl Job {
    /// Those of a plan.
    pub fn all(plan: &Plan) -> Vec<Self> {
        let draws = plan.draws().into_iter().map(Self::Draw);
        draws
            .chain(plan.trainings().into_iter().map(Self::Training))
            .collect()
    }

    /// The first part of its file's name; a hash of the whole job is the second.
    pub fn name(&self) -> String {
        match self {
            Self::Draw(draw) => {
                format!("draw_d-{}_sigma-{}_seed-{}", draw.d, draw.sigma, draw.seed)
            }
            Self::Training(training) => folder(&training.config),
        }
    }

    /// About how many multiplications it takes, to tell the long ones from the short.
    pub fn cost(&self) -> u64 {
        match self {
            Self::Draw(draw) => (draw.sets * KEYS * KEYS * draw.d) as u64 * 100,
            Self::Training(training) => {
                let config = &training.config;
                let width = (config.d_k * config.heads) as u64;
                let tokens = (config.batch * crate::data::TOKENS) as u64;
                // Of a small model, most of the time is not in its products.
                config.steps * config.layers as u64 * tokens * (width * width + 10_000)
            }
        }
    }

    /// Its result, if it is there.
    pub fn stored(&self, store: &Store) -> Option<Outcome> {
        match self {
            Self::Draw(draw) => store.get(&self.name(), draw).map(Outcome::Draw),
            Self::Training(training) => store.get(&self.name(), training).map(Outcome::Training),
        }
    }

    /// Measures and stores; gives a line on what came of it.
    pub fn run(&self, store: &Store, device: &Device) -> Result<String, Error> {
        let started = Instant::now();
        let what = match self {
            Self::Draw(draw) => {
                store.put(&self.name(), draw, &draw.measure(device))?;
                "measured".to_string()
            }
            Self::Training(training) => {
                let curve = training.run(device)?;
                store.put(&self.name(), training, &curve)?;
                match curve.learned_at {
                    Some(step) => format!("learned at step {step}"),
                    None => format!("not learned in {} steps", curve.steps),
                }
            }
        };
        Ok(format!(
            "{}: {what}, {:.1} s",
            self.label(),
            started.elapsed().as_secs_f64()
        ))
    }

    fn label(&self) -> String {
        match self {
            Self::Draw(draw) => format!("draw d {} σ {} seed {}", draw.d, draw.sigma, draw.seed),
            Self::Training(training) => {
                let config = &training.config;
                format!(
                    "d_k {} heads {} layers {} {} {:?} rate {} seed {}",
                    config.d_k,
                    config.heads,
                    config.layers,
                    config.scale,
                    config.init,
                    config.lr(),
                    config.seed
                )
            }
        }
    }
}

/// A bar by the cost of jobs, or a line a job where no terminal shows one.
pub(super) struct Progress(ProgressBar);

/// Costs are shown in these.
const UNIT: u64 = 1_000_000;

impl Progress {
    pub fn new(all: usize, missing: &[&Job]) -> Self {
        let style = ProgressStyle::with_template("{bar:30} {percent} %, {msg}, {eta} left")
            .expect("the template is well-formed");
        let cost = missing.iter().map(|job| job.cost() / UNIT).sum();
        let bar = ProgressBar::new(cost).with_style(style);
        let message = format!("{all} jobs, {} there already", all - missing.len());
        if bar.is_hidden() {
            eprintln!("{message}");
        }
        Self(bar.with_message(message))
    }

    pub fn finish(&self, job: &Job, line: &str) {
        self.0.inc(job.cost() / UNIT);
        match self.0.is_hidden() {
            true => eprintln!("{line}"),
            false => self.0.println(line),
        }
    }

    pub fn end(&self) {
        self.0.finish_and_clear();
    }
}
