//! One process a measurement, and the table.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::cases::{self, Case, Side};

/// The flag that makes this program measure one case and leave.
pub const CHILD: &str = "--measure-one";

/// A case is repeated for at least this long, and at least [`REPETITIONS`] times.
const AT_LEAST: Duration = Duration::from_millis(300);
const REPETITIONS: usize = 3;

/// Measures one side of one case and prints seconds (median) and bytes (peak of the process).
pub fn measure(name: &str, side: &str) {
    let case = cases::all()
        .into_iter()
        .find(|case| case.name == name)
        .unwrap_or_else(|| panic!("no case is named {name}"));
    let side = match side {
        "burn" => Side::Burn,
        _ => Side::Ours,
    };
    let mut run = case.prepared(side);
    let first = Instant::now();
    run();
    let mut times = Vec::new();
    // What takes seconds is measured from its first run on.
    if first.elapsed() > Duration::from_secs(3) {
        times.push(first.elapsed().as_secs_f64());
    }
    let begin = Instant::now();
    while times.is_empty()
        || (begin.elapsed() < AT_LEAST || times.len() < REPETITIONS)
            && first.elapsed() < Duration::from_secs(6)
    {
        let start = Instant::now();
        run();
        times.push(start.elapsed().as_secs_f64());
    }
    println!("{} {}", median(times), peak_bytes());
}

/// The peak of this process's resident memory, 0 where the system does not tell.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
        .map_or(0, |kibibytes| kibibytes * 1024)
}

/// Measures all cases whose name contains the word, in turns, and prints the table.
pub fn compare(word: Option<&String>) {
    println!("| case | Burn | ours | times as fast | Burn's peak | our peak |");
    println!("|---|---|---|---|---|---|");
    for case in cases::all() {
        if word.is_some_and(|word| !case.name.contains(word.as_str())) {
            continue;
        }
        let (mut burn, mut ours) = (Vec::new(), Vec::new());
        for _ in 0..case.turns {
            if case.burn {
                burn.push(child(&case, "burn"));
            }
            ours.push(child(&case, "ours"));
        }
        let side = |turns: &[(f64, u64)]| {
            let seconds = median(turns.iter().map(|turn| turn.0).collect());
            let peak = turns.iter().map(|turn| turn.1).max().unwrap_or(0);
            (seconds, peak as f64 / f64::from(1 << 20))
        };
        let (seconds, peak) = side(&ours);
        match case.burn {
            true => {
                let (burn_seconds, burn_peak) = side(&burn);
                println!(
                    "| {} | {} | {} | {:.2} | {burn_peak:.0} MiB | {peak:.0} MiB |",
                    case.name,
                    milliseconds(burn_seconds),
                    milliseconds(seconds),
                    burn_seconds / seconds,
                );
            }
            false => println!(
                "| {} | not run | {} | | | {peak:.0} MiB |",
                case.name,
                milliseconds(seconds)
            ),
        }
    }
}

fn child(case: &Case, side: &str) -> (f64, u64) {
    let program = std::env::current_exe().expect("the path of this program");
    let output = Command::new(program)
        .args([CHILD, &case.name, side])
        .output()
        .expect("this program starts once more");
    let text = String::from_utf8_lossy(&output.stdout);
    let mut words = text.split_whitespace();
    let parsed = words
        .next()
        .and_then(|word| word.parse().ok())
        .zip(words.next().and_then(|word| word.parse().ok()));
    parsed.unwrap_or_else(|| {
        let reason = String::from_utf8_lossy(&output.stderr);
        panic!("{} ({side}) failed: {reason}", case.name)
    })
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn milliseconds(seconds: f64) -> String {
    let milliseconds = seconds * 1e3;
    match milliseconds {
        small if small < 1.0 => format!("{small:.3} ms"),
        medium if medium < 100.0 => format!("{medium:.1} ms"),
        large => format!("{large:.0} ms"),
    }
}
