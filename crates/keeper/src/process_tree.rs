//! Finds and signals the descendants of a process. It only reads `/proc` and starts no processes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use abide_os::process::{PidFd, ProcessStat};
use rustix::fs::{Mode, OFlags, open, readlinkat_raw};
use rustix::process::{Pid, Signal, kill_process};

/// The direct children of a process, zombies included.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    match fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")) {
        Ok(list) => list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect(),
        Err(_) => {
            all_stats().into_iter().filter(|(_, stat)| stat.parent == pid).map(|(pid, _)| pid).collect()
        }
    }
}

/// The open file with the direct children of a process. It is read after every command.
#[derive(Debug)]
pub(crate) struct ChildList {
    pid: u32,
    list: Option<File>,
}

impl ChildList {
    pub(crate) fn of(pid: u32) -> Self {
        Self { pid, list: File::open(format!("/proc/{pid}/task/{pid}/children")).ok() }
    }

    pub(crate) fn pids(&self) -> Vec<u32> {
        let mut buffer = [0; 1024];
        match self.list.as_ref().map(|list| list.read_at(&mut buffer, 0)) {
            Some(Ok(0)) => Vec::new(),
            Some(Ok(count)) if count < buffer.len() => {
                let list = String::from_utf8_lossy(buffer.get(..count).unwrap_or_default());
                list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
            }
            Some(_) | None => children(self.pid),
        }
    }
}

/// The open directory of a process's descriptors. It is read after every command; keeping it open halves the cost.
#[derive(Debug)]
pub(crate) struct DescriptorDir {
    directory: Option<OwnedFd>,
}

impl DescriptorDir {
    pub(crate) fn of(pid: u32) -> Self {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Self { directory: open(format!("/proc/{pid}/fd"), flags, Mode::empty()).ok() }
    }

    /// Whether the descriptor is open. True if that cannot be determined.
    pub(crate) fn is_open(&self, number: &str) -> bool {
        let Some(directory) = &self.directory else { return true };
        readlinkat_raw(directory, number, &mut [0u8; 1]) != Err(rustix::io::Errno::NOENT)
    }

    /// Whether the `/proc` link of a descriptor has this target.
    pub(crate) fn has_target(&self, number: &str, name: &Path) -> bool {
        let Some(directory) = &self.directory else { return false };
        let mut buffer = [0u8; 64];
        let found = readlinkat_raw(directory, number, &mut buffer);
        found.is_ok_and(|found| {
            found == name.as_os_str().as_bytes().len()
                && buffer.get(..found) == Some(name.as_os_str().as_bytes())
        })
    }
}

/// A process found in `/proc`. It is signalled only if the pid still belongs to the same process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ProcessKey {
    pub(crate) pid: u32,
    start_time: u64,
}

impl ProcessKey {
    /// The process with this pid.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        Some(Self { pid, start_time: ProcessStat::read(pid)?.start_time })
    }

    /// Sends a signal, unless the process is gone or its pid was reused (SECURITY 23).
    pub(crate) fn signal(self, signal: Signal) {
        if let Some(process) = PidFd::open_started_at(self.pid, self.start_time) {
            // The process may belong to another user, which is not an error.
            process.signal(signal).ok();
        } else if let Some(stat) = ProcessStat::read(self.pid)
            && (stat.start_time, stat.parent) == (self.start_time, std::process::id())
            && let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw)
        {
            // Without pidfds only children of this process are signalled, because they keep their pid until they are
            // reaped.
            kill_process(pid, signal).ok();
        }
    }
}

/// All descendants of `root`, except the subtrees of `spared`. Zombies are left out.
pub(crate) fn descendants(root: u32, excluded_pids: &[u32]) -> Vec<ProcessKey> {
    let stats = all_stats();
    let mut found = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for (pid, stat) in stats.iter().filter(|(_, stat)| stat.parent == parent) {
            if excluded_pids.contains(pid) {
                continue;
            }
            parents.push(*pid);
            if !stat.is_zombie() {
                found.push(ProcessKey { pid: *pid, start_time: stat.start_time });
            }
        }
    }
    found
}

/// The same for a process with a pidfd. Empty if it has ended, because its pid may have been reused.
pub(crate) fn descendants_of(root: &PidFd, excluded_pids: &[u32]) -> Vec<ProcessKey> {
    let found = descendants(root.pid(), excluded_pids);
    if root.has_ended() { Vec::new() } else { found }
}

/// All descendants of `root`, zombies included. It reads only their entries where the kernel provides lists of
/// children.
pub(crate) fn descendants_with_zombies(root: u32) -> Vec<u32> {
    if !Path::new("/proc/thread-self/children").exists() {
        return descendants(root, &[]).into_iter().map(|process| process.pid).collect();
    }
    let (mut found, mut parents) = (Vec::new(), vec![root]);
    while let Some(parent) = parents.pop() {
        for thread in threads(parent) {
            let list = fs::read_to_string(format!("/proc/{parent}/task/{thread}/children"));
            let children = list.unwrap_or_default();
            for child in children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()) {
                found.push(child);
                parents.push(child);
            }
        }
    }
    found
}

