//! Standard input of a child on pipes. Unread bytes are buffered, and each key is written once.
//!
//! The input of a shell command is handled in `commands`.

use std::collections::BTreeSet;

use rustix::event::epoll::EventFlags;
use rustix::io::{Errno, write};

use super::{ChildSupervisor, poller::PollSource};
use crate::child::ChildIo;
use crate::clock::unix_micros;
use crate::protocol::{KeeperRefusal, KeeperResponse, MAX_ORDER_BYTES};

/// Input that the child has not read yet.
#[derive(Debug, Default)]
pub(super) struct StdinBuffer {
    unsent: Vec<u8>,
    ends: bool,
    keys: BTreeSet<u64>,
    armed: bool,
}

impl StdinBuffer {
    /// Whether some bytes have not been written to the pipe.
    pub(super) fn waits(&self) -> bool {
        !self.unsent.is_empty()
    }
}

/// Maximum number of buffered bytes for a child that does not read.
const MOST_UNSENT: usize = 4 * MAX_ORDER_BYTES;

impl ChildSupervisor {
    /// Accepts bytes for the child once per key. A key that was accepted before always succeeds.
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

    /// Accepts bytes for the child.
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

    /// Writes as many bytes as the pipe accepts now.
    pub(super) fn push_stdin(&mut self) {
        let ChildIo::Pipes(input) = &mut self.hold else { return };
        let Some(end) = input else { return };
        let mut sent = 0;
        while let Some(rest) = self.stdin.unsent.get(sent..).filter(|rest| !rest.is_empty()) {
            match write(&*end, rest) {
                Ok(count) => sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                // The child has closed its input; the remaining bytes are dropped.
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
