//! Translates errors of keepers into those of the process port.

use abide_keeper::{KeeperError, client::KeeperLookup, protocol::KeeperRefusal};
use abide_ports::processes::{ProcessUnreachable, StartError};

pub(super) fn not_started_error() -> StartError {
    StartError::SystemError("its keeper never received a program to start".to_owned())
}

pub(super) fn start_error(error: KeeperError) -> StartError {
    match error {
        KeeperError::Refused(KeeperRefusal::Program(program)) => StartError::ProgramUnusable(program),
        KeeperError::Refused(KeeperRefusal::Directory(directory)) => StartError::DirectoryUnusable(directory),
        KeeperError::Unresponsive { .. } => StartError::Unresponsive,
        KeeperError::Refused(_)
        | KeeperError::NoKeeper { .. }
        | KeeperError::Protocol(_)
        | KeeperError::System { .. } => StartError::SystemError(error.to_string()),
    }
}

pub(super) fn unreachable_error(reason: impl ToString) -> ProcessUnreachable {
    ProcessUnreachable { reason: reason.to_string() }
}

/// Why a keeper that was looked up cannot be used.
pub(super) fn lookup_error(lookup: &KeeperLookup) -> ProcessUnreachable {
    unreachable_error(match lookup {
        KeeperLookup::Unresponsive | KeeperLookup::Alive(..) => "its keeper does not answer",
        KeeperLookup::Exited(..) => "it has ended",
        KeeperLookup::Lost | KeeperLookup::NotStarted | KeeperLookup::Absent => "its keeper is gone",
    })
}
