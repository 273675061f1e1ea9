//! Where the daemon of a home is: `daemon.json`, written when it listens and taken away when it goes.
//!
//! A daemon that was killed leaves its file behind, so what it says is checked by whoever reads it.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
};

use abide_keeper::identity::ProcessIdentity;
use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::private;

/// The file in the home.
const FILE: &str = "daemon.json";

/// A daemon's place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DaemonAddress {
    /// Where it listens.
    pub(crate) listen: SocketAddr,
    /// Which process it is.
    pub(crate) process: ProcessIdentity,
    /// Which version.
    pub(crate) version: String,
}

impl DaemonAddress {
    /// This process, listening there.
    pub(super) fn new(listen: SocketAddr) -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Self { listen, process: ProcessIdentity::own(), version }
    }

    /// The daemon of this home, if one lives.
    pub(crate) fn find(home: &Path) -> Option<Self> {
        let text = fs::read_to_string(home.join(FILE)).ok()?;
        let address: Self = serde_json::from_str(&text).ok()?;
        address.process.is_alive().then_some(address)
    }

    /// Tells everybody in this home.
    pub(super) fn publish(&self, home: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self).context("an address can be written as JSON")?;
        let staged = home.join(format!("{FILE}.new"));
        private::write(&staged, text.as_bytes())
            .and_then(|()| fs::rename(&staged, home.join(FILE)))
            .with_context(|| format!("cannot write to {}", home.display()))
    }

    /// Takes that back.
    pub(super) fn withdraw(&self, home: &Path) {
        if Self::find(home).as_ref() == Some(self) {
            let _found_dead_by_the_next = fs::remove_file(home.join(FILE));
        }
    }

    /// Its URL, for people and clients on this machine.
    pub(crate) fn url(&self) -> String {
        let ip = match self.listen.ip() {
            ip if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            ip => ip,
        };
        format!("http://{}", SocketAddr::new(ip, self.listen.port()))
    }
}
