//! Who a process is: its pid, when it started, and in which boot of the machine.
//!
//! A pid alone is never believed, because pids are reused. [`ProcessIdentity::open`] gives a pidfd to signal it through.

use std::fs;
use std::sync::OnceLock;

use abide_os::process::{PidFd, ProcessStat};
use serde::{Deserialize, Serialize};

/// A process, named so that a later process with the same pid is somebody else.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// The process id.
    pub pid: u32,
    /// Start time in clock ticks since boot, as the kernel counts it.
    pub start_time: u64,
    /// The kernel's id of this boot.
    pub boot_id: String,
}

impl ProcessIdentity {
    /// The process that runs under this pid now, if there is one that is not a zombie.
    pub fn of(pid: u32) -> Option<Self> {
        let stat = ProcessStat::read(pid)?;
        (!stat.is_zombie()).then(|| Self { pid, start_time: stat.start_time, boot_id: boot_id() })
    }

    /// This very process.
    pub fn own() -> Self {
        let pid = std::process::id();
        Self::of(pid).unwrap_or(Self { pid, start_time: 0, boot_id: boot_id() })
    }

    /// Whether it was started in this boot of the machine.
    pub(crate) fn is_of_this_boot(&self) -> bool {
        self.boot_id == boot_id()
    }

    /// A reference to the process through which it can be signalled and waited for. None if it has ended.
    pub fn open(&self) -> Option<PidFd> {
        PidFd::open_started_at(self.pid, self.start_time).filter(|_| self.is_of_this_boot())
    }

    /// Whether that same process still runs.
    pub fn is_alive(&self) -> bool {
        Self::of(self.pid).as_ref() == Some(self)
    }
}

/// Nobody lives to see another boot.
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
