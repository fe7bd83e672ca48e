//! Burn's own attention and ours side by side: seconds and peak memory.
//!
//! `cargo bench -p layers` runs every row, `cargo bench -p layers --features ndarray` both CPU
//! backends, `cargo bench -p layers -- long` the rows whose name contains a word. Every
//! measurement is a process of its own, so that its peak memory is its own; the two sides take
//! turns, and the medians over all turns are shown. The table is Markdown.

#[path = "support/cases.rs"]
mod cases;
#[path = "support/process.rs"]
mod process;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [flag, name, side] if flag == process::CHILD => process::measure(name, side),
        _ => process::compare(arguments.iter().find(|word| !word.starts_with("--"))),
    }
}
