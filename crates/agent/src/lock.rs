//! One process for each state folder: a file `lock`, held for as long as the process lives, and released by the system
//! however the process ends.

use std::{
    fs::File,
    io::{self, Read, Seek, Write},
    path::Path,
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use crate::{private, state::StateDirectory};

/// The right to write here.
#[derive(Debug)]
pub(crate) struct StateLock(#[expect(dead_code, reason = "it is held, not used")] File);

/// Why it was not given.
#[derive(Debug)]
pub(crate) enum StateLockError {
    /// Somebody has it: this process, if it could be found out.
    Held(Option<u32>),
    Io(io::Error),
}

impl StateLock {
    pub(crate) fn take(folder: &Path) -> Result<Self, StateLockError> {
        let path = folder.join("lock");
        let mut options = private::options();
        options.create(true).truncate(false).read(true).write(true);
        let mut file = private::open(&mut options, &path).map_err(StateLockError::Io)?;
        lock(&file)?;
        let write = |file: &mut File| {
            file.set_len(0)?;
            file.rewind()?;
            writeln!(file, "{}", std::process::id())
        };
        write(&mut file).map_err(StateLockError::Io)?;
        Ok(Self(file))
    }

    /// Takes the lock that an earlier version had in the state folder, if there is one. The file is not written.
    pub(crate) fn take_former(state: &StateDirectory) -> Result<Option<Self>, StateLockError> {
        // A link or a FIFO was not made by an earlier version.
        let Ok(file) = state.directory().open_file("lock") else { return Ok(None) };
        lock(&file)?;
        Ok(Some(Self(file)))
    }
}

fn lock(file: &File) -> Result<(), StateLockError> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => {
            let mut pid = String::new();
            // It may be empty.
            file.take(MAX_PID_BYTES).read_to_string(&mut pid).ok();
            Err(StateLockError::Held(pid.trim().parse().ok()))
        }
        Err(error) => Err(StateLockError::Io(error.into())),
    }
}

const MAX_PID_BYTES: u64 = 16;
