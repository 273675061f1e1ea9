//! Non-blocking writes of pending output.

use std::io::IoSlice;
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};

use super::{PAUSE_STREAMS_BYTES, RpcServer};

/// `PIPE_BUF`: a writable pipe accepts at least this many bytes.
const PIPE_WRITE_BYTES: usize = 4096;

impl RpcServer {
    /// Writes without blocking, also if the descriptor is shared with processes that use it in blocking mode.
    pub(super) fn write(&mut self, output: impl AsFd) -> std::io::Result<()> {
        while self.written_bytes < self.connection.output.len() {
            let pending =
                [IoSlice::new(self.connection.output.get(self.written_bytes..).unwrap_or_default())];
            let attempt = match self.supports_nonblocking_write {
                true => pwritev2(&output, &pending, u64::MAX, ReadWriteFlags::NOWAIT),
                false => Err(Errno::OPNOTSUPP),
            };
            match attempt {
                Ok(count) => self.after_write(count),
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::SPIPE | Errno::NOSYS) => {
                    self.supports_nonblocking_write = false;
                    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
                    let mut fds = [PollFd::new(&output, PollFlags::OUT)];
                    if !matches!(poll(&mut fds, Some(&now)), Ok(1..)) {
                        return Ok(());
                    }
                    self.write_bounded(&output)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Writes at most `PIPE_WRITE_BYTES` bytes, which a writable descriptor accepts without blocking.
    pub(super) fn write_bounded(&mut self, output: impl AsFd) -> std::io::Result<()> {
        let end = self.connection.output.len().min(self.written_bytes + PIPE_WRITE_BYTES);
        match rustix::io::write(
            &output,
            self.connection.output.get(self.written_bytes..end).unwrap_or_default(),
        ) {
            Ok(count) => self.after_write(count),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    pub(super) fn after_write(&mut self, count: usize) {
        self.written_bytes += count;
        if self.written_bytes == self.connection.output.len() {
            self.written_bytes = 0;
            if self.connection.output.capacity() > PAUSE_STREAMS_BYTES * 2 {
                self.connection.output = Vec::new();
            } else {
                self.connection.output.clear();
            }
        } else if self.written_bytes > PAUSE_STREAMS_BYTES {
            self.connection.output.drain(..self.written_bytes);
            self.written_bytes = 0;
        }
    }

    /// Writes the remaining output at shutdown. Gives up if the client reads nothing for 2 s.
    pub(super) fn write_rest(&mut self, output: impl AsFd) -> std::io::Result<()> {
        while self.written_bytes < self.connection.output.len() {
            let timeout = Timespec { tv_sec: 2, tv_nsec: 0 };
            let mut fds = [PollFd::new(&output, PollFlags::OUT)];
            if !matches!(poll(&mut fds, Some(&timeout)), Ok(1..)) {
                return Ok(());
            }
            self.write_bounded(&output)?;
        }
        Ok(())
    }
}
