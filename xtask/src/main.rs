//! The development commands of this repository: `cargo xtask up`, `test`, `engines`, `playground`, `sim`, `kill`,
//! `load`, `bench`, `tidy` and `ci`.
//!
//! This binary is never shipped; commands for users are in `abide`.

mod args;
mod bench;
mod ci;
mod crash_tests;
mod earlier;
mod engines;
mod playground;
mod postgres;
mod schemathesis;
mod shell;
mod sim;
mod skips;
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
