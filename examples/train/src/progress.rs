//! Progress bars with the time left, or a line a run where no terminal shows them.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, MultiProgress, ProgressBar, ProgressStyle};

use crate::config::RunConfig;
use crate::training::{Progress, Run};

/// Shows how far several runs are.
pub(crate) struct Display {
    bars: MultiProgress,
    total: ProgressBar,
    estimate: Mutex<Estimate>,
}

/// Shows how far one run is.
pub(crate) struct Bar(ProgressBar);

impl Display {
    pub fn new(configs: &[RunConfig], jobs: usize) -> Self {
        let bars = MultiProgress::new();
        let style = ProgressStyle::with_template("{bar:30} {pos} of {len} runs, {msg}")
            .expect("the template is well-formed");
        let total = bars.add(ProgressBar::new(configs.len() as u64).with_style(style));
        total.set_message("estimating the time left");
        Self {
            bars,
            total,
            estimate: Mutex::new(Estimate::new(configs, jobs)),
        }
    }

    pub fn start(&self, config: &RunConfig) -> Bar {
        let bar = self.bars.insert_before(&self.total, Bar::new(config).0);
        bar.tick();
        Bar(bar)
    }

    pub fn finish(&self, bar: Bar, run: &Run) {
        bar.0.finish_and_clear();
        self.bars.remove(&bar.0);
        let mut estimate = self.estimate.lock().unwrap_or_else(PoisonError::into_inner);
        estimate.finished(run);
        self.total.inc(1);
        self.total.set_message(estimate.text());
        let line = format!(
            "{}: {}, {:.1} s",
            name(&run.config),
            match run.learned_at {
                Some(step) => format!("learned at step {step}"),
                None => format!("not learned in {} steps", run.steps),
            },
            run.took.as_secs_f64()
        );
        match self.bars.is_hidden() {
            true => eprintln!("{line}"),
            false => drop(self.bars.println(line)),
        }
    }

    pub fn end(&self) {
        self.total.finish_and_clear();
    }
}

impl Bar {
    /// For a run by itself.
    pub fn new(config: &RunConfig) -> Self {
        let style = ProgressStyle::with_template(
            "{bar:30} {prefix}: step {pos} of at most {len}, {msg}, {eta} left",
        )
        .expect("the template is well-formed");
        let bar = ProgressBar::new(config.steps).with_style(style);
        Self(bar.with_prefix(name(config)))
    }

    pub fn at(&self, progress: &Progress) {
        self.0.set_position(progress.step + 1);
        self.0
            .set_message(format!("accuracy {:.2}", progress.accuracy));
    }

    pub fn end(&self) {
        self.0.finish_and_clear();
    }
}

fn name(config: &RunConfig) -> String {
    format!("d_k {} {} seed {}", config.d_k, config.scale, config.seed)
}

/// How much longer the runs take, from those that have ended.
struct Estimate {
    started: Instant,
    jobs: usize,
    left: Vec<RunConfig>,
    ended: Vec<(RunConfig, Duration)>,
}

impl Estimate {
    fn new(configs: &[RunConfig], jobs: usize) -> Self {
        Self {
            started: Instant::now(),
            jobs: jobs.max(1),
            left: configs.to_vec(),
            ended: Vec::new(),
        }
    }

    fn finished(&mut self, run: &Run) {
        self.left.retain(|config| *config != run.config);
        self.ended.push((run.config.clone(), run.took));
    }

    /// A run is taken to need as long as those of its size and arm did, or else those of its
    /// size, or else all.
    fn time_left(&self) -> Option<Duration> {
        let needs = |config: &RunConfig| {
            let mean = |alike: &dyn Fn(&RunConfig) -> bool| {
                let ended = self.ended.iter().filter(|(ended, _)| alike(ended));
                let took: Vec<Duration> = ended.map(|(_, took)| *took).collect();
                (!took.is_empty()).then(|| took.iter().sum::<Duration>() / took.len() as u32)
            };
            let size = |ended: &RunConfig| ended.d_k == config.d_k;
            mean(&|ended| size(ended) && ended.scale == config.scale)
                .or_else(|| mean(&size))
                .or_else(|| mean(&|_| true))
        };
        let total: Duration = self.left.iter().map(needs).sum::<Option<_>>()?;
        Some(total / self.jobs as u32)
    }

    fn text(&self) -> String {
        let spent = HumanDuration(self.started.elapsed());
        match self.time_left() {
            Some(left) => format!("{spent} so far, about {} left", HumanDuration(left)),
            None => format!("{spent} so far"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layers::Scale;

    #[test]
    fn time_left_goes_by_the_runs_most_alike() {
        let config = |d_k, scale, seed| RunConfig {
            d_k,
            scale,
            seed,
            ..RunConfig::default()
        };
        let (scaled, unscaled) = (Scale::InvSqrtDim, Scale::Unscaled);
        let mut estimate = Estimate::new(
            &[
                config(64, scaled, 0),
                config(64, unscaled, 0),
                config(64, scaled, 1),
                config(64, unscaled, 1),
                config(32, scaled, 0),
            ],
            2,
        );
        assert_eq!(estimate.time_left(), None);
        let mut end = |config: RunConfig, seconds| {
            estimate.finished(&Run {
                config,
                records: Vec::new(),
                learned_at: None,
                steps: 1,
                took: Duration::from_secs(seconds),
            });
            estimate.time_left().unwrap().as_secs()
        };
        // Four runs of 4 s each, two at a time.
        assert_eq!(end(config(64, scaled, 0), 4), 8);
        // 4 s, 10 s, and 7 s for the size that has not ended yet.
        assert_eq!(end(config(64, unscaled, 0), 10), 10);
    }
}
