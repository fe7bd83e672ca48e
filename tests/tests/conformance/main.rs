//! Attention cases from elsewhere, one test a case and backend.
//!
//! Runs every `.safetensors` file below the directory in the environment variable
//! `ATTENTION_CASES`, which defaults to the project's own (`tests/data/cases`, whose README
//! describes the form), forward and backward, with and without autodiff, with and without weights
//! asked. An attribute or a tensor that the runner does not know fails the case.

mod case;
mod mha;
mod onnx;
mod report;
mod sdpa;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use burn::tensor::Device;
use libtest_mimic::{Arguments, Trial};
use tests::{TestBackend, backends};

use case::Case;
use report::Report;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let directory = directory();
    let mut files = Vec::new();
    collect(&directory, &mut files);
    files.sort();
    if files.is_empty() {
        eprintln!("no .safetensors file below {}", directory.display());
        return ExitCode::FAILURE;
    }
    let backends = backends();
    let report = Arc::new(Report::new(&backends));
    let trials = backends
        .iter()
        .flat_map(|backend| {
            files
                .iter()
                .map(|file| trial(backend, file, &directory, &report))
        })
        .collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    if !arguments.list {
        print!("{report}");
    }
    conclusion.exit_code()
}

fn directory() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let Some(given) = std::env::var_os("ATTENTION_CASES") else {
        return package.join("data/cases");
    };
    // Cargo runs tests in the directory of their package, but the caller stands elsewhere.
    let from_workspace = package.join("..").join(&given);
    match from_workspace.exists() {
        true => from_workspace,
        false => given.into(),
    }
}

/// Every case below a directory, or the one file.
fn collect(path: &Path, files: &mut Vec<PathBuf>) {
    if let Ok(entries) = std::fs::read_dir(path) {
        for entry in entries.flatten() {
            collect(&entry.path(), files);
        }
    } else if path.extension().is_some_and(|end| end == "safetensors") {
        files.push(path.to_owned());
    }
}

fn trial(backend: &TestBackend, file: &Path, directory: &Path, report: &Arc<Report>) -> Trial {
    let name = file.strip_prefix(directory).unwrap_or(file);
    let name = name.with_extension("").display().to_string();
    // The one allowed gap: a backend may lack a half-precision type. It then refuses it itself.
    let lacking = match Case::read(file) {
        Ok(case) => case
            .half_types()
            .find(|dtype| !backend.device.supports_dtype(*dtype)),
        Err(_) => None,
    };
    if let Some(dtype) = lacking {
        report.skipped(backend.name, &name, dtype);
    }
    let run = {
        let (backend, file, report) = (backend.clone(), file.to_owned(), report.clone());
        move || {
            let result = run(&file, &backend.device);
            report.ran(backend.name, result.is_ok());
            result.map_err(Into::into)
        }
    };
    Trial::test(format!("{}::{name}", backend.name), run).with_ignored_flag(lacking.is_some())
}

fn run(file: &Path, device: &Device) -> Result<(), String> {
    let case = Case::read(file)?;
    match case.operator.as_str() {
        "Attention" => onnx::run(&case, device)?,
        "sdpa" => sdpa::run(&case, device)?,
        "mha" => mha::run(&case, device)?,
        other => return Err(format!("not supported: operator {other}")),
    }
    case.verdict()
}
