//! Facts about processes from `/proc`.

use std::fs;

/// Whether a process with this pid runs and is not a zombie.
pub fn is_running(pid: u32) -> bool {
    stat_fields(pid).is_some_and(|fields| !fields.starts_with('Z'))
}

/// Returns the parent of a process; `None` if there is no such process.
pub fn parent(pid: u32) -> Option<u32> {
    stat_fields(pid)?.split(' ').nth(1)?.parse().ok()
}

/// Returns the peak resident memory of a process, in bytes.
///
/// # Panics
///
/// If there is no such process.
#[track_caller]
pub fn peak_memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux reports it");
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().expect("it is a number") << 10
}

/// Returns the fields after the name, which may contain spaces and parentheses. The first one is the state.
fn stat_fields(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(") ")?.1.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_runs_has_a_parent_and_takes_memory() {
        let own = std::process::id();
        assert!(is_running(own) && parent(own).is_some_and(is_running));
        assert!(peak_memory(own) > 1 << 20);
        assert!(!is_running(u32::MAX) && parent(u32::MAX).is_none());
    }
}
