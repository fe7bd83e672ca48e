//! What is claimed of the scale, one claim after the other, measured.
//!
//! A [`Plan`] says how much is measured. [`measure`] does it, job by job: random queries and keys
//! for what is claimed of scores, training runs for what is claimed of training. Each result is
//! stored as soon as it is there, by its whole configuration and the version of this program, so
//! that a measurement that was killed goes on where it was. A change of the code that comes without
//! a new version is not seen: it needs a new folder. The claims are then judged from the results by
//! stated thresholds, seed by seed, and [`Measurement::write`] puts everything into files.
//!
//! The interval of a figure reaches from its smallest to its largest value over the seeds. It
//! covers the median of all seeds with a probability of `1 - 2^(1 - n)` for `n` seeds, whatever
//! the distribution: 75 % for 3 seeds, 97 % for 6. Two claims are exempt: the best rates of claim 7
//! are chosen on the same seeds that it reports, and claim 10 has no seeds.
//!
//! # Example
//!
//! ```no_run
//! use std::path::Path;
//! use train::Backend;
//! use train::claims::{Plan, measure, table};
//!
//! let (backend, dir) = (Backend::default(), Path::new("runs/claims-quick"));
//! let measurement = measure(&Plan::quick(backend), dir, &backend.device()?, 2)?;
//! assert_eq!(measurement.claims.len(), 11);
//! print!("{}", table(&measurement));
//! measurement.write(dir)?;
//! # Ok::<(), train::Error>(())
//! ```

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

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use serde::Serialize;

pub use claim::{Claim, Figure};
pub use plan::Plan;
pub use table::{markdown, table};
pub use verdict::Verdict;

use crate::figures::weights;
use crate::{Error, parallel};
use job::{Job, Outcome, Progress};
use results::Results;
use store::Store;
pub(crate) use store::write_whole;

/// The folder of the results, in that of a measurement.
const JOBS: &str = "jobs";

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
    /// `claims.md`
    pub table: PathBuf,
    /// `report.html`
    pub report: PathBuf,
    /// The folder of the figures, each as SVG and as CSV.
    pub figures: PathBuf,
}

/// Measures all that is not yet in the folder, `jobs` jobs at a time, and judges the claims.
///
/// # Errors
///
/// [`Error::NotEmpty`] if the folder has something in it but no results of a measurement,
/// [`Error::Argument`] if something else is among its results, and whatever a run or a file gives.
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
    let jobs = dir.join(JOBS);
    let beside = names(dir)?.into_iter().any(|name| name != JOBS);
    let stored = match jobs.is_dir() {
        true => names(&jobs)?,
        // A file of that name is something else.
        false if beside || jobs.exists() => return Err(Error::NotEmpty(dir.into())),
        false => Vec::new(),
    };
    let foreign = |name: &&OsString| !name.to_str().is_some_and(Store::is_own);
    if let Some(foreign) = stored.iter().find(foreign) {
        return Err(Error::Argument {
            argument: "out",
            value: dir.display().to_string(),
            why: format!(
                "{JOBS}/{} is not of a measurement; choose a folder that is new or empty",
                foreign.display()
            ),
        });
    }
    // An empty folder may be anyone's.
    if beside && stored.is_empty() {
        return Err(Error::NotEmpty(dir.into()));
    }
    Store::open(jobs)
}

/// What is in a folder, in the order of the names.
fn names(dir: &Path) -> Result<Vec<OsString>, Error> {
    let entries = fs::read_dir(dir).map_err(Error::io(dir, "read"))?;
    let names = entries.map(|entry| Ok(entry.map_err(Error::io(dir, "read"))?.file_name()));
    let mut names = names.collect::<Result<Vec<_>, Error>>()?;
    names.sort();
    Ok(names)
}

impl Measurement {
    /// The plan that was measured.
    pub fn plan(&self) -> &Plan {
        &self.results.plan
    }

