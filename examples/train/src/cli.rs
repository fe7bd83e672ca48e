//! The command line.

use std::fs;
use std::io::{self, Write};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Instant;

use clap::{Args, Parser, Subcommand};
use gradnorm::{Compare, Format, Note, RunLog, RunWriter, Threshold};
use layers::Scale;
use serde::Serialize;

use crate::arguments::{Arms, Given};
use crate::claims::{Plan, write_whole};
use crate::comparison::{Comparison, folder};
use crate::config::{OptimizerKind, RunConfig, Stop};
use crate::data::TASK;
use crate::model::Init;
use crate::progress::Bar;
use crate::report::{number, wrapped};
use crate::resume::{Resumed, resume_in, start_in};
use crate::summary::Row;
use crate::training::Run;
use crate::{Backend, Error, claims, draw, figures, findings, rows, table, tensorboard};

/// Trains one small attention model with and without the 1/sqrt(d_k), and shows what the gradients
/// did.
///
/// Without a command: both arms at several widths and seeds, each run until it has learned its
/// task; then a table, what it shows in words, and plots.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    comparison: ComparisonArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Trains once, and logs every step.
    Run(RunArgs),
    /// Sets the logs of several runs side by side, with their ratios to the first; or several runs
    /// an arm, with intervals of their paired differences.
    Compare(CompareArgs),
    /// Writes the logs of runs as event files, which TensorBoard shows.
    Tensorboard(TensorboardArgs),
    /// Computes the worked numbers of the claim's source, and sets them beside theory.
    Figures(FiguresArgs),
    /// Measures what is claimed of the scale, claim by claim, and reports verdicts with figures.
    ///
    /// Takes at most thirty minutes on two cores, or three with --quick. If it is stopped, the same
    /// command goes on where it was.
    Claims(ClaimsArgs),
}

#[derive(Args, Debug)]
struct ComparisonArgs {
    /// The widths of one head.
    #[arg(long, value_name = "WIDTH,...", value_delimiter = ',',
        default_values_t = [32, 64, 128, 256])]
    d_k: Vec<usize>,
    /// How many seeds.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// How many runs go on at the same time; changes no result [default: the CPUs, or 1 on a GPU].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=256))]
    jobs: Option<u64>,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Args, Debug)]
struct RunArgs {
    // First, because reading the others takes them away.
    #[command(flatten)]
    given: Given,
    /// Goes on with the run in this folder, from its last checkpoint to the end; the arguments that
    /// are left out are the run's own.
    #[arg(long, value_name = "DIR", conflicts_with = "out")]
    resume: Option<PathBuf>,
    /// There is a checkpoint after every so many steps, and one at the end; 0 for that one alone.
    #[arg(long, default_value_t = 500, value_name = "STEPS")]
    checkpoint_every: u64,
    /// The factor on the scores: inv-sqrt-dim, unscaled, inv-dim or fixed:NUMBER.
    #[arg(long, default_value_t = Scale::InvSqrtDim)]
    scale: Scale,
    /// The width of one head.
    #[arg(long, default_value_t = 64)]
    d_k: usize,
    /// What the weights and the batches are drawn from.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Args, Debug)]
struct CommonArgs {
    /// The number of heads.
    #[arg(long, default_value_t = 1)]
    heads: usize,
    /// The number of attention blocks.
    #[arg(long, default_value_t = 1)]
    layers: usize,
    /// How many steps a run takes; where arms are compared, at most.
    #[arg(long, default_value_t = 600)]
    steps: u64,
    /// The number of samples in a step.
    #[arg(long, default_value_t = 64)]
    batch: usize,
    /// What turns gradients into steps.
    #[arg(long, value_enum, default_value = "adam")]
    optimizer: OptimizerKind,
    /// The learning rate [default: 0.001 for adam, 0.1 for sgd].
    #[arg(long)]
    lr: Option<f64>,
    /// How the weights start.
    #[arg(long, value_enum, default_value = "unit")]
    init: Init,
    /// What computes; all but flex need the feature of that name.
    #[arg(long, value_enum, default_value_t = Backend::default())]
    backend: Backend,
    /// A step is logged if this divides it.
    #[arg(long, default_value_t = 1, value_name = "STEPS")]
    log_every: u64,
    /// A logged step has attention statistics if this divides it.
    #[arg(long, default_value_t = 1, value_name = "STEPS")]
    probe_every: u64,
    /// Where the results go, a new or empty folder [default: a fresh one under runs/].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct CompareArgs {
    /// The folders of the runs; ratios are to the first.
    #[arg(required_unless_present = Arms::NAME, conflicts_with = Arms::NAME, num_args = 2..,
        value_name = "DIR")]
    dirs: Vec<PathBuf>,
    #[command(flatten)]
    arms: Arms,
    /// The field of the runs' configs that pairs the runs of the arms.
    #[arg(
        long,
        default_value = "seed",
        value_name = "FIELD",
        conflicts_with = "dirs"
    )]
    pair_by: String,
    /// How to print: table, json or csv.
    #[arg(long, default_value = "table")]
    format: Format,
    /// Which quantities, by their paths in a log's line; ** is all of them.
    #[arg(long = "quantity", value_name = "PATTERN", value_delimiter = ',',
        default_values = ["loss", "accuracy", "grad_norm.*", "attention.**"])]
    quantities: Vec<String>,
    /// The accuracy whose first step is looked for.
    #[arg(long, default_value_t = Stop::default().accuracy)]
    accuracy: f64,
    /// How many logged steps that accuracy is a mean over.
    #[arg(long, default_value_t = Stop::default().window as u64,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000), value_name = "STEPS")]
    window: u64,
}

