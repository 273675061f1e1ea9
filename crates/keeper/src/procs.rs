//! The processes below one: who they are and how they are signalled. Reading `/proc` only; nothing is started here.

use std::collections::BTreeMap;
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
        Err(_) => all().into_iter().filter(|(_, stat)| stat.parent == pid).map(|(pid, _)| pid).collect(),
    }
}

/// The list of a process's direct children, held open: it is asked for after every command.
#[derive(Debug)]
pub(crate) struct ChildList {
    pid: u32,
    list: Option<File>,
}

impl ChildList {
    pub(crate) fn of(pid: u32) -> Self {
        Self { pid, list: File::open(format!("/proc/{pid}/task/{pid}/children")).ok() }
    }

    pub(crate) fn now(&self) -> Vec<u32> {
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

/// The descriptors of a process, looked at after every command: its directory is held open, which halves the way.
#[derive(Debug)]
pub(crate) struct DescriptorDir {
    directory: Option<OwnedFd>,
}

impl DescriptorDir {
    pub(crate) fn of(pid: u32) -> Self {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Self { directory: open(format!("/proc/{pid}/fd"), flags, Mode::empty()).ok() }
    }

    /// Whether there is a descriptor of this number, as far as can be seen.
    pub(crate) fn is_open(&self, number: &str) -> bool {
        let Some(directory) = &self.directory else { return true };
        readlinkat_raw(directory, number, &mut [0u8; 1]) != Err(rustix::io::Errno::NOENT)
    }

    /// Whether a descriptor leads to what `/proc` names like this.
    pub(crate) fn lead_to(&self, number: &str, name: &Path) -> bool {
        let Some(directory) = &self.directory else { return false };
        let mut buffer = [0u8; 64];
        let found = readlinkat_raw(directory, number, &mut buffer);
        found.is_ok_and(|found| {
            found == name.as_os_str().as_bytes().len()
                && buffer.get(..found) == Some(name.as_os_str().as_bytes())
        })
    }
}

/// A process that was seen in `/proc`. It is signalled only if the pid still belongs to the process that was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ProcessKey {
    pub(crate) pid: u32,
    start_time: u64,
}

impl ProcessKey {
    /// The process that has this pid now.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        Some(Self { pid, start_time: ProcessStat::read(pid)?.start_time })
    }

    /// Sends a signal. A process that is gone gets none, and neither does one that has its pid by now (SECURITY 23).
    pub(crate) fn signal(self, signal: Signal) {
        if let Some(process) = PidFd::open_started_at(self.pid, self.start_time) {
            // The process of another user is its own business.
            process.signal(signal).ok();
        } else if let Some(stat) = ProcessStat::read(self.pid)
            && (stat.start_time, stat.parent) == (self.start_time, std::process::id())
            && let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw)
        {
            // Where the kernel has no pidfds: a child of our own keeps its pid until we reap it.
            kill_process(pid, signal).ok();
        }
    }
}

