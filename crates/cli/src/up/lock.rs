//! One daemon per home: `daemon.lock` is held for the lifetime of the daemon and released by the system when it exits.

use std::{
    fs::{File, OpenOptions},
    path::Path,
    time::Duration,
};

use abide_os::{
    file_lock::{self, FileLock, FileLockError},
    private_file,
};
use anyhow::Context;

use super::{DaemonAddress, background::sleep};
use crate::error::CliError;

/// Interval and number of attempts to take the lock.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
const MAX_ATTEMPTS: u32 = 5;

/// Exclusive lock of a home.
#[derive(Debug)]
pub(crate) struct HomeLock(#[expect(dead_code, reason = "it is held, not used")] FileLock);

impl HomeLock {
    /// Takes the lock. The error names the running daemon, if its address is known.
    pub(crate) fn take(home: &Path) -> anyhow::Result<Self> {
        let path = home.join("daemon.lock");
        // A daemon that is exiting, or a process that only checks the lock, holds it briefly.
        for _ in 0..MAX_ATTEMPTS {
            if let Ok(lock) = FileLock::try_acquire(open_lock_file(&path)?) {
                return Ok(Self(lock));
            }
            sleep(RETRY_INTERVAL);
        }
        match FileLock::try_acquire(open_lock_file(&path)?) {
            Ok(lock) => Ok(Self(lock)),
            Err(FileLockError::Held(_)) => {
                let location = match DaemonAddress::find(home) {
                    Some(address) => format!(" at {} (pid {})", address.url(), address.process.pid),
                    None => String::new(),
                };
                let detail = format!(
                    "a daemon of {} is already running{location}; `abide status` shows it, `abide down` stops it",
                    home.display()
                );
                Err(CliError::failure("ALREADY_RUNNING", detail).into())
            }
            Err(FileLockError::Io(error)) => Err(error).context("cannot lock the home"),
        }
    }
}

/// Returns whether a daemon of this home is running, starting or exiting.
pub(super) fn is_held(home: &Path) -> bool {
    open_lock_file(&home.join("daemon.lock")).is_ok_and(|file| file_lock::is_held(&file))
}

/// Takes the lock for starting a daemon, and waits while another process holds it.
pub(super) fn lock_start(home: &Path) -> anyhow::Result<FileLock> {
    FileLock::acquire(open_lock_file(&home.join("starting.lock"))?).context("cannot lock the home")
}

fn open_lock_file(path: &Path) -> anyhow::Result<File> {
    private_file::open(OpenOptions::new().create(true).truncate(false).read(true).write(true), path)
        .with_context(|| format!("cannot use {}", path.display()))
}
