//! The standard input of a child on pipes: what it does not read yet is kept, and each key is written once.
//!
//! The input of a shell's command is that command's, see `commands`.

use std::collections::BTreeSet;

use rustix::event::epoll::EventFlags;
use rustix::io::{Errno, write};

use super::{ChildSupervisor, poller::PollSource};
use crate::child::ChildIo;
use crate::clock::unix_micros;
use crate::protocol::{KeeperRefusal, KeeperResponse, MAX_ORDER_BYTES};

/// What waits to be read by the child.
#[derive(Debug, Default)]
pub(super) struct StdinBuffer {
    unsent: Vec<u8>,
    ends: bool,
    keys: BTreeSet<u64>,
    armed: bool,
}

impl StdinBuffer {
    /// Whether something has not even reached the pipe.
    pub(super) fn waits(&self) -> bool {
        !self.unsent.is_empty()
    }
}

/// How much may wait for a child that does not read.
const MOST_UNSENT: usize = 4 * MAX_ORDER_BYTES;

impl ChildSupervisor {
    /// Takes bytes for the child, once for each key. A key that was taken is not refused, whatever happened since.
    pub(super) fn write_once(
        &mut self,
        key: u64,
        bytes: &[u8],
        eof: bool,
    ) -> Result<KeeperResponse, KeeperRefusal> {
        if !self.stdin.keys.contains(&key) {
            self.write_stdin(bytes, eof)?;
            self.stdin.keys.insert(key);
        }
        Ok(KeeperResponse::Done)
    }

    /// Takes bytes for the child.
    pub(super) fn write_stdin(&mut self, bytes: &[u8], eof: bool) -> Result<(), KeeperRefusal> {
        let ChildIo::Pipes(Some(_)) = &self.hold else {
            return Err(if self.exit.is_some() { KeeperRefusal::Ended } else { KeeperRefusal::NoInput });
        };
        if self.stdin.unsent.len() + bytes.len() > MOST_UNSENT {
            return Err(KeeperRefusal::Full(format!(
                "{} bytes of input are not being read",
                self.stdin.unsent.len()
            )));
        }
        self.last_activity_at = unix_micros();
        self.stdin.unsent.extend_from_slice(bytes);
        self.stdin.ends |= eof;
        self.push_stdin();
        Ok(())
    }

    /// Writes what the pipe takes now.
    pub(super) fn push_stdin(&mut self) {
        let ChildIo::Pipes(input) = &mut self.hold else { return };
        let Some(end) = input else { return };
        let mut sent = 0;
        while let Some(rest) = self.stdin.unsent.get(sent..).filter(|rest| !rest.is_empty()) {
            match write(&*end, rest) {
                Ok(count) => sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                // The child has closed its input: what it will never read is dropped.
                Err(_) => sent = self.stdin.unsent.len(),
            }
        }
        self.stdin.unsent.drain(..sent);
        let waits = !self.stdin.unsent.is_empty();
        if waits && !self.stdin.armed {
            self.stdin.armed =
                self.poller.add(&*end, PollSource::Stdin, EventFlags::OUT | EventFlags::ET).is_ok();
        }
        if !waits && self.stdin.ends {
            *input = None;
        }
    }
}
