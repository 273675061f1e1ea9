//! The project's own chores: `cargo xtask up`, `test`, `engines`, `stage`, `sim`, `kill`, `load`, `bench`, `tidy` and `ci`.
//!
//! Nothing that a user of Abide runs is here; this binary is never shipped.

mod args;
mod bench;
mod ci;
mod earlier;
mod engines;
mod postgres;
mod schemathesis;
mod shell;
mod siege;
mod sim;
mod skips;
mod stage;
mod stops;
mod stopwatch;
mod test;
mod tidy;
mod tools;
mod up;
mod workspace;

use std::process::ExitCode;

fn main() -> ExitCode {
    args::main()
}