/// The threads of a process.
pub(crate) fn threads(pid: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// The processes left in a process group of a session whose leader has exited. Both numbers stay reserved while a
/// process is left, so they cannot have been reused.
pub(crate) fn processes_in_group(group: u32, session: u32) -> Vec<ProcessKey> {
    living_processes(|stat| stat.group == group && stat.session == session)
}

/// The processes left in a session whose leader has exited. Its number stays reserved while a process is left.
pub(crate) fn processes_in_session(session: u32) -> Vec<ProcessKey> {
    living_processes(|stat| stat.session == session)
}

fn living_processes(predicate: impl Fn(&ProcessStat) -> bool) -> Vec<ProcessKey> {
    let living = all_stats().into_iter().filter(|(_, stat)| predicate(stat) && !stat.is_zombie());
    living.map(|(pid, stat)| ProcessKey { pid, start_time: stat.start_time }).collect()
}

/// Whether a process is stopped by a signal.
pub(crate) fn is_stopped(pid: u32) -> bool {
    ProcessStat::read(pid).is_some_and(|stat| stat.state == b'T')
}

/// Whether a process is stopped by a signal or by a process that traces it.
pub(crate) fn is_stopped_or_traced(pid: u32) -> bool {
    ProcessStat::read(pid).is_some_and(|stat| matches!(stat.state, b'T' | b't'))
}

/// How a process reacts to a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SignalDisposition {
    /// A handler is installed.
    Caught,
    Ignored,
    /// The default action applies, or the process is gone.
    Default,
}

/// How a process reacts to this signal.
pub(crate) fn disposition(pid: u32, signal: Signal) -> SignalDisposition {
    if is_in_mask(pid, signal, &["SigIgn:"]) {
        SignalDisposition::Ignored
    } else if is_in_mask(pid, signal, &["SigCgt:"]) {
        SignalDisposition::Caught
    } else {
        SignalDisposition::Default
    }
}

/// Whether this signal is pending for a process.
pub(crate) fn is_pending(pid: u32, signal: Signal) -> bool {
    is_in_mask(pid, signal, &["SigPnd:", "ShdPnd:"])
}

/// Whether one of these masks in `/proc/PID/status` contains the signal.
fn is_in_mask(pid: u32, signal: Signal, names: &[&str]) -> bool {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { return false };
    let bit = 1u64 << (signal.as_raw() - 1);
    let masks = status.lines().filter_map(|line| names.iter().find_map(|name| line.strip_prefix(name)));
    masks.filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok()).any(|mask| mask & bit != 0)
}

/// Whether a process is a fork of another that has not executed a program since: a subshell.
pub(crate) fn is_fork_of(pid: u32, of: u32) -> bool {
    let image = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // Each `exec` chooses a new start address of the stack.
        let stack = stat.rsplit_once(") ")?.1.split(' ').nth(25)?.to_owned();
        Some((executable(pid)?, stack, fs::read(format!("/proc/{pid}/cmdline")).ok()?))
    };
    image(pid).is_some_and(|own| Some(own) == image(of))
}

/// Waits up to a short time limit until a process that got SIGSTOP has stopped or ended.
pub(crate) fn await_stopped(pid: u32) {
    let poll_interval = rustix::event::Timespec { tv_sec: 0, tv_nsec: 200_000 };
    for turn in 0..MAX_STOP_CHECKS {
        match ProcessStat::read(pid).map(|stat| stat.state) {
            None | Some(b'T' | b't' | b'Z' | b'X') => return,
            Some(_) if turn < YIELDING_STOP_CHECKS => rustix::thread::sched_yield(),
            Some(_) => drop(rustix::event::poll(&mut [], Some(&poll_interval))),
        }
    }
}

const MAX_STOP_CHECKS: usize = 250;
const YIELDING_STOP_CHECKS: usize = 10;

/// The hard limit of open files; None if it is unlimited or unknown.
pub(crate) fn descriptor_limit(pid: u32) -> Option<u64> {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// The open descriptors of a process, with their `/proc` link targets.
pub(crate) fn open_descriptors(pid: u32) -> BTreeSet<(u32, std::path::PathBuf)> {
    let numbers = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().filter_map(Result::ok);
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter_map(|number| Some((number, fd_link_target(pid, number)?))).collect()
}

/// The working directory of a process.
pub(crate) fn working_directory(pid: u32) -> Option<std::path::PathBuf> {
    fs::read_link(format!("/proc/{pid}/cwd")).ok()
}

/// The target of `/proc/PID/fd` for a descriptor of a process.
pub(crate) fn fd_link_target(pid: u32, number: u32) -> Option<std::path::PathBuf> {
    fs::read_link(format!("/proc/{pid}/fd/{number}")).ok()
}

/// Whether a process holds the reading end of a pipe that is the stdout of one of the others.
pub(crate) fn reads_output_of(pid: u32, others: &[u32]) -> bool {
    let outputs: Vec<_> = others.iter().filter_map(|other| fd_link_target(*other, 1)).collect();
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    numbers.into_iter().any(|number| {
        fd_link_target(pid, number)
            .is_some_and(|name| name.to_string_lossy().starts_with("pipe:") && outputs.contains(&name))
            && is_read_only(pid, number)
    })
}

fn is_read_only(pid: u32, number: u32) -> bool {
    let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok()).is_some_and(|flags| flags & 0o3 == 0)
}

/// The executable of a process.
pub(crate) fn executable(pid: u32) -> Option<std::path::PathBuf> {
    fs::read_link(format!("/proc/{pid}/exe")).ok()
}

fn all_stats() -> BTreeMap<u32, ProcessStat> {
    all_pids().into_iter().filter_map(|pid| Some((pid, ProcessStat::read(pid)?))).collect()
}

/// The pids of all visible processes.
pub(crate) fn all_pids() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}
