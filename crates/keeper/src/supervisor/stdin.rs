//! Standard input of a child on pipes. Unread bytes are buffered, and each key is written once.
//!
//! The input of a shell command is handled in `commands`.

use std::collections::{BTreeSet, VecDeque};

use rustix::event::epoll::EventFlags;
use rustix::io::{Errno, write};

use super::{ChildSupervisor, poller::PollSource};
use crate::child::ChildIo;
use crate::clock::unix_micros;
use crate::protocol::{KeeperRefusal, KeeperResponse, MAX_REQUEST_BYTES};

/// Input that the child has not read yet.
#[derive(Debug, Default)]
pub(super) struct StdinBuffer {
    unsent: Vec<u8>,
    closes_after_write: bool,
    written_keys: RecentKeys,
    is_watched: bool,
}

impl StdinBuffer {
    /// Whether some bytes have not been written to the pipe.
    pub(super) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Whether a write with this key was accepted.
    pub(super) fn has_written(&self, key: u64) -> bool {
        self.written_keys.contains(key)
    }

    /// The latest keys of accepted writes, for the exit record.
    pub(super) fn latest_keys(&self) -> Vec<u64> {
        self.written_keys.oldest_first.iter().rev().take(MAX_RECORDED_KEYS).copied().collect()
    }
}

/// The idempotency keys of the latest writes.
///
/// The client repeats a write only until it has recorded the response, so only the latest keys can occur again.
#[derive(Debug, Default)]
struct RecentKeys {
    keys: BTreeSet<u64>,
    oldest_first: VecDeque<u64>,
}

impl RecentKeys {
    fn contains(&self, key: u64) -> bool {
        self.keys.contains(&key)
    }

    fn insert(&mut self, key: u64) {
        if self.keys.insert(key) {
            self.oldest_first.push_back(key);
        }
        if self.oldest_first.len() > MAX_WRITE_KEYS
            && let Some(oldest) = self.oldest_first.pop_front()
        {
            self.keys.remove(&oldest);
        }
    }
}

/// Maximum number of remembered idempotency keys.
const MAX_WRITE_KEYS: usize = 10_000;
/// Maximum number of keys in the exit record. Only the keys of writes that the daemon has not recorded matter.
const MAX_RECORDED_KEYS: usize = 1_000;
/// Maximum number of buffered bytes for a child that does not read.
const MAX_UNSENT_BYTES: usize = 4 * MAX_REQUEST_BYTES;

impl ChildSupervisor {
    /// Accepts bytes for the child once per key. A key that was accepted before always succeeds.
    pub(super) fn write_once(
        &mut self,
        key: u64,
        bytes: &[u8],
        eof: bool,
    ) -> Result<KeeperResponse, KeeperRefusal> {
        if !self.stdin.written_keys.contains(key) {
            self.write_stdin(bytes, eof)?;
            self.stdin.written_keys.insert(key);
        }
        Ok(KeeperResponse::Done)
    }

    /// Accepts bytes for the child.
    pub(super) fn write_stdin(&mut self, bytes: &[u8], eof: bool) -> Result<(), KeeperRefusal> {
        let ChildIo::Pipes(Some(_)) = &self.child_io else {
            return Err(if self.exit.is_some() { KeeperRefusal::Ended } else { KeeperRefusal::NoInput });
        };
        if self.stdin.unsent.len() + bytes.len() > MAX_UNSENT_BYTES {
            return Err(KeeperRefusal::Full(format!(
                "{} bytes of input are not being read",
                self.stdin.unsent.len()
            )));
        }
        self.last_activity_at = unix_micros();
        self.stdin.unsent.extend_from_slice(bytes);
        self.stdin.closes_after_write |= eof;
        self.flush_stdin();
        Ok(())
    }

    /// Writes as many bytes as the pipe accepts now.
    pub(super) fn flush_stdin(&mut self) {
        let ChildIo::Pipes(input) = &mut self.child_io else { return };
        let Some(fd) = input else { return };
        let mut sent = 0;
        while let Some(rest) = self.stdin.unsent.get(sent..).filter(|rest| !rest.is_empty()) {
            match write(&*fd, rest) {
                Ok(count) => sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                // The child has closed its input; the remaining bytes are dropped.
                Err(_) => sent = self.stdin.unsent.len(),
            }
        }
        self.stdin.unsent.drain(..sent);
        let has_unsent = !self.stdin.unsent.is_empty();
        if has_unsent && !self.stdin.is_watched {
            self.stdin.is_watched =
                self.poller.add(&*fd, PollSource::Stdin, EventFlags::OUT | EventFlags::ET).is_ok();
        }
        if !has_unsent && self.stdin.closes_after_write {
            *input = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_remembered_keys_is_bounded_and_the_latest_stay() {
        let mut keys = RecentKeys::default();
        let newest = 3 * MAX_WRITE_KEYS as u64;
        (0..=newest).for_each(|key| keys.insert(key));
        keys.insert(newest);
        assert_eq!((keys.keys.len(), keys.oldest_first.len()), (MAX_WRITE_KEYS, MAX_WRITE_KEYS));
        assert!(keys.contains(newest) && keys.contains(newest + 1 - MAX_WRITE_KEYS as u64));
        assert!(!keys.contains(0));
    }
}
