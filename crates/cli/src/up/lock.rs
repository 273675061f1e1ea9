//! One daemon for each home: `daemon.lock`, held for as long as the daemon lives, and let go by the system however it
//! ends.

use std::{
    fs::{File, OpenOptions},
    path::Path,
};

use anyhow::Context;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use super::Address;
use crate::trouble::Trouble;

/// The right to be this home's daemon.
#[derive(Debug)]
pub(super) struct HomeLock(#[expect(dead_code, reason = "it is held, not used")] File);

impl HomeLock {
    /// Takes it, or says who has it.
    pub(super) fn take(home: &Path) -> anyhow::Result<Self> {
        let file = open(&home.join("daemon.lock"))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self(file)),
            Err(Errno::WOULDBLOCK) => {
                let place = match Address::find(home) {
                    Some(address) => format!(" at {} (pid {})", address.url(), address.process.pid),
                    None => String::new(),
                };
                let detail = format!(
                    "a daemon of {} runs already{place}; `abide status` shows it, `abide down` stops it",
                    home.display()
                );
                Err(Trouble::failure("ALREADY_RUNNING", detail).into())
            }
            Err(error) => Err(error).context("cannot lock the home"),
        }
    }
}

/// Waits until nobody else starts a daemon of this home, for as long as the file is kept.
pub(super) fn starting(home: &Path) -> anyhow::Result<File> {
    let file = open(&home.join("starting.lock"))?;
    flock(&file, FlockOperation::LockExclusive).context("cannot lock the home")?;
    Ok(file)
}

fn open(path: &Path) -> anyhow::Result<File> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .with_context(|| format!("cannot use {}", path.display()))
}
