//! A lock that allows one process per state folder: the file `lock`, which the kernel unlocks when the process ends.

use std::{fs::File, io, path::Path};

use abide_os::{
    file_lock::{FileLock, FileLockError},
    private_file,
};

use crate::state_directory::StateDirectory;

/// A held lock; dropping it releases the lock.
#[derive(Debug)]
pub(crate) struct StateLock(#[expect(dead_code, reason = "it is held, not used")] FileLock);

/// The reason why the lock was not acquired.
#[derive(Debug)]
pub(crate) enum StateLockError {
    /// Another process holds the lock; its pid, if known.
    Held(Option<u32>),
    Io(io::Error),
}

impl StateLock {
    pub(crate) fn acquire(folder: &Path) -> Result<Self, StateLockError> {
        let path = folder.join("lock");
        let options = &mut File::options();
        options.create(true).truncate(false).read(true).write(true);
        let mut lock = acquire(private_file::open(options, &path).map_err(StateLockError::Io)?)?;
        lock.set_text(&format!("{}\n", std::process::id())).map_err(StateLockError::Io)?;
        Ok(Self(lock))
    }

    /// Acquires the lock that an earlier version had in the state folder, if its file exists. The file is not written.
    pub(crate) fn acquire_former(state: &StateDirectory) -> Result<Option<Self>, StateLockError> {
        // An earlier version made neither links nor FIFOs here.
        let Ok(file) = state.directory().open_file("lock") else { return Ok(None) };
        acquire(file).map(|lock| Some(Self(lock)))
    }
}

fn acquire(file: File) -> Result<FileLock, StateLockError> {
    FileLock::try_acquire(file).map_err(|error| match error {
        FileLockError::Held(pid) => StateLockError::Held(pid.parse().ok()),
        FileLockError::Io(error) => StateLockError::Io(error),
    })
}