    /// Writes `claims.json`, `claims.md`, `report.html`, and the figures as SVG and CSV.
    ///
    /// # Errors
    ///
    /// Whatever a file gives.
    pub fn write(&self, dir: &Path) -> Result<Written, Error> {
        let json = dir.join("claims.json");
        let file = File {
            schema: 1,
            mode: self.plan().mode,
            interval: interval(self.plan()),
            setup: self.plan(),
            claims: &self.claims,
        };
        let text = serde_json::to_string_pretty(&file).expect("claims are plain data");
        write_whole(&json, (text + "\n").as_bytes())?;

        let table = dir.join("claims.md");
        write_whole(&table, markdown(&self.claims).as_bytes())?;

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
            table,
            report,
            figures,
        })
    }
}

/// What an interval is, in words.
fn interval(plan: &Plan) -> String {
    let seeds = plan.seeds.len();
    if seeds < 2 {
        return "One seed: nothing is known of the spread.".to_string();
    }
    let covered = |seeds: usize| 100.0 * (1.0 - 0.5f64.powi(seeds as i32 - 1));
    let mut text = format!(
        "Figures are medians over {seeds} seeds; in brackets the smallest and the largest. For \
         independent seeds that range covers the median of all seeds with a probability of {:.1} %, \
         whatever the distribution.",
        covered(seeds)
    );
    match plan.stack_seeds.len() {
        stacks if stacks == seeds => {}
        stacks => text.push_str(&format!(
            " Claim 11 has {stacks} seeds, and {:.1} %.",
            covered(stacks)
        )),
    }
    text.push_str(
        " This is not so of claim 7, whose best rates are chosen on the same seeds, and of claim 10, \
         which has no seeds.",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Backend;

    fn small() -> Plan {
        let backend = Backend::default();
        Plan {
            seeds: vec![0, 1],
            drawn_widths: vec![4, 64, 512],
            sigmas: vec![1.0],
            sets: 1,
            d_k: vec![4],
            steps: 4,
            rate_d_k: vec![4],
            rates: vec![1e-3, 1e-2],
            rate_steps: 2,
            stack_d_k: 4,
            stacks: vec![(1, 1), (2, 2)],
            stack_seeds: vec![0],
            stack_steps: 2,
            ..Plan::quick(backend)
        }
    }

    fn measured(plan: &Plan, dir: &Path) -> Measurement {
        let device = plan.backend.device().unwrap();
        measure(plan, dir, &device, 2).unwrap()
    }

    #[test]
    fn a_measurement_that_was_stopped_measures_only_what_is_missing_and_comes_to_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let plan = small();
        let first = measured(&plan, dir.path());
        assert_eq!((first.measured, first.jobs), (22, 22));
        let written = first.write(dir.path()).unwrap();
        let before = fs::read(&written.json).unwrap();

        // As a kill would leave it: some results are not there, one is half written.
        let mut jobs: Vec<_> = fs::read_dir(dir.path().join("jobs"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        jobs.sort();
        fs::remove_file(&jobs[0]).unwrap();
        fs::remove_file(&jobs[7]).unwrap();
        let cut = fs::read(&jobs[20]).unwrap();
        fs::write(&jobs[20], &cut[..cut.len() / 2]).unwrap();
        fs::write(jobs[0].with_extension("json.partial"), "{\"key\": ").unwrap();

        let second = measured(&plan, dir.path());
        assert_eq!((second.measured, second.jobs), (3, 22));
        let written = second.write(dir.path()).unwrap();
        assert_eq!(fs::read(&written.json).unwrap(), before);
        assert_eq!(measured(&plan, dir.path()).measured, 0);

        // Another plan has other jobs, and shares those that are the same.
        let longer = Plan {
            rate_steps: 3,
            ..plan
        };
        assert_eq!(measured(&longer, dir.path()).measured, 8);
    }

    #[test]
    fn the_files_have_a_row_a_claim_and_every_chart_twice() {
        let dir = tempfile::tempdir().unwrap();
        let written = measured(&small(), dir.path()).write(dir.path()).unwrap();
        let json: serde_json::Value =
            serde_json::from_slice(&fs::read(&written.json).unwrap()).unwrap();
        assert_eq!(json["schema"], 1);
        assert_eq!(json["mode"], "quick");
        assert!(json["interval"].as_str().unwrap().contains("50.0 %"));
        assert_eq!(json["setup"]["seeds"], serde_json::json!([0, 1]));
        let claims = json["claims"].as_array().unwrap();
        let ids: Vec<u64> = claims
            .iter()
            .filter_map(|claim| claim["id"].as_u64())
            .collect();
        assert_eq!(ids, (1..=11).collect::<Vec<_>>());
        for claim in claims {
            assert!(!claim["sentence"].as_str().unwrap().is_empty());
            assert!(!claim["rule"].as_str().unwrap().is_empty());
            let verdict = claim["verdict"].as_str().unwrap();
            let condition = &claim["condition"];
            match verdict {
                "holds" => assert!(condition.is_null(), "{claim}"),
                "holds under a condition" => assert!(condition.is_string(), "{claim}"),
                "does not hold" => {}
                "not known" => assert!(condition.is_null(), "{claim}"),
                other => panic!("{other}"),
            }
            for figure in claim["figures"].as_array().unwrap() {
                for field in ["name", "median", "min", "max", "values"] {
                    assert!(figure.get(field).is_some(), "{field}: {figure}");
                }
            }
        }
        let files = |extension: &str| {
            let entries = fs::read_dir(&written.figures).unwrap();
            let names = entries.map(|entry| entry.unwrap().path());
            names
                .filter(|path| path.extension().unwrap() == extension)
                .count()
        };
        // The overview is of charts that are there by themselves.
        assert_eq!(files("svg"), files("csv") + 1);
        assert!(files("csv") > 15);
        assert!(
            fs::read_to_string(written.report)
                .unwrap()
                .ends_with("</html>\n")
        );
    }

    #[test]
    fn a_folder_that_holds_something_else_is_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("note"), "mine").unwrap();
        let device = Backend::default().device().unwrap();
        let error = measure(&small(), dir.path(), &device, 1).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "--out {}: not empty; choose a folder that is new or empty",
                dir.path().display()
            )
        );
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_folder_is_of_a_measurement_only_if_all_of_its_jobs_are() {
        let dir = tempfile::tempdir().unwrap();
        let jobs = dir.path().join(JOBS);
        let refused = || open(dir.path()).unwrap_err().to_string();
        let out = format!("--out {}: ", dir.path().display());
        let not_empty = format!("{out}not empty; choose a folder that is new or empty");

        // As a command that was killed before its first result leaves it.
        open(dir.path()).unwrap();
        assert!(jobs.is_dir());
        open(dir.path()).unwrap();

        fs::write(dir.path().join("note"), "mine").unwrap();
        assert_eq!(refused(), not_empty);

        let result = jobs.join("d_k-4_unscaled_seed-0-0123456789abcdef.json");
        fs::write(&result, "").unwrap();
        open(dir.path()).unwrap();

        fs::write(jobs.join("build.json"), "{}").unwrap();
        assert_eq!(
            refused(),
            format!(
                "{out}jobs/build.json is not of a measurement; choose a folder that is new or empty"
            )
        );

        fs::remove_dir_all(&jobs).unwrap();
        fs::remove_file(dir.path().join("note")).unwrap();
        fs::write(&jobs, "a file").unwrap();
        assert_eq!(refused(), not_empty);
    }

    #[test]
    fn the_interval_says_how_sure_it_is() {
        let full = interval(&Plan::full(Backend::default()));
        assert!(
            full.starts_with("Figures are medians over 6 seeds;"),
            "{full}"
        );
        assert!(full.contains("96.9 %"), "{full}");
        assert!(
            full.contains(" Claim 11 has 3 seeds, and 75.0 %. "),
            "{full}"
        );
        let exempt = " This is not so of claim 7, whose best rates are chosen on the same seeds, and \
                      of claim 10, which has no seeds.";
        assert!(full.ends_with(exempt), "{full}");
        let quick = interval(&Plan::quick(Backend::default()));
        assert!(
            quick.contains("75.0 %") && !quick.contains("Claim 11"),
            "{quick}"
        );
        assert!(quick.ends_with(exempt), "{quick}");
        let one = Plan {
            seeds: vec![0],
            ..small()
        };
        assert_eq!(interval(&one), "One seed: nothing is known of the spread.");
    }
}
