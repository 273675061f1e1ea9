//! What a client has still to be told, written to it without ever waiting for it.

use std::io::IoSlice;
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};

use super::{HOLD_AT, RpcServer};

/// What a pipe with any room surely takes.
const WRITE: usize = 4096;

impl RpcServer {
    /// Writes without ever waiting, also to a descriptor whose other holders did not ask for that.
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

    /// Writes no more than a descriptor with any room surely takes.
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

    /// The last words, for a client that is given a moment to take them.
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
