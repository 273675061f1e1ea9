//! Determines whether a program waits for its input, from the system calls in which its threads are blocked.
//!
//! A parent may read this of its children even where other processes may not. Nothing is stopped or traced. If the
//! information is not available (a process of another user, an unknown system call interface), the result says so.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::process_tree;

/// The state of an input: whether a process of the tree waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InputReadState {
    /// A thread is blocked in reading the input, and waits for nothing else.
    BlockedInRead(BlockedReader),
    /// A thread waits for several events or with a timeout, and the input is among them.
    BlockedInPoll(BlockedReader),
    /// All threads were examined, and none waits for the input.
    NotWaiting,
    /// No thread was seen waiting for the input, but some could not be examined.
    Unknown,
}

/// A thread and its number of context switches. The number changes when the thread is woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockedReader {
    pub(crate) thread: u32,
    pub(crate) context_switches: u64,
}

/// Examines all descendants of `root`. `input` is the target of the input's `/proc` link.
pub(crate) fn inspect_input(root: u32, input: &Path) -> InputReadState {
    let Some(calls) = WaitSyscalls::of_this_machine() else { return InputReadState::Unknown };
    let mut found = InputReadState::NotWaiting;
    for pid in process_tree::descendants_with_zombies(root) {
        for thread in process_tree::threads(pid) {
            let Ok(line) = fs::read_to_string(format!("/proc/{pid}/task/{thread}/syscall")) else {
                // A thread that has exited does not matter; one that exists but cannot be examined does.
                if Path::new(&format!("/proc/{pid}/task/{thread}")).exists()
                    && found == InputReadState::NotWaiting
                {
                    found = InputReadState::Unknown;
                }
                continue;
            };
            let Some(call) = BlockedSyscall::parse(&line) else { continue };
            match calls.wait_kind(pid, &call, input) {
                InputWaitKind::OnlyInput => {
                    return InputReadState::BlockedInRead(blocked_reader(pid, thread));
                }
                InputWaitKind::AmongOthers => {
                    found = InputReadState::BlockedInPoll(blocked_reader(pid, thread))
                }
                InputWaitKind::Unknown if found == InputReadState::NotWaiting => {
                    found = InputReadState::Unknown
                }
                InputWaitKind::Unknown | InputWaitKind::NotInput => {}
            }
        }
    }
    found
}

fn blocked_reader(pid: u32, thread: u32) -> BlockedReader {
    let status = fs::read_to_string(format!("/proc/{pid}/task/{thread}/status")).unwrap_or_default();
    let sleeps = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    BlockedReader {
        thread,
        context_switches: sleeps.and_then(|count| count.trim().parse().ok()).unwrap_or(0),
    }
}

/// How a thread waits for the input.
#[derive(Debug, PartialEq, Eq)]
enum InputWaitKind {
    OnlyInput,
    AmongOthers,
    NotInput,
    Unknown,
}

/// A system call that a thread is blocked in.
#[derive(Debug, PartialEq, Eq)]
struct BlockedSyscall {
    number: u64,
    arguments: [u64; 6],
}

impl BlockedSyscall {
    /// Parses `/proc/PID/syscall`: a number and six arguments, or `running`, or `-1` outside of any call.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let number = words.next()?.parse().ok()?;
        let mut arguments = [0; 6];
        for argument in &mut arguments {
            *argument = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
        }
        Some(Self { number, arguments })
    }
}

/// The numbers of the system calls by which programs wait for input. A call that the architecture lacks is [`NO_SYSCALL`].
#[derive(Debug)]
struct WaitSyscalls {
    read: u64,
    readv: u64,
    poll: u64,
    ppoll: u64,
    select: u64,
    pselect: u64,
    epoll_wait: u64,
    epoll_pwait: u64,
    epoll_pwait2: u64,
    io_uring_enter: u64,
}

const NO_SYSCALL: u64 = u64::MAX;

