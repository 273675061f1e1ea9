//! Killing a group without `cgroup.kill`.

use std::time::Duration;

use rustix::process::Signal;

use super::{CgroupError, ControlGroup};
use crate::process::PidFd;

/// Maximum number of rounds in which the processes of a group are listed and killed.
const MAX_ROUNDS: u32 = 100;
const ROUND_WAIT: Duration = Duration::from_millis(10);
/// Maximum number of groups in one round.
const MAX_GROUPS: usize = 1_000;

/// Freezes the group, so that its processes cannot fork, and kills them. SIGKILL also ends frozen processes.
pub(super) fn kill_one_by_one(group: &ControlGroup) -> Result<(), CgroupError> {
    // Without the freezer (before 5.2), processes forked meanwhile are found in the next round.
    group.write("cgroup.freeze", "1").ok();
    for _ in 0..MAX_ROUNDS {
        for member in with_descendants(group) {
            for pid in member.processes().unwrap_or_default() {
                // The pidfd is opened before the list is read again. If the pid is still listed then, the pidfd refers
                // to the listed process.
                let process = PidFd::open(pid, |_| {
                    member.processes().is_ok_and(|listed| listed.contains(&pid)) && pid != std::process::id()
                });
                if let Some(process) = process {
                    // A process of another user cannot be killed and keeps the group populated.
                    process.signal(Signal::KILL).ok();
                }
            }
        }
        if group.wait_until_empty(ROUND_WAIT) {
            return Ok(());
        }
    }
    group.write("cgroup.freeze", "0").ok();
    Err(CgroupError::Populated { path: group.path().to_owned() })
}

/// A group and all groups below it.
fn with_descendants(group: &ControlGroup) -> Vec<ControlGroup> {
    let mut found = vec![group.clone()];
    let mut next = 0;
    while let Some(parent) = found.get(next).cloned()
        && found.len() < MAX_GROUPS
    {
        found.extend(parent.children().iter().map(|name| ControlGroup::at(parent.path().join(name))));
        next += 1;
    }
    found
}
