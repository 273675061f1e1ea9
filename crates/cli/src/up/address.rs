//! The address of a home's daemon: `daemon.json`, written when it listens and removed when it exits.
//!
//! A killed daemon leaves its file behind, so readers check the process identity in it.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    time::Duration,
};

use abide_keeper::identity::ProcessIdentity;
use abide_os::atomic_file::{self, Durability};
use anyhow::Context;
use serde::{Deserialize, Serialize};

const FILE: &str = "daemon.json";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DaemonAddress {
    pub(crate) listen: SocketAddr,
    pub(crate) process: ProcessIdentity,
    pub(crate) version: String,
}

impl DaemonAddress {
    /// The address of this process.
    pub(super) fn new(listen: SocketAddr) -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Self { listen, process: ProcessIdentity::own(), version }
    }

    /// Returns the address of this home's daemon, if it is alive.
    pub(crate) fn find(home: &Path) -> Option<Self> {
        let text = fs::read_to_string(home.join(FILE)).ok()?;
        let address: Self = serde_json::from_str(&text).ok()?;
        address.process.is_alive().then_some(address)
    }

    /// Waits for the exit of the daemon. Returns whether it exited in time.
    pub(crate) fn wait_for_exit(&self, timeout: Duration) -> bool {
        self.process.open().is_none_or(|process| process.wait(timeout))
    }

    pub(super) fn publish(&self, home: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self).context("an address can be written as JSON")?;
        // After a power failure the daemon that it names is gone.
        atomic_file::replace(&home.join(FILE), text.as_bytes(), Durability::ProcessCrash)
            .with_context(|| format!("cannot write to {}", home.display()))
    }

    /// Removes the file, if it is our own.
    pub(super) fn remove(&self, home: &Path) {
        if Self::find(home).as_ref() == Some(self) {
            // A stale file is detected by the process identity in it.
            fs::remove_file(home.join(FILE)).ok();
        }
    }

    /// Returns the URL for clients on this machine.
    pub(crate) fn url(&self) -> String {
        let ip = match self.listen.ip() {
            ip if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            ip => ip,
        };
        format!("http://{}", SocketAddr::new(ip, self.listen.port()))
    }
}
