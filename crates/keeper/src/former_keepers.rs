//! Connects to keepers that an earlier version started in a workspace, where agents can write.
//!
//! Files there prove nothing: an agent can create a secret, an identity and a socket, or link to those of another
//! keeper. The kernel's information about the process behind the socket is reliable:
//!
//! - it belongs to this user (`SO_PEERCRED`);
//! - its working directory is this directory, by device and inode. A keeper changes into its directory at its start,
//!   and no other process can be made to do so;
//! - its command line is that of a keeper;
//! - it is in this user namespace, and has no seccomp filter or `no_new_privs` that this process does not have: a
//!   sandboxed agent that starts a keeper cannot remove these;
//! - it started before the present version was first used, if the caller requires that;
//! - it accepts the secret of its directory and its status names it as the keeper.
//!
//! Its program is not compared: the program of an earlier version was replaced, and an agent can run a copy of it. A
//! keeper that passes the checks gets a connection. This module signals and deletes nothing.

use std::{fs, os::unix::fs::MetadataExt};

use abide_os::beneath::Directory;
use rustix::net::sockopt::socket_peercred;

use crate::{
    client::{KeeperConnection, timeouts::LOOKUP_TIMEOUT_MS},
    identity::ProcessIdentity,
    keeper_dir::{KeeperDir, connect_below},
    protocol::KeeperStatus,
};

/// The properties that identify a keeper of an earlier version.
#[derive(Clone, Debug)]
pub struct FormerKeepers {
    /// The arguments with which this program becomes a keeper, the same in all versions.
    pub arguments: Vec<String>,
    /// If set, only keepers that started before this process are accepted.
    pub started_before: Option<ProcessIdentity>,
}

const MAX_SECRET_BYTES: u64 = 32;

impl FormerKeepers {
    /// Connects to the keeper of an earlier version in this directory. None if there is none, or if a check fails.
    pub fn attach(&self, directory: &Directory) -> Option<(KeeperConnection, KeeperStatus)> {
        let secret = directory.read_bounded("secret", MAX_SECRET_BYTES).ok()?;
        let socket = connect_below(directory).ok()?;
        let peer = socket_peercred(&socket).ok()?;
        let process = ProcessIdentity::of(u32::try_from(peer.pid.as_raw_nonzero().get()).ok()?)?;
        if peer.uid != rustix::process::geteuid() || !self.is_verified(&process, directory) {
            return None;
        }
        let keeper_dir = KeeperDir::at(directory.path().to_owned());
        let mut keeper = KeeperConnection::greet(keeper_dir, socket, secret).ok()?.distrusting_files();
        let status = keeper.status(LOOKUP_TIMEOUT_MS).ok()?;
        (status.keeper == process && process.is_alive()).then_some((keeper, status))
    }

    /// Whether the kernel's information about a process matches a keeper in this directory.
    fn is_verified(&self, process: &ProcessIdentity, directory: &Directory) -> bool {
        let pid = process.pid;
        let is_inside = fs::metadata(format!("/proc/{pid}/cwd")).is_ok_and(|found| {
            directory.identity().is_ok_and(|identity| identity == (found.dev(), found.ino()))
        });
        let is_early = self
            .started_before
            .as_ref()
            .is_none_or(|limit| process.boot_id == limit.boot_id && process.start_time <= limit.start_time);
        is_inside && is_early && self.has_arguments(pid) && !has_more_restrictions(pid)
    }

    fn has_arguments(&self, pid: u32) -> bool {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = line.strip_suffix(b"\0").unwrap_or(&line);
        line.split(|byte| *byte == 0).skip(1).eq(self.arguments.iter().map(String::as_bytes))
    }
}

/// Whether a process has restrictions that this process does not have. If they cannot be read, the result is true.
fn has_more_restrictions(pid: u32) -> bool {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/user")).ok();
    let confinement = |pid: &str| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.trim().parse::<u32>().ok()
        };
        Some([number("NoNewPrivs")?, number("Seccomp")?])
    };
    let pid = pid.to_string();
    let (Some(own), Some(other)) = (confinement("self"), confinement(&pid)) else { return true };
    let is_same_namespace = namespace(&pid).is_some_and(|other| Some(other) == namespace("self"));
    !is_same_namespace || other.iter().zip(own).any(|(other, own)| *other > own)
}
