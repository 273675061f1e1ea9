//! One daemon for each home: `daemon.lock`, held for as long as the daemon lives, and let go by the system however it
//! ends.

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

/// How long a moment is, and how many of them are waited for the lock.
const MOMENT: Duration = Duration::from_millis(20);
const TRIES: u32 = 5;

/// The right to be this home's daemon.
#[derive(Debug)]
pub(crate) struct HomeLock(#[expect(dead_code, reason = "it is held, not used")] File);

impl HomeLock {
    /// Takes it, or says who has it.
    pub(crate) fn take(home: &Path) -> anyhow::Result<Self> {
        let file = open(&home.join("daemon.lock"))?;
        // A daemon that is going, or somebody who only looks, holds it for a moment.
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

/// Whether a daemon of this home lives, or is on its way up or down.
pub(super) fn is_held(home: &Path) -> bool {
    let Ok(file) = open(&home.join("daemon.lock")) else { return false };
    flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
}

/// Waits until nobody else starts a daemon of this home, for as long as the file is kept.
pub(super) fn starting(home: &Path) -> anyhow::Result<File> {
    let file = open(&home.join("starting.lock"))?;
    flock(&file, FlockOperation::LockExclusive).context("cannot lock the home")?;
    Ok(file)
}

fn open(path: &Path) -> anyhow::Result<File> {
    private::open(OpenOptions::new().create(true).truncate(false).write(true), path)
        .with_context(|| format!("cannot use {}", path.display()))
}
