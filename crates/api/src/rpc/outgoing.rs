//! Non-blocking writes of pending output.

use std::io::IoSlice;
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};

use super::{HOLD_AT, RpcServer};

/// `PIPE_BUF`: a writable pipe accepts at least this many bytes.
const WRITE: usize = 4096;

impl RpcServer {
    /// Writes without blocking, also if the descriptor is shared with processes that use it in blocking mode.
    pub(super) fn write(&mut self, output: impl AsFd) -> std::io::Result<()> {
        while self.written < self.talk.out.len() {
            let pending = [IoSlice::new(self.talk.out.get(self.written..).unwrap_or_default())];
            let attempt = match self.never_waits {
                true => pwritev2(&output, &pending, u64::MAX, ReadWriteFlags::NOWAIT),
                false => Err(Errno::OPNOTSUPP),
            };
            match attempt {
                Ok(count) => self.wrote(count),
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::SPIPE | Errno::NOSYS) => {
                    self.never_waits = false;
                    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
                    let mut fds = [PollFd::new(&output, PollFlags::OUT)];
                    if !matches!(poll(&mut fds, Some(&now)), Ok(1..)) {
                        return Ok(());
                    }
                    self.write_some(&output)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Writes at most `WRITE` bytes, which a writable descriptor accepts without blocking.
    pub(super) fn write_some(&mut self, output: impl AsFd) -> std::io::Result<()> {
        let end = self.talk.out.len().min(self.written + WRITE);
        match rustix::io::write(&output, self.talk.out.get(self.written..end).unwrap_or_default()) {
            Ok(count) => self.wrote(count),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    pub(super) fn wrote(&mut self, count: usize) {
        self.written += count;
        if self.written == self.talk.out.len() {
            self.written = 0;
            if self.talk.out.capacity() > HOLD_AT * 2 {
                self.talk.out = Vec::new();
            } else {
                self.talk.out.clear();
            }
        } else if self.written > HOLD_AT {
            self.talk.out.drain(..self.written);
            self.written = 0;
        }
    }

    /// Writes the remaining output at shutdown. Gives up if the client reads nothing for 2 s.
    pub(super) fn write_rest(&mut self, output: impl AsFd) -> std::io::Result<()> {
        while self.written < self.talk.out.len() {
            let moment = Timespec { tv_sec: 2, tv_nsec: 0 };
            let mut fds = [PollFd::new(&output, PollFlags::OUT)];
            if !matches!(poll(&mut fds, Some(&moment)), Ok(1..)) {
                return Ok(());
            }
            self.write_some(&output)?;
        }
        Ok(())
    }
}
