//! `learner [DIRECTORY] [EPOCHS]`: trains, with the log files in the directory.

use std::process::ExitCode;

use burn::tensor::Device;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().unwrap_or_else(|| "runs/learner".into());
    let epochs = arguments.next().map_or(Ok(4), |epochs| epochs.parse());
    match (epochs, arguments.next()) {
        (Ok(epochs), None) if !dir.starts_with('-') => {
            // Burn's log files are written by another thread, which can only panic.
            if let Err(error) = std::fs::create_dir_all(&dir) {
                eprintln!("learner: {dir}: {error}");
                return ExitCode::FAILURE;
            }
            let model = learner::train(&dir, epochs, &Device::default());
            println!("{model}\nthe logs are in {dir}");
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("usage: learner [DIRECTORY] [EPOCHS]");
            ExitCode::from(2)
        }
    }
}
