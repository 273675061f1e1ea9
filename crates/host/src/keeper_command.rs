//! The hidden subcommands of this program: the keeper, and the helper that confines a program before it is executed.

use std::{ffi::OsString, path::PathBuf, process::ExitCode};

pub use abide_keeper::launch::KeeperLauncher;
use abide_keeper::{confine, control_group::ControlGroupConfig};

/// The subcommand that runs a keeper.
pub const KEEPER_SUBCOMMAND: &str = "__keeper";

/// Returns the launcher that starts `program`, the running one, as a keeper.
pub fn launcher(program: PathBuf, groups: Option<ControlGroupConfig>) -> KeeperLauncher {
    KeeperLauncher { program, arguments: vec![KEEPER_SUBCOMMAND.to_owned()], groups }
}

/// Runs a hidden subcommand to its end. Returns `None` if the arguments name none. It is called before anything else,
/// because a keeper must stay small.
pub fn run_hidden(mut arguments: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    let subcommand = arguments.next()?;
    if subcommand == KEEPER_SUBCOMMAND {
        return Some(if abide_keeper::main().is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    (subcommand == confine::CONFINE_SUBCOMMAND).then(|| confine::main(arguments))
}
