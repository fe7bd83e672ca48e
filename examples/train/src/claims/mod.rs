//! What is claimed of the scale, one claim after the other, measured.
//!
//! A [`Plan`] says how much is measured. [`measure`] does it, job by job: random queries and keys
//! for what is claimed of scores, training runs for what is claimed of training. Each result is
//! stored as soon as it is there, by its whole configuration, so that a measurement that was
//! killed goes on where it was. The claims are then judged from the results by stated thresholds,
//! seed by seed, and [`Measurement::write`] puts everything into files.
//!
//! The interval of a figure reaches from its smallest to its largest value over the seeds. It
//! covers the median of all seeds with a probability of `1 - 2^(1 - n)` for `n` seeds, whatever
//! the distribution: 75 % for 3 seeds, 97 % for 6.

mod chart;
mod charts;
mod claim;
mod each;
#[cfg(test)]
mod fixture;
mod html;
mod job;
mod plan;
mod results;
mod runs;
mod scores;
mod store;
mod table;
mod verdict;

use std::fs;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use serde::Serialize;

pub use claim::{Claim, Figure};
pub use plan::Plan;
pub use table::table;
pub use verdict::Verdict;

use crate::figures::weights;
use crate::{Error, parallel};
use job::{Job, Outcome, Progress};
use results::Results;
use store::{Store, write_whole};

/// The claims with their verdicts, and what they were judged from.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// By number.
    pub claims: Vec<Claim>,
    /// How many of the jobs were measured now; the results of the others were there already.
    pub measured: usize,
    /// How many jobs there are.
    pub jobs: usize,
    results: Results,
}

/// The content of `claims.json`.
#[derive(Serialize)]
struct File<'a> {
    schema: u32,
    mode: &'static str,
    interval: String,
    setup: &'a Plan,
    claims: &'a [Claim],
}

/// Where the files of a measurement are.
#[derive(Clone, Debug)]
pub struct Written {
    /// `claims.json`
    pub json: PathBuf,
    /// `report.html`
    pub report: PathBuf,
    /// The folder of the figures, each as SVG and as CSV.
    pub figures: PathBuf,
}

/// Measures all that is not yet in the folder, `jobs` jobs at a time, and judges the claims.
///
/// # Errors
///
/// [`Error::NotEmpty`] if the folder has something in it that is not of a measurement, and
/// whatever a run or a file gives.
pub fn measure(
    plan: &Plan,
    dir: &Path,
    device: &Device,
    jobs: usize,
) -> Result<Measurement, Error> {
    let store = open(dir)?;
    let all = Job::all(plan);
    let mut missing: Vec<&Job> = all
        .iter()
        .filter(|job| job.stored(&store).is_none())
        .collect();
    let measured = missing.len();
    // The longest first, so that none is left alone at the end.
    missing.sort_by_key(|job| std::cmp::Reverse(job.cost()));
    let progress = Progress::new(all.len(), &missing);
    let done = parallel::each(&missing, jobs, |job| {
        let line = job.run(&store, device)?;
        progress.finish(job, &line);
        Ok::<_, Error>(())
    });
    progress.end();
    done?;

    let mut results = Results {
        plan: plan.clone(),
        draws: Vec::new(),
        curves: Vec::new(),
        weights: weights(&device.clone().inner()),
    };
    let of_jobs = all.len();
    for job in all {
        // Read back even if it was measured now: a measurement in two parts is the same to the bit.
        let outcome = job.stored(&store).ok_or_else(|| {
            let lost = std::io::Error::other("what was written a moment ago cannot be read back");
            Error::io(dir, "read a result")(lost)
        })?;
        match (job, outcome) {
            (Job::Draw(draw), Outcome::Draw(scores)) => results.draws.push((draw, scores)),
            (Job::Training(training), Outcome::Training(curve)) => {
                results.curves.push((training, curve));
            }
            _ => unreachable!("a job has an outcome of its kind"),
        }
    }
    Ok(Measurement {
        claims: each::claims(&results),
        measured,
        jobs: of_jobs,
        results,
    })
}

/// The folder's store; the folder is new, empty or of an earlier measurement.
fn open(dir: &Path) -> Result<Store, Error> {
    fs::create_dir_all(dir).map_err(Error::io(dir, "create"))?;
    let jobs = dir.join("jobs");
    let mut entries = fs::read_dir(dir).map_err(Error::io(dir, "read"))?;
    if !jobs.is_dir() && entries.next().is_some() {
        return Err(Error::NotEmpty(dir.into()));
    }
    Store::open(jobs)
}

impl Measurement {
    /// The plan that was measured.
    pub fn plan(&self) -> &Plan {
        &self.results.plan
    }

    /// Writes `claims.json`, `report.html`, and the figures as SVG and CSV.
    ///
    /// # Errors
    ///
    /// Whatever a file gives.
    pub fn write(&self, dir: &Path) -> Result<Written, Error> {
        let json = dir.join("claims.json");
        let file = File {
            schema: 1,
            mode: self.plan().mode,
            interval: interval(self.plan().seeds.len()),
            setup: self.plan(),
            claims: &self.claims,
        };
        let text = serde_json::to_string_pretty(&file).expect("claims are plain data");
        write_whole(&json, (text + "\n").as_bytes())?;

        let charts = charts::charts(&self.results);
        let figures = dir.join("figures");
        fs::create_dir_all(&figures).map_err(Error::io(&figures, "create"))?;
        for chart in charts.iter().flat_map(|section| &section.charts) {
            let path = |extension| figures.join(format!("{}.{extension}", chart.id));
            write_whole(&path("svg"), chart::svg(&[chart], 1).as_bytes())?;
            write_whole(&path("csv"), chart.csv().as_bytes())?;
        }
        let overview = charts::overview(&charts);
        let overview_path = figures.join("overview.svg");
        write_whole(&overview_path, chart::svg(&overview, 2).as_bytes())?;

        let report = dir.join("report.html");
        write_whole(&report, html::page(self, &charts).as_bytes())?;
        Ok(Written {
            json,
            report,
            figures,
        })
    }
}

/// What an interval is, in words.
fn interval(seeds: usize) -> String {
    match seeds {
        0 | 1 => "One seed: nothing is known of the spread.".to_string(),
        n => format!(
            "Figures are medians over {n} seeds; in brackets the smallest and the largest. For \
             independent seeds that range covers the median of all seeds with a probability of {:.1} \
             %, whatever the distribution.",
            100.0 * (1.0 - 0.5f64.powi(n as i32 - 1))
        ),
    }
}
