//! Identifies the process at the other end of a Unix socket, and its ancestors.
//!
//! A process is identified by its pid and its start time, because pids are reused. This module sends no signals.

use std::{
    fs::File,
    io::{self, Read},
    os::fd::AsFd,
};

use rustix::net::sockopt::socket_peercred;

/// The process that connected a Unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerProcess {
    /// The pid in the pid namespace of this process.
    pub pid: u32,
    /// The effective user id.
    pub uid: u32,
}

impl PeerProcess {
    /// The process that connected this socket, as it was at that moment (`SO_PEERCRED`).
    pub fn of(socket: impl AsFd) -> io::Result<Self> {
        let peer = socket_peercred(socket)?;
        let pid = u32::try_from(peer.pid.as_raw_nonzero().get()).map_err(io::Error::other)?;
        Ok(Self { pid, uid: peer.uid.as_raw() })
    }
}

/// A process and its command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AncestorProcess {
    pub pid: u32,
    /// In clock ticks since boot.
    pub start_time: u64,
    /// The first words of its command line.
    pub arguments: Vec<Vec<u8>>,
}

/// The process and its ancestors, itself first. A process whose parent exits meanwhile is reparented, so the result
/// counts only when two consecutive reads agree.
///
/// Fails with `NotFound` if the process is gone.
pub fn process_and_ancestors(pid: u32) -> io::Result<Vec<AncestorProcess>> {
    let mut before = read_ancestors(pid)?;
    for _ in 0..MAX_READS {
        let again = read_ancestors(pid)?;
        if again == before {
            return Ok(again);
        }
        before = again;
    }
    Err(io::Error::other("the processes above it keep changing"))
}

/// Maximum number of reads before the operation fails.
const MAX_READS: usize = 16;
/// Maximum number of ancestors; larger than on any real system.
const MAX_ANCESTORS: usize = 4096;
/// Maximum number of bytes read from a command line.
const MAX_PROC_FILE_BYTES: usize = 1024;

fn read_ancestors(pid: u32) -> io::Result<Vec<AncestorProcess>> {
    let (mut found, mut next) = (Vec::new(), pid);
    // The parent is 0 for the first process, and for one whose parent is outside of this pid namespace.
    while next != 0 && found.len() < MAX_ANCESTORS {
        let (parent, start_time) = read_parent_and_start_time(next)?;
        let arguments = read_proc_file(next, "cmdline")?;
        let arguments = arguments.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
        found.push(AncestorProcess { pid: next, start_time, arguments });
        next = parent;
    }
    Ok(found)
}

fn read_parent_and_start_time(pid: u32) -> io::Result<(u32, u64)> {
    let line = read_proc_file(pid, "stat")?;
    let line = String::from_utf8_lossy(&line);
    // The name in parentheses may contain spaces and parentheses, so fields are counted from the last one.
    let mut fields = line.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ').skip(1);
    let parent = fields.next().and_then(|field| field.parse().ok());
    let start_time = fields.nth(17).and_then(|field| field.parse().ok());
    parent.zip(start_time).ok_or_else(|| io::Error::other(format!("cannot parse /proc/{pid}/stat")))
}

fn read_proc_file(pid: u32, name: &str) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(format!("/proc/{pid}/{name}"))?;
    match file.take(MAX_PROC_FILE_BYTES as u64).read_to_end(&mut bytes) {
        Ok(_) => Ok(bytes),
        // The process exited between the open and the read.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {
            Err(io::ErrorKind::NotFound.into())
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn this_process_descends_from_itself_and_its_parent() {
        let lineage = process_and_ancestors(std::process::id()).unwrap();
        assert_eq!(lineage[0].pid, std::process::id());
        assert!(!lineage[0].arguments[0].is_empty());
        let parent = rustix::process::getppid().unwrap().as_raw_nonzero().get();
        assert_eq!(i64::from(lineage[1].pid), i64::from(parent));
        assert!(lineage[0].start_time >= lineage[1].start_time);
    }

    #[test]
    fn a_process_that_is_gone_has_no_lineage() {
        // Larger than any pid.
        assert_eq!(process_and_ancestors(u32::MAX).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_peer_is_named() {
        let (one, _other) = UnixStream::pair().unwrap();
        let peer = PeerProcess::of(&one).unwrap();
        assert_eq!((peer.pid, peer.uid), (std::process::id(), rustix::process::geteuid().as_raw()));
    }
}
