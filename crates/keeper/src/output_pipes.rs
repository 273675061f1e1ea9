//! The two output pipes of a shell, and the job that their bytes belong to.
//!
//! Consecutive commands share the pipes as long as only the shell holds them. If a command leaves a process behind, or
//! redirects the shell's own output, the next command gets new pipes. The old ones are read for their job until the
//! last writer closes them. So late output never appears in the result of another command.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::OnceLock;

use rustix::io::{Errno, read};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::protocol::{JobId, OutputStream};

/// The reading ends of stdout and stderr, and the job that they belong to.
#[derive(Debug)]
pub(crate) struct OutputPipes {
    pub(crate) number: u64,
    pub(crate) job: JobId,
    readers: [Option<OwnedFd>; 2],
    link_targets: [Option<PathBuf>; 2],
    /// Set by an edge of epoll; cleared when the pipe is empty.
    pub(crate) ready: [bool; 2],
    /// Whether the pipe was enlarged.
    is_enlarged: [bool; 2],
}

/// Default size of a pipe, in bytes.
const DEFAULT_PIPE_BYTES: usize = 64 << 10;
/// Size of an enlarged pipe, in bytes.
const ENLARGED_PIPE_BYTES: usize = 512 << 10;

/// The result of a read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PipeRead {
    Bytes(usize),
    Empty,
    Closed,
}

impl OutputPipes {
    /// Creates the pipes. Also returns their writing ends.
    pub(crate) fn new(number: u64, job: JobId) -> io::Result<(Self, [OwnedFd; 2])> {
        let (out, out_writer) = pipe_with(PipeFlags::CLOEXEC)?;
        let (err, err_writer) = pipe_with(PipeFlags::CLOEXEC)?;
        for end in [&out, &err] {
            rustix::io::ioctl_fionbio(end, true)?;
        }
        let names = [fd_link_target(&out), fd_link_target(&err)];
        Ok((
            Self {
                number,
                job,
                readers: [Some(out), Some(err)],
                link_targets: names,
                ready: [true; 2],
                is_enlarged: [false; 2],
            },
            [out_writer, err_writer],
        ))
    }

    /// The reading end; None if it is closed.
    pub(crate) fn reader(&self, stream: OutputStream) -> Option<&OwnedFd> {
        self.readers[stream.index()].as_ref()
    }

    /// The target of `/proc/PID/fd` for this pipe.
    pub(crate) fn link_target(&self, stream: OutputStream) -> Option<&PathBuf> {
        self.link_targets[stream.index()].as_ref()
    }

    /// Reads from a pipe.
    pub(crate) fn read(&mut self, stream: OutputStream, buffer: &mut [u8]) -> PipeRead {
        let index = stream.index();
        let Some(end) = &self.readers[index] else {
            // A closed stream that stayed ready would keep the loop busy.
            self.ready[index] = false;
            return PipeRead::Closed;
        };
        let room = buffer.len();
        match read(end, buffer) {
            Ok(0) => {
                self.ready[index] = false;
                PipeRead::Closed
            }
            Ok(count) => {
                // A short read means that the pipe is empty. New data causes another edge.
                self.ready[index] = count == room;
                if count >= DEFAULT_PIPE_BYTES && !self.is_enlarged[index] {
                    self.is_enlarged[index] = true;
                    // The default size limits a fast writer. If the system refuses a larger one, the pipe keeps its
                    // size.
                    rustix::pipe::fcntl_setpipe_size(end, ENLARGED_PIPE_BYTES).ok();
                }
                PipeRead::Bytes(count)
            }
            Err(Errno::INTR) => PipeRead::Bytes(0),
            Err(Errno::AGAIN) => {
                self.ready[index] = false;
                PipeRead::Empty
            }
            Err(_) => {
                self.ready[index] = false;
                PipeRead::Closed
            }
        }
    }

    /// Permanently closes a stream.
    pub(crate) fn close(&mut self, stream: OutputStream) {
        self.readers[stream.index()] = None;
        self.ready[stream.index()] = false;
    }

    /// Whether both streams are closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.readers.iter().all(Option::is_none)
    }
}

/// The `/proc` path by which another process opens a descriptor of this process.
pub(crate) fn proc_fd_path(end: &OwnedFd) -> String {
    static OWN: OnceLock<u32> = OnceLock::new();
    format!("/proc/{}/fd/{}", OWN.get_or_init(std::process::id), end.as_raw_fd())
}

/// The target of `/proc/PID/fd` for a descriptor of this process.
pub(crate) fn fd_link_target(end: impl AsFd) -> Option<PathBuf> {
    let number = u32::try_from(end.as_fd().as_raw_fd()).ok()?;
    crate::process_tree::fd_link_target(std::process::id(), number)
}