#[derive(Args, Debug)]
struct TensorboardArgs {
    /// The folders of the runs.
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// TensorBoard's folder, in which each run gets one; what an earlier call wrote is replaced.
    #[arg(long, value_name = "LOGDIR")]
    out: PathBuf,
}

#[derive(Args, Debug)]
struct FiguresArgs {
    /// What the random numbers are drawn from.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// What computes; all but flex need the feature of that name.
    #[arg(long, value_enum, default_value_t = Backend::default())]
    backend: Backend,
}

#[derive(Args, Debug)]
struct ClaimsArgs {
    /// Measures less: fewer seeds, widths and steps.
    #[arg(long)]
    quick: bool,
    /// How many jobs go on at the same time; changes no result [default: the CPUs, or 1 on a GPU].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=256))]
    jobs: Option<u64>,
    /// What computes; all but flex need the feature of that name.
    #[arg(long, value_enum, default_value_t = Backend::default())]
    backend: Backend,
    /// Where the results go, and where those of a measurement that was stopped are [default:
    /// runs/claims, or runs/claims-quick].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl CommonArgs {
    fn config(&self) -> RunConfig {
        RunConfig {
            heads: self.heads,
            layers: self.layers,
            steps: self.steps,
            batch: self.batch,
            optimizer: self.optimizer,
            lr: self.lr,
            init: self.init,
            backend: self.backend,
            log_every: self.log_every,
            probe_every: self.probe_every,
            ..RunConfig::default()
        }
    }
}

/// Runs the program with the arguments of the process.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        None => compare_arms(&cli.comparison),
        Some(Command::Run(arguments)) => run(&arguments),
        Some(Command::Compare(arguments)) => compare_logs(&arguments),
        Some(Command::Tensorboard(arguments)) => write_for_tensorboard(&arguments),
        Some(Command::Figures(arguments)) => show_figures(&arguments),
        Some(Command::Claims(arguments)) => measure_claims(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The content of `summary.json`.
#[derive(Serialize)]
struct Summary<'a> {
    task: &'static str,
    d_k: &'a [usize],
    seeds: &'a [u64],
    /// What the runs have in common.
    #[serde(flatten)]
    common: serde_json::Map<String, serde_json::Value>,
    rows: &'a [Row],
    findings: &'a [String],
    seconds: f64,
}

fn compare_arms(arguments: &ComparisonArgs) -> Result<(), Error> {
    let stop = Stop::default();
    let comparison = Comparison {
        base: RunConfig {
            stop: Some(stop),
            ..arguments.common.config()
        },
        d_k: arguments.d_k.clone(),
        seeds: (0..arguments.seeds)
            .map(|number| arguments.seed.wrapping_add(number))
            .collect(),
        jobs: jobs(arguments.jobs, arguments.common.backend),
    }
    .check()?;
    let device = comparison.base.backend.device()?;
    let out = folder_for_results(arguments.common.out.as_deref(), "comparison")?;

    let started = Instant::now();
    let runs = comparison.run(&out, &device)?;
    let seconds = started.elapsed().as_secs_f64();

    let rows = rows(&runs);
    let findings = findings(&rows, &comparison);
    let plots = draw(&out, &runs, &rows, stop)?;
    let summary = Summary {
        task: TASK,
        d_k: &comparison.d_k,
        seeds: &comparison.seeds,
        common: comparison.common(),
        rows: &rows,
        findings: &findings,
        seconds,
    };
    let summary_path = out.join("summary.json");
    let summary = serde_json::to_string_pretty(&summary).expect("the summary is plain data");
    write_whole(&summary_path, (summary + "\n").as_bytes())?;

    let mut text = table(&rows, stop);
    for finding in &findings {
        text.push('\n');
        text.push_str(&wrapped(finding, 100));
    }
    text.push_str(&format!(
        "\n{} runs in {seconds:.1} s; their logs: {}\nTable: {}\n",
        runs.len(),
        out.display(),
        summary_path.display()
    ));
    for plot in plots {
        text.push_str(&format!("Plot: {}\n", plot.display()));
    }
    print(&text)
}

