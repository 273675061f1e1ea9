//! The two pipes that a shell prints into, and which job their bytes belong to.
//!
//! A lane is used by one command after the other as long as nobody else holds it. When a command leaves a process
//! behind, or moves the shell's own output elsewhere, the next command gets a new lane and the old one is read for its
//! old job until the last holder has closed it: late output never turns up in another command's result.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::OnceLock;

use rustix::io::{Errno, read};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::protocol::{JobId, OutputStream};

/// Two pipes and their owner.
#[derive(Debug)]
pub(crate) struct OutputPipes {
    pub(crate) number: u64,
    pub(crate) job: JobId,
    ends: [Option<OwnedFd>; 2],
    names: [Option<PathBuf>; 2],
    /// Set by an edge, cleared when the pipe was found empty.
    pub(crate) ready: [bool; 2],
    /// Whether the pipe has been given more room.
    wide: [bool; 2],
}

/// What a pipe holds by itself.
const PIPE: usize = 64 << 10;
/// What a pipe holds whose writer fills it.
const WIDE: usize = 512 << 10;

/// What a read found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PipeRead {
    Bytes(usize),
    Empty,
    Closed,
}

impl OutputPipes {
    /// A new lane and the writing ends of its pipes.
    pub(crate) fn new(number: u64, job: JobId) -> io::Result<(Self, [OwnedFd; 2])> {
        let (out, out_writer) = pipe_with(PipeFlags::CLOEXEC)?;
        let (err, err_writer) = pipe_with(PipeFlags::CLOEXEC)?;
        for end in [&out, &err] {
            rustix::io::ioctl_fionbio(end, true)?;
        }
        let names = [name_of(&out), name_of(&err)];
        Ok((
            Self { number, job, ends: [Some(out), Some(err)], names, ready: [true; 2], wide: [false; 2] },
            [out_writer, err_writer],
        ))
    }

    /// The reading end, while it is open.
    pub(crate) fn end(&self, stream: OutputStream) -> Option<&OwnedFd> {
        self.ends[stream.index()].as_ref()
    }

    /// The path by which a shell opens the writing end.
    pub(crate) fn path(&self, stream: OutputStream) -> String {
        self.end(stream).map(path_of).unwrap_or_default()
    }

    /// How `/proc` names the pipe in any process that holds it.
    pub(crate) fn name(&self, stream: OutputStream) -> Option<&PathBuf> {
        self.names[stream.index()].as_ref()
    }

    /// Takes what a pipe has.
    pub(crate) fn take(&mut self, stream: OutputStream, buffer: &mut [u8]) -> PipeRead {
        let index = stream.index();
        let Some(end) = &self.ends[index] else {
            // Left ready, a stream that is closed for good would keep the loop awake for ever.
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
                // Less than there was room for: the pipe is empty, and what comes next is an edge again.
                self.ready[index] = count == room;
                if count >= PIPE && !self.wide[index] {
                    self.wide[index] = true;
                    // A writer this fast is held up by the usual size; the system may refuse, and then it stays.
                    let _stays_as_it_is = rustix::pipe::fcntl_setpipe_size(end, WIDE);
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

    /// Stops reading a stream for good.
    pub(crate) fn close(&mut self, stream: OutputStream) {
        self.ends[stream.index()] = None;
        self.ready[stream.index()] = false;
    }

    /// Whether nothing more can come.
    pub(crate) fn is_closed(&self) -> bool {
        self.ends.iter().all(Option::is_none)
    }
}

/// The path by which another process opens one of our descriptors.
pub(crate) fn path_of(end: &OwnedFd) -> String {
    static OWN: OnceLock<u32> = OnceLock::new();
    format!("/proc/{}/fd/{}", OWN.get_or_init(std::process::id), end.as_raw_fd())
}

/// How `/proc` names one of our descriptors.
pub(crate) fn name_of(end: impl AsFd) -> Option<PathBuf> {
    let number = u32::try_from(end.as_fd().as_raw_fd()).ok()?;
    crate::procs::descriptor(std::process::id(), number)
}