impl WaitSyscalls {
    fn of_this_machine() -> Option<&'static Self> {
        match std::env::consts::ARCH {
            "x86_64" => Some(&Self {
                read: 0,
                readv: 19,
                poll: 7,
                ppoll: 271,
                select: 23,
                pselect: 270,
                epoll_wait: 232,
                epoll_pwait: 281,
                epoll_pwait2: 441,
                io_uring_enter: 426,
            }),
            "aarch64" | "riscv64" => Some(&Self {
                read: 63,
                readv: 65,
                poll: NO_SYSCALL,
                ppoll: 73,
                select: NO_SYSCALL,
                pselect: 72,
                epoll_wait: NO_SYSCALL,
                epoll_pwait: 22,
                epoll_pwait2: 441,
                io_uring_enter: 426,
            }),
            _ => None,
        }
    }

    fn wait_kind(&self, pid: u32, call: &BlockedSyscall, input: &Path) -> InputWaitKind {
        let [first, second, third, fourth, fifth, _] = call.arguments;
        let is_input = |fd: u64| {
            let fd = u32::try_from(fd).ok();
            fd.and_then(|fd| process_tree::fd_link_target(pid, fd)).is_some_and(|leads_to| leads_to == input)
        };
        let number = call.number;
        if number == self.read || number == self.readv {
            return if is_input(first) { InputWaitKind::OnlyInput } else { InputWaitKind::NotInput };
        }
        let (fds, without_timeout) = if number == self.poll {
            (poll_fds(pid, first, second), is_minus_one(third))
        } else if number == self.ppoll {
            (poll_fds(pid, first, second), third == 0)
        } else if number == self.select || number == self.pselect {
            let only_reads = third == 0 && fourth == 0;
            (select_fds(pid, first, second), only_reads && fifth == 0)
        } else if number == self.epoll_wait || number == self.epoll_pwait {
            (epoll_fds(pid, first), is_minus_one(fourth))
        } else if number == self.epoll_pwait2 {
            (epoll_fds(pid, first), fourth == 0)
        } else if number == self.io_uring_enter {
            return InputWaitKind::Unknown;
        } else {
            return InputWaitKind::NotInput;
        };
        match fds {
            None => InputWaitKind::Unknown,
            Some(fds) if !fds.iter().any(|end| is_input(*end)) => InputWaitKind::NotInput,
            Some(fds) if fds.len() == 1 && without_timeout => InputWaitKind::OnlyInput,
            Some(_) => InputWaitKind::AmongOthers,
        }
    }
}

/// The timeout is an `int`, but the kernel shows the whole register.
fn is_minus_one(argument: u64) -> bool {
    u32::try_from(argument & 0xffff_ffff) == Ok(u32::MAX)
}

/// Maximum number of descriptors of one call that are examined.
const MAX_EXAMINED_FDS: u64 = 1024;
/// The bit for readable in the masks of poll and epoll.
const READABLE: u32 = 1;

/// The descriptors that a `poll` watches for input.
fn poll_fds(pid: u32, at: u64, count: u64) -> Option<Vec<u64>> {
    let bytes = read_process_memory(pid, at, count.min(MAX_EXAMINED_FDS) * 8)?;
    let ends = bytes.chunks_exact(8).filter_map(|entry| {
        let fd = i32::from_ne_bytes(entry.get(..4)?.try_into().ok()?);
        let events = u16::from_ne_bytes(entry.get(4..6)?.try_into().ok()?);
        u64::try_from(fd).ok().filter(|_| u32::from(events) & READABLE != 0)
    });
    Some(ends.collect())
}

/// The descriptors that a `select` watches for input.
fn select_fds(pid: u32, count: u64, at: u64) -> Option<Vec<u64>> {
    if at == 0 {
        return Some(Vec::new());
    }
    let count = count.min(MAX_EXAMINED_FDS);
    let bytes = read_process_memory(pid, at, count.div_ceil(64) * 8)?;
    let is_set = |fd: &u64| {
        let byte = usize::try_from(fd / 8).ok().and_then(|at| bytes.get(at)).copied().unwrap_or(0);
        byte >> (fd % 8) & 1 == 1
    };
    Some((0..count).filter(is_set).collect())
}

/// The descriptors that an `epoll` watches for input.
fn epoll_fds(pid: u32, epoll: u64) -> Option<Vec<u64>> {
    let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{epoll}")).ok()?;
    let ends = info.lines().filter_map(|line| {
        let mut words = line.strip_prefix("tfd:")?.split_ascii_whitespace();
        let fd = words.next()?.parse().ok()?;
        let events = words.nth(1).and_then(|mask| u32::from_str_radix(mask, 16).ok())?;
        (events & READABLE != 0).then_some(fd)
    });
    Some(ends.collect())
}

fn read_process_memory(pid: u32, at: u64, length: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(length).ok()?];
    File::open(format!("/proc/{pid}/mem")).ok()?.read_exact_at(&mut bytes, at).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_syscall_is_parsed_and_a_running_thread_has_none() {
        let read = "0 0x0 0x7ff44b9f1b03 0x1 0x7ff44b8270e0 0x1 0x0 0x7ffe4adcd4a8 0x7ff44b9162ad\n";
        let arguments = [0, 0x7ff4_4b9f_1b03, 1, 0x7ff4_4b82_70e0, 1, 0];
        assert_eq!(BlockedSyscall::parse(read), Some(BlockedSyscall { number: 0, arguments }));
        for nothing in ["running\n", "-1 0x7ffe 0x7ff4\n", "", "0 0x0 0x1\n"] {
            assert_eq!(BlockedSyscall::parse(nothing), None, "{nothing:?}");
        }
        assert!(is_minus_one(u64::from(u32::MAX)) && is_minus_one(u64::MAX) && !is_minus_one(0x1fa2));
    }
}
