//! One daemon per home: `daemon.lock` is held for the lifetime of the daemon and released by the system when it exits.

use std::{
    fs::{File, OpenOptions},
    path::Path,
    time::Duration,
};

use anyhow::Context;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use super::{DaemonAddress, background::pause};
use crate::{private, trouble::CliError};

/// Interval and number of attempts to take the lock.
const MOMENT: Duration = Duration::from_millis(20);
const TRIES: u32 = 5;

/// Exclusive lock of a home.
#[derive(Debug)]
pub(crate) struct HomeLock(#[expect(dead_code, reason = "it is held, not used")] File);

impl HomeLock {
    /// Takes the lock. The error names the running daemon, if its address is known.
    pub(crate) fn take(home: &Path) -> anyhow::Result<Self> {
        let file = open(&home.join("daemon.lock"))?;
        // A daemon that is exiting, or a process that only checks the lock, holds it briefly.
        for _ in 0..TRIES {
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                return Ok(Self(file));
            }
            pause(MOMENT);
        }
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self(file)),
            Err(Errno::WOULDBLOCK) => {
                let place = match DaemonAddress::find(home) {
                    Some(address) => format!(" at {} (pid {})", address.url(), address.process.pid),
                    None => String::new(),
                };
                let detail = format!(
                    "a daemon of {} runs already{place}; `abide status` shows it, `abide down` stops it",
                    home.display()
                );
                Err(CliError::failure("ALREADY_RUNNING", detail).into())
            }
            Err(error) => Err(error).context("cannot lock the home"),
        }
    }
}

/// Returns whether a daemon of this home is running, starting or exiting.
pub(super) fn is_held(home: &Path) -> bool {
    let Ok(file) = open(&home.join("daemon.lock")) else { return false };
    flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
}

/// Takes the lock for starting a daemon, and waits while another process holds it. Dropping the file releases it.
pub(super) fn starting(home: &Path) -> anyhow::Result<File> {
    let file = open(&home.join("starting.lock"))?;
    flock(&file, FlockOperation::LockExclusive).context("cannot lock the home")?;
    Ok(file)
}

fn open(path: &Path) -> anyhow::Result<File> {
    private::open(OpenOptions::new().create(true).truncate(false).write(true), path)
        .with_context(|| format!("cannot use {}", path.display()))
}
