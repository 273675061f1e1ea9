//! Limits the memory for large responses of keepers.
//!
//! A response gets a permit before it is read from its keeper. The permit is returned when the last reader drops the
//! response. Without a free permit, the keeper holds the response until it is read later.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// Responses up to this size need no permit.
pub(crate) const SMALL_ANSWER_BYTES: usize = 64 << 10;
/// Maximum bytes of all large responses. A single one may be larger.
const MAX_ANSWER_BYTES: usize = 32 << 20;

/// The memory limit of a runtime.
#[derive(Debug)]
pub(crate) struct AnswerRoom {
    used_bytes: AtomicUsize,
    /// Whether a response waits for a permit.
    has_waiter: AtomicBool,
    /// Signalled when a permit is returned while `is_wanted` is set.
    wakeup: OwnedFd,
}

/// Reserves memory until it is dropped.
#[derive(Debug)]
pub struct AnswerPermit {
    bytes: usize,
    room: Arc<AnswerRoom>,
}

impl AnswerRoom {
    pub(crate) fn new() -> rustix::io::Result<Arc<Self>> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Self {
            used_bytes: AtomicUsize::new(0),
            has_waiter: AtomicBool::new(false),
            wakeup: bell,
        }))
    }

    /// Reserves this many bytes. If there is no room, the eventfd is signalled when a retry is useful.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: usize) -> Option<AnswerPermit> {
        self.try_reserve(bytes).or_else(|| {
            // Set before the second try, so that memory returned in between is not missed.
            self.has_waiter.store(true, Ordering::SeqCst);
            self.try_reserve(bytes)
        })
    }

    fn try_reserve(self: &Arc<Self>, bytes: usize) -> Option<AnswerPermit> {
        let fits = |used: usize| (used == 0 || used + bytes <= MAX_ANSWER_BYTES).then_some(used + bytes);
        self.used_bytes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fits).ok()?;
        Some(AnswerPermit { bytes, room: Arc::clone(self) })
    }

    pub(crate) fn reset_wakeup(&self) {
        // The read fails if the eventfd was not signalled.
        rustix::io::read(&self.wakeup, &mut [0; 8]).ok();
    }
}

impl AsFd for AnswerRoom {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }
}

impl AnswerPermit {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for AnswerPermit {
    fn drop(&mut self) {
        self.room.used_bytes.fetch_sub(self.bytes, Ordering::SeqCst);
        if self.room.has_waiter.swap(false, Ordering::SeqCst) {
            // The write fails only if the eventfd is already signalled.
            rustix::io::write(&self.room.wakeup, &1_u64.to_ne_bytes()).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_signalled(room: &AnswerRoom) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(room, PollFlags::IN)], Some(&now)).unwrap() > 0
    }

    #[test]
    fn dropping_a_permit_frees_memory_and_signals_a_waiter() {
        let room = AnswerRoom::new().unwrap();
        let huge = room.reserve(2 * MAX_ANSWER_BYTES).expect("one alone always fits");
        assert!(room.reserve(1).is_none() && !is_signalled(&room));
        drop(huge);
        assert!(is_signalled(&room));
        room.reset_wakeup();
        let halves = [room.reserve(MAX_ANSWER_BYTES / 2), room.reserve(MAX_ANSWER_BYTES / 2)];
        assert!(halves.iter().all(Option::is_some) && room.reserve(1).is_none());
        drop(halves);
        assert!(is_signalled(&room) && room.reserve(1).is_some());
    }
}