/// Everything below `root`, except the trees that begin at `spared`; zombies are left out.
pub(crate) fn descendants(root: u32, spared: &[u32]) -> Vec<ProcessKey> {
    let everyone = all();
    let mut found = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for (pid, stat) in everyone.iter().filter(|(_, stat)| stat.parent == parent) {
            if spared.contains(pid) {
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

/// The same for a root that is held: none if it has ended, since its pid may then be another's.
pub(crate) fn descendants_of(root: &PidFd, spared: &[u32]) -> Vec<ProcessKey> {
    let found = descendants(root.pid(), spared);
    if root.has_ended() { Vec::new() } else { found }
}

/// Everything below `root`, zombies included, without looking at everybody else where the kernel keeps lists.
pub(crate) fn tree(root: u32) -> Vec<u32> {
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

/// Who is left in a process group of a session whose leaders are gone. Both numbers stay taken while anybody is left, so
/// nobody else can have come by them.
pub(crate) fn left_in_group(group: u32, session: u32) -> Vec<ProcessKey> {
    living(|stat| stat.group == group && stat.session == session)
}

/// The processes that are left in a session whose leader is gone. The number stays taken while any is left.
pub(crate) fn left_in_session(session: u32) -> Vec<ProcessKey> {
    living(|stat| stat.session == session)
}

fn living(is_meant: impl Fn(&ProcessStat) -> bool) -> Vec<ProcessKey> {
    let living = all().into_iter().filter(|(_, stat)| is_meant(stat) && !stat.is_zombie());
    living.map(|(pid, stat)| ProcessKey { pid, start_time: stat.start_time }).collect()
}

/// Whether a process is stopped by a signal.
pub(crate) fn is_stopped(pid: u32) -> bool {
    ProcessStat::read(pid).is_some_and(|stat| stat.state == b'T')
}

/// What a process does about a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SignalDisposition {
    /// It has a handler.
    Caught,
    /// It is ignored.
    Ignored,
    /// The system's default, or the process is gone.
    Default,
}

/// What a process does about this signal.
pub(crate) fn disposition(pid: u32, signal: Signal) -> SignalDisposition {
    if is_in_mask(pid, signal, &["SigIgn:"]) {
        SignalDisposition::Ignored
    } else if is_in_mask(pid, signal, &["SigCgt:"]) {
        SignalDisposition::Caught
    } else {
        SignalDisposition::Default
    }
}

/// Whether a process was sent this signal and has not taken it yet.
pub(crate) fn is_pending(pid: u32, signal: Signal) -> bool {
    is_in_mask(pid, signal, &["SigPnd:", "ShdPnd:"])
}

/// Whether one of these lines of `/proc/PID/status` holds the signal.
fn is_in_mask(pid: u32, signal: Signal, names: &[&str]) -> bool {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { return false };
    let bit = 1u64 << (signal.as_raw() - 1);
    let masks = status.lines().filter_map(|line| names.iter().find_map(|name| line.strip_prefix(name)));
    masks.filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok()).any(|mask| mask & bit != 0)
}

/// Whether a process is a copy of another that has not executed a program of its own since: a subshell.
pub(crate) fn is_copy(pid: u32, of: u32) -> bool {
    let image = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // Where its stack begins is chosen anew by every `exec`.
        let stack = stat.rsplit_once(") ")?.1.split(' ').nth(25)?.to_owned();
        Some((program(pid)?, stack, fs::read(format!("/proc/{pid}/cmdline")).ok()?))
    };
    image(pid).is_some_and(|own| Some(own) == image(of))
}

/// Waits for a process that was sent SIGSTOP to stop or end; for a short time only.
pub(crate) fn await_stop(pid: u32) {
    let moment = rustix::event::Timespec { tv_sec: 0, tv_nsec: 200_000 };
    for turn in 0..STOP_LOOKS {
        match ProcessStat::read(pid).map(|stat| stat.state) {
            None | Some(b'T' | b't' | b'Z' | b'X') => return,
            Some(_) if turn < STOP_YIELDS => rustix::thread::sched_yield(),
            Some(_) => drop(rustix::event::poll(&mut [], Some(&moment))),
        }
    }
}

const STOP_LOOKS: usize = 250;
const STOP_YIELDS: usize = 10;

/// How many descriptors a process may at most allow itself; none is any number.
pub(crate) fn descriptor_limit(pid: u32) -> Option<u64> {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// The working directory of a process.
pub(crate) fn directory(pid: u32) -> Option<std::path::PathBuf> {
    fs::read_link(format!("/proc/{pid}/cwd")).ok()
}

/// Where a file descriptor of a process leads, as `/proc` names it.
pub(crate) fn descriptor(pid: u32, number: u32) -> Option<std::path::PathBuf> {
    fs::read_link(format!("/proc/{pid}/fd/{number}")).ok()
}

/// Whether a process holds the reading end of a pipe that is the standard output of one of the others.
pub(crate) fn reads_output_of(pid: u32, others: &[u32]) -> bool {
    let outputs: Vec<_> = others.iter().filter_map(|other| descriptor(*other, 1)).collect();
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    numbers.into_iter().any(|number| {
        descriptor(pid, number)
            .is_some_and(|name| name.to_string_lossy().starts_with("pipe:") && outputs.contains(&name))
            && is_read_only(pid, number)
    })
}

fn is_read_only(pid: u32, number: u32) -> bool {
    let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok()).is_some_and(|flags| flags & 0o3 == 0)
}

/// The program that a process runs now.
pub(crate) fn program(pid: u32) -> Option<std::path::PathBuf> {
    fs::read_link(format!("/proc/{pid}/exe")).ok()
}

fn all() -> BTreeMap<u32, ProcessStat> {
    all_pids().into_iter().filter_map(|pid| Some((pid, ProcessStat::read(pid)?))).collect()
}

/// Every process of the machine that can be seen.
pub(crate) fn all_pids() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}
