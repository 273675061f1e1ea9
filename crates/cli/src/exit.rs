//! From a command line to an exit code. The codes are decided here and nowhere else.

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Abide, Command};
use crate::{mcp, rpc, sessions};

/// Runs the program.
pub fn main() -> ExitCode {
    // A keeper must stay small: it is recognised before anything else of this program is touched.
    if std::env::args_os().nth(1).is_some_and(|word| word == crate::home::KEEPER) {
        return if abide_keeper::main().is_ok() { SUCCEEDED } else { FAILED };
    }
    let done = match Abide::parse().command {
        Command::Rpc => rpc::serve().map(|()| SUCCEEDED),
        Command::Mcp => mcp::serve().map(|()| SUCCEEDED),
        Command::Sessions { command } => sessions::run(command),
    };
    done.unwrap_or_else(|error| {
        eprintln!("abide: {error:#}");
        FAILED
    })
}

/// It was done.
pub(crate) const SUCCEEDED: ExitCode = ExitCode::SUCCESS;
/// It was not.
pub(crate) const FAILED: ExitCode = ExitCode::FAILURE;