/// How many runs go on at a time: as many as were asked for, or as there are CPUs to run on.
fn jobs(asked: Option<u64>, backend: Backend) -> usize {
    match asked {
        Some(jobs) => jobs as usize,
        None if backend.is_cpu() => thread::available_parallelism().map_or(1, NonZero::get),
        None => 1,
    }
}

fn run(arguments: &RunArgs) -> Result<(), Error> {
    let config = RunConfig {
        scale: arguments.scale,
        d_k: arguments.d_k,
        seed: arguments.seed,
        ..arguments.common.config()
    };
    // On a thread of the pool that products are spread over: one more would compete for the cores.
    rayon::scope(|_| match &arguments.resume {
        Some(dir) => resume(arguments, config, dir),
        None => start(arguments, config.check()?),
    })
}

fn start(arguments: &RunArgs, config: RunConfig) -> Result<(), Error> {
    let device = config.backend.device()?;
    let out = folder_for_results(arguments.common.out.as_deref(), &folder(&config))?;
    let every = arguments.checkpoint_every;
    let bar = Bar::new(&config);
    let run = start_in(&out, &config, &device, every, |at| bar.at(at));
    bar.end();
    print(&outcome(&run?, &out))
}

fn resume(arguments: &RunArgs, asked: RunConfig, dir: &Path) -> Result<(), Error> {
    let mut fields = RunLog::read_config(dir)?;
    let own = RunConfig::from_fields(fields.clone(), dir)?;
    for (name, value) in asked.fields() {
        if arguments.given.has(&name) {
            fields.insert(name, value);
        }
    }
    let config = RunConfig::from_fields(fields, dir)?.check()?;
    let device = config.backend.device()?;
    let every = arguments.checkpoint_every;
    let bar = Bar::new(&config);
    let resumed = resume_in(dir, &config, &device, every, |at| bar.at(at));
    bar.end();
    print(&match resumed? {
        Resumed::Finished { steps } => format!(
            "{}: finished, with {steps} of at most {} steps; nothing was changed\n",
            dir.display(),
            own.steps
        ),
        Resumed::WentOn { from, run } => {
            format!("Went on with step {from}\n{}", outcome(&run, dir))
        }
    })
}

/// What a run came to, in words.
fn outcome(run: &Run, out: &Path) -> String {
    let stop = run.config.stop.unwrap_or_default();
    let mut text = match run.records.last() {
        Some(last) => format!(
            "step {}: loss {}, accuracy {}, gradient norm {}\n",
            last.step,
            number(last.loss),
            number(last.accuracy),
            number(last.grad_norm.all)
        ),
        None => String::new(),
    };
    text.push_str(&match run.learned_at {
        Some(step) => format!(
            "Accuracy {} (mean of {}) at step {step}\n",
            stop.accuracy, stop.window
        ),
        None => format!(
            "Accuracy {} (mean of {}) not reached\n",
            stop.accuracy, stop.window
        ),
    });
    text.push_str(&format!(
        "{} steps in {:.1} s; log: {}\n",
        run.steps,
        run.took.as_secs_f64(),
        out.display()
    ));
    text
}

fn compare_logs(arguments: &CompareArgs) -> Result<(), Error> {
    let learned = Threshold::at_least("accuracy", arguments.accuracy);
    let mut compare = Compare::new()
        .first_step(learned.mean_over(arguments.window as usize))
        .pair_by(&arguments.pair_by);
    for pattern in &arguments.quantities {
        compare = compare.quantity(pattern.as_str());
    }
    match arguments.arms.is_empty() {
        true => compare_runs(arguments, &compare),
        false => compare_paired(arguments, &compare),
    }
}

fn compare_runs(arguments: &CompareArgs, compare: &Compare) -> Result<(), Error> {
    let logs = arguments
        .dirs
        .iter()
        .map(RunLog::read)
        .collect::<Result<Vec<_>, _>>()?;
    let comparison = compare.of(&logs);
    print_notes(arguments.format, &comparison.notes);
    print(&comparison.render(arguments.format))?;
    match comparison.runs.len() {
        0 | 1 => Err(Error::NothingToCompare {
            given: logs.len(),
            comparable: comparison.runs.len(),
        }),
        _ => Ok(()),
    }
}

fn compare_paired(arguments: &CompareArgs, compare: &Compare) -> Result<(), Error> {
    let arms = arguments.arms.read()?;
    let comparison = compare.of_arms(&arms);
    print_notes(arguments.format, &comparison.notes);
    print(&comparison.render(arguments.format))?;
    match comparison.is_empty() {
        true => Err(Error::NoPairs(comparison.pair_by)),
        false => Ok(()),
    }
}

