//! Who a process is: its pid, when it started, and in which boot of the machine.
//!
//! A pid alone is never believed, because pids are reused. Signals are not sent from here.

use std::fs;

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
        let stat = Stat::read(pid)?;
        (stat.state != b'Z').then(|| Self { pid, start_time: stat.start_time, boot_id: boot_id() })
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

    /// Whether that same process still runs.
    pub fn is_alive(&self) -> bool {
        Self::of(self.pid).as_ref() == Some(self)
    }
}

/// The part of `/proc/PID/stat` that the keeper needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stat {
    pub(crate) state: u8,
    pub(crate) parent: u32,
    pub(crate) group: u32,
    pub(crate) session: u32,
    pub(crate) start_time: u64,
}

impl Stat {
    pub(crate) fn read(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// The name in brackets may itself hold spaces and brackets, so fields are counted from the last one.
    fn parse(line: &str) -> Option<Self> {
        let (_, rest) = line.rsplit_once(") ")?;
        let mut fields = rest.split(' ');
        let state = *fields.next()?.as_bytes().first()?;
        let parent = fields.next()?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        let session = fields.next()?.parse().ok()?;
        let start_time = fields.nth(15)?.parse().ok()?;
        Some(Self { state, parent, group, session, start_time })
    }
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_does_not_shift_the_fields() {
        let stat = Stat::parse("7 (a) R (b) S 3 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4242 0").unwrap();
        assert_eq!((stat.state, stat.parent, stat.start_time), (b'S', 3, 4242));
        assert_eq!((stat.group, stat.session), (7, 7));
    }

    #[test]
    fn another_start_time_is_another_process() {
        let own = ProcessIdentity::own();
        assert!(own.is_alive());
        assert!(!ProcessIdentity { start_time: own.start_time + 1, ..own }.is_alive());
    }
}
