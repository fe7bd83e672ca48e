//! The program; see the library for what it does.

fn main() -> std::process::ExitCode {
    train::cli::main()
}
