//! Identifies a process by its pid, its start time and the boot of the machine.
//!
//! A pid alone is not sufficient, because pids are reused. [`ProcessIdentity::open`] returns a pidfd to signal the
//! process.

use std::fs;
use std::sync::OnceLock;

use abide_os::process::{PidFd, ProcessStat};
use serde::{Deserialize, Serialize};

/// Identifies a process, so that a later process with the same pid is not mistaken for it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessIdentity {
    pub pid: u32,
    /// Start time in clock ticks since boot, as the kernel counts it.
    pub start_time: u64,
    /// The boot id of the kernel.
    pub boot_id: String,
}

impl ProcessIdentity {
    /// The process with this pid, unless it is a zombie.
    pub fn of(pid: u32) -> Option<Self> {
        let stat = ProcessStat::read(pid)?;
        (!stat.is_zombie()).then(|| Self { pid, start_time: stat.start_time, boot_id: boot_id() })
    }

    pub fn own() -> Self {
        let pid = std::process::id();
        Self::of(pid).unwrap_or(Self { pid, start_time: 0, boot_id: boot_id() })
    }

    /// Whether it was started since the last boot.
    pub(crate) fn is_of_this_boot(&self) -> bool {
        self.boot_id == boot_id()
    }

    /// Opens a pidfd to signal the process and wait for it. None if it has ended.
    pub fn open(&self) -> Option<PidFd> {
        PidFd::open_started_at(self.pid, self.start_time).filter(|_| self.is_of_this_boot())
    }

    /// Whether this process is still running.
    pub fn is_alive(&self) -> bool {
        Self::of(self.pid).as_ref() == Some(self)
    }
}

/// Constant for the lifetime of the process, so it is read once.
fn boot_id() -> String {
    static ID: OnceLock<String> = OnceLock::new();
    let read = || fs::read_to_string("/proc/sys/kernel/random/boot_id");
    ID.get_or_init(|| read().map(|id| id.trim().to_owned()).unwrap_or_default()).clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_start_time_is_another_process() {
        let own = ProcessIdentity::own();
        assert!(own.is_alive());
        assert!(!ProcessIdentity { start_time: own.start_time + 1, ..own }.is_alive());
    }
}