/// A table has the notes in it, and the other formats are for programs to read.
fn print_notes(format: Format, notes: &[Note]) {
    if format != Format::Table {
        for note in notes {
            eprintln!("note: {note}");
        }
    }
}

fn write_for_tensorboard(arguments: &TensorboardArgs) -> Result<(), Error> {
    let out = &arguments.out;
    let logs = tensorboard::convert(&arguments.dirs, out)?;
    for line in logs.iter().flat_map(RunLog::bad_lines) {
        eprintln!("note: left out: {line}");
    }
    let count = match logs.len() {
        1 => "1 run; to see it".to_string(),
        count => format!("{count} runs; to see them"),
    };
    print(&format!(
        "{count}: tensorboard --logdir {}\n",
        out.display()
    ))
}

fn show_figures(arguments: &FiguresArgs) -> Result<(), Error> {
    let device = arguments.backend.device()?.inner();
    print(&figures(&device, arguments.seed))
}

fn measure_claims(arguments: &ClaimsArgs) -> Result<(), Error> {
    let (plan, name) = match arguments.quick {
        true => (Plan::quick(arguments.backend), "claims-quick"),
        false => (Plan::full(arguments.backend), "claims"),
    };
    let device = arguments.backend.device()?;
    let out = match &arguments.out {
        Some(out) => out.clone(),
        None => Path::new("runs").join(name),
    };
    let started = Instant::now();
    let jobs = jobs(arguments.jobs, arguments.backend);
    let measurement = claims::measure(&plan, &out, &device, jobs)?;
    let written = measurement.write(&out)?;

    let mut text = claims::table(&measurement);
    text.push_str(&format!(
        "\n{} of {} jobs measured now, in {:.1} s\nReport: {}\nTable: {}\nRows: {}\nFigures: {}\n",
        measurement.measured,
        measurement.jobs,
        started.elapsed().as_secs_f64(),
        written.report.display(),
        written.table.display(),
        written.json.display(),
        written.figures.display(),
    ));
    print(&text)
}

/// Prints to a reader that may have gone, as `head` does.
fn print(text: &str) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::io(Path::new("standard output"), "write")(error))
        }
        _ => Ok(()),
    }
}

/// The folder that was asked for, if it is new or empty, or else a fresh one under `runs/`.
fn folder_for_results(asked: Option<&Path>, name: &str) -> Result<PathBuf, Error> {
    if let Some(asked) = asked {
        fs::create_dir_all(asked).map_err(Error::io(asked, "create"))?;
        return match RunWriter::is_vacant(asked)? {
            true => Ok(asked.into()),
            false => Err(Error::NotEmpty(asked.into())),
        };
    }
    let runs = Path::new("runs");
    fs::create_dir_all(runs).map_err(Error::io(runs, "create"))?;
    for number in 1.. {
        let fresh = runs.join(format!("{name}-{number}"));
        match fs::create_dir(&fresh) {
            Ok(()) => return Ok(fresh),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(Error::io(&fresh, "create")(error)),
        }
    }
    unreachable!("some number is free")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::training::train_in;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn scales_are_read_by_their_names() {
        let scale = |name: &str| {
            let cli = Cli::try_parse_from(["train", "run", "--scale", name]);
            match cli.map(|cli| cli.command) {
                Ok(Some(Command::Run(arguments))) => Ok(arguments.scale),
                Ok(_) => unreachable!("run was asked for"),
                Err(error) => Err(error.to_string()),
            }
        };
        assert_eq!(scale("unscaled"), Ok(Scale::Unscaled));
        assert_eq!(scale("fixed:0.125"), Ok(Scale::Fixed(0.125)));
        assert!(
            scale("sqrt")
                .unwrap_err()
                .contains("scale is sqrt, but must be")
        );
    }

    #[test]
    fn a_folder_that_holds_something_is_not_written_into() {
        let dir = tempfile::tempdir().unwrap();
        assert!(folder_for_results(Some(dir.path()), "x").is_ok());
        fs::write(dir.path().join("note"), "mine").unwrap();
        let error = folder_for_results(Some(dir.path()), "x").unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("not empty; choose a folder that is new or empty")
        );
    }

    #[test]
    fn a_run_that_exists_is_not_written_over() {
        let dir = tempfile::tempdir().unwrap();
        let config = RunConfig {
            d_k: 4,
            steps: 1,
            ..RunConfig::default()
        };
        drop(RunWriter::create(dir.path(), &config).unwrap());
        let device = config.backend.device().unwrap();
        let error = train_in(dir.path(), &config, &device, |_| ()).unwrap_err();
        assert!(
            error
                .to_string()
                .contains(&dir.path().display().to_string())
        );
    }
}
