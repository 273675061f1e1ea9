//! A lock that allows one process per state folder: the file `lock`, which the kernel unlocks when the process ends.

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

/// A held lock; dropping it releases the lock.
#[derive(Debug)]
pub(crate) struct StateLock(#[expect(dead_code, reason = "it is held, not used")] File);

/// The reason why the lock was not acquired.
#[derive(Debug)]
pub(crate) enum StateLockError {
    /// Another process holds the lock; its pid, if known.
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

    /// Acquires the lock that an earlier version had in the state folder, if its file exists. The file is not written.
    pub(crate) fn take_former(state: &StateDirectory) -> Result<Option<Self>, StateLockError> {
        // An earlier version made neither links nor FIFOs here.
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
            // The file may be empty.
            file.take(MAX_PID_BYTES).read_to_string(&mut pid).ok();
            Err(StateLockError::Held(pid.trim().parse().ok()))
        }
        Err(error) => Err(StateLockError::Io(error.into())),
    }
}

const MAX_PID_BYTES: u64 = 16;
