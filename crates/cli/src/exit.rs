//! From a command line to an exit code. The codes are decided here and nowhere else.

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Abide, Command};
use crate::{config, doctor, mcp, parrot, rpc, sessions, up};

/// Runs the program.
pub fn main() -> ExitCode {
    // A keeper must stay small: it is recognised before anything else of this program is touched.
    let mut words = std::env::args_os().skip(1);
    let first = words.next();
    if first.as_ref().is_some_and(|word| word == crate::home::KEEPER) {
        return if abide_keeper::main().is_ok() { SUCCEEDED } else { FAILED };
    }
    if first.as_ref().is_some_and(|word| word == parrot::PARROT) {
        return parrot::main(words);
    }
    let Abide { set, command } = Abide::parse();
    let done = match command {
        Command::Up(arguments) => up::run(&arguments, &set),
        Command::Rpc => rpc::serve(&set).map(|()| SUCCEEDED),
        Command::Mcp => mcp::serve(&set).map(|()| SUCCEEDED),
        Command::Sessions { command } => sessions::run(command, &set),
        Command::Config { command } => config::show::run(&command, &set),
        Command::Doctor(arguments) => doctor::run(&arguments, &set),
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
/// Nobody could know what was asked for.
pub(crate) fn usage() -> ExitCode {
    ExitCode::from(2)
}
/// A person stopped it.
pub(crate) fn interrupted() -> ExitCode {
    ExitCode::from(130)
}
