//! The command line.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::{Args, Parser, Subcommand};
use gradnorm::{Compare, Format, RunLog, Threshold};
use layers::Scale;
use serde::Serialize;

use crate::comparison::Comparison;
use crate::config::{OptimizerKind, RunConfig, Stop};
use crate::model::Init;
use crate::progress::Bar;
use crate::summary::Row;
use crate::training::train_in;
use crate::{Backend, Error, draw, figures, findings, rows, table};

/// Trains one small attention model with and without the 1/sqrt(d_k), and shows what the gradients
/// did. Without a command: both arms, several widths, three seeds.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    comparison: ComparisonArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// One run.
    Run(RunArgs),
    /// Logged runs side by side.
    Compare(CompareArgs),
    /// The numbers of the notes that the claim comes from, beside theory.
    Figures,
}

#[derive(Args, Debug)]
struct ComparisonArgs {
    /// The widths of one head.
    #[arg(long = "d-ks", value_delimiter = ',', default_values_t = [32, 64, 128, 256])]
    d_ks: Vec<usize>,
    /// How many seeds, from 0 on.
    #[arg(long, default_value_t = 3)]
    seeds: u64,
    /// How many runs go on at the same time.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Args, Debug)]
struct RunArgs {
    /// The factor on the scores: inv-sqrt-dim, unscaled, inv-dim or fixed:NUMBER.
    #[arg(long, default_value_t = Scale::InvSqrtDim)]
    scale: Scale,
    /// The width of one head.
    #[arg(long, default_value_t = 256)]
    d_k: usize,
    /// What weights and batches are drawn from.
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
    /// The most steps that a run takes.
    #[arg(long, default_value_t = 600)]
    steps: u64,
    /// Samples a step.
    #[arg(long, default_value_t = 64)]
    batch: usize,
    /// What turns gradients into steps.
    #[arg(long, value_enum, default_value = "adam")]
    optimizer: OptimizerKind,
    /// The learning rate [default: 1e-3 for adam, 0.3 for sgd].
    #[arg(long)]
    lr: Option<f64>,
    /// How weights start.
    #[arg(long, value_enum, default_value = "unit")]
    init: Init,
    /// What computes.
    #[arg(long, value_enum, default_value_t = Backend::default())]
    backend: Backend,
    /// Logs the steps that this divides.
    #[arg(long, default_value_t = 1)]
    log_every: u64,
    /// Measures the attention at the logged steps that this divides.
    #[arg(long, default_value_t = 1)]
    probe_every: u64,
    /// Where results go [default: a fresh folder under runs/].
    #[arg(long)]
    out: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct CompareArgs {
    /// Folders of runs.
    #[arg(required = true, num_args = 2..)]
    dirs: Vec<PathBuf>,
    /// table, json or csv.
    #[arg(long, default_value = "table")]
    format: Format,
    /// The accuracy whose first step is looked for.
    #[arg(long, default_value_t = 0.9)]
    accuracy: f64,
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
        Some(Command::Figures) => {
            print!("{}", figures());
            Ok(())
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What `summary.json` holds.
#[derive(Serialize)]
struct Summary<'a> {
    rows: &'a [Row],
    findings: &'a [String],
    stop: Stop,
    seconds: f64,
}

fn compare_arms(arguments: &ComparisonArgs) -> Result<(), Error> {
    if arguments.seeds == 0 || arguments.d_ks.is_empty() {
        return Err(Error::Argument {
            argument: "seeds",
            value: arguments.seeds.to_string(),
            why: "must be at least 1".into(),
        });
    }
    // A run goes on long enough after it has learned to be seen to stay there.
    let stop = Stop::default();
    let base = RunConfig {
        stop: Some(stop),
        ..arguments.common.config()
    };
    let device = base.backend.device()?;
    let out = folder_for_results(arguments.common.out.as_deref(), "comparison")?;
    let comparison = Comparison {
        base,
        d_k: arguments.d_ks.clone(),
        seeds: (0..arguments.seeds).collect(),
        jobs: arguments.jobs,
    };
    let started = Instant::now();
    let runs = comparison.run(&out, &device)?;
    let seconds = started.elapsed().as_secs_f64();
    let rows = rows(&runs, |run| run.config.scale == Scale::InvSqrtDim);
    let findings = findings(&rows, stop);
    println!("{}", table(&rows, stop));
    for finding in &findings {
        println!("{finding}\n");
    }
    let plots = draw(&out, &runs, &rows, stop)?;
    let summary = Summary {
        rows: &rows,
        findings: &findings,
        stop,
        seconds,
    };
    write_whole(&out.join("summary.json"), &summary)?;
    println!("{} runs took {seconds:.1} s of computing.", runs.len());
    println!("logs and summary.json: {}", out.display());
    for plot in plots {
        println!("plot: {}", plot.display());
    }
    Ok(())
}

fn run(arguments: &RunArgs) -> Result<(), Error> {
    let config = RunConfig {
        scale: arguments.scale,
        d_k: arguments.d_k,
        seed: arguments.seed,
        ..arguments.common.config()
    }
    .check()?;
    let device = config.backend.device()?;
    let out = match &arguments.common.out {
        Some(out) => out.clone(),
        None => folder_for_results(None, &crate::folder(&config))?,
    };
    let bar = Bar::new(&config);
    let run = train_in(&out, &config, &device, |at| bar.at(at))?;
    bar.end();
    if let Some(last) = run.records.last() {
        println!(
            "step {}: loss {:.4}, accuracy {:.3}, gradient norm {:.4} (query weights {:.4})",
            last.step,
            last.loss,
            last.accuracy,
            last.grad_norm.all,
            last.grad_norm.query.unwrap_or(f64::NAN),
        );
    }
    match run.learned_at {
        Some(step) => println!("accuracy 0.9 (mean of 20 batches) at step {step}"),
        None => println!("accuracy 0.9 (mean of 20 batches) not reached"),
    }
    println!("log: {}", out.display());
    Ok(())
}

fn compare_logs(arguments: &CompareArgs) -> Result<(), Error> {
    let logs = arguments
        .dirs
        .iter()
        .map(RunLog::read)
        .collect::<Result<Vec<_>, _>>()?;
    let comparison = Compare::new()
        .first_step(
            Threshold::at_least("accuracy", arguments.accuracy).mean_over(Stop::default().window),
        )
        .of(&logs);
    let excluded = comparison
        .notes
        .iter()
        .filter(|note| note.excluded())
        .count();
    // The other formats are for programs: what a person should know goes beside them.
    if arguments.format != Format::Table {
        for note in &comparison.notes {
            eprintln!("{note}");
        }
    }
    print!("{}", comparison.render(arguments.format));
    if logs.len() - excluded < 2 {
        return Err(Error::NothingToCompare {
            given: logs.len(),
            comparable: logs.len() - excluded,
        });
    }
    Ok(())
}

/// The folder that was asked for, if it is new or empty, or else a fresh one under `runs/`.
fn folder_for_results(asked: Option<&Path>, name: &str) -> Result<PathBuf, Error> {
    if let Some(asked) = asked {
        fs::create_dir_all(asked).map_err(Error::io(asked, "create"))?;
        let mut entries = fs::read_dir(asked).map_err(Error::io(asked, "read"))?;
        return match entries.next() {
            None => Ok(asked.into()),
            Some(_) => Err(Error::NotEmpty(asked.into())),
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

/// Writes a file that is there as a whole or not at all.
fn write_whole(path: &Path, content: &impl Serialize) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(content).expect("the summary is plain data");
    let draft = path.with_extension("json.partial");
    fs::write(&draft, text + "\n").map_err(Error::io(&draft, "write"))?;
    fs::rename(&draft, path).map_err(Error::io(path, "create"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use gradnorm::RunWriter;

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
