//! Room for large answers of keepers: how many bytes of them a runtime holds at a time.
//!
//! An answer takes its room before it is read from its keeper, and gives it back when its last reader has dropped it. A
//! keeper whose answer finds no room keeps it in its own memory until it is asked again.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// Answers of at most this size need no room.
pub(crate) const SMALL_ANSWER_BYTES: usize = 64 << 10;
/// The bytes of all large answers. One alone may be larger.
const MAX_ANSWER_BYTES: usize = 32 << 20;

/// The room of a runtime.
#[derive(Debug)]
pub(crate) struct AnswerRoom {
    used: AtomicUsize,
    /// Whether an answer waits for room.
    is_wanted: AtomicBool,
    /// Rung when room was given back that is wanted.
    bell: OwnedFd,
}

/// Room that is taken until this is dropped.
#[derive(Debug)]
pub struct AnswerPermit {
    bytes: usize,
    room: Arc<AnswerRoom>,
}

impl AnswerRoom {
    pub(crate) fn new() -> rustix::io::Result<Arc<Self>> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Self { used: AtomicUsize::new(0), is_wanted: AtomicBool::new(false), bell }))
    }

    /// Takes room for so many bytes. Where there is none, the bell rings when it is worth another try.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Option<AnswerPermit> {
        self.try_take(bytes).or_else(|| {
            // Said before the second try, so that room which is given back in between is not missed.
            self.is_wanted.store(true, Ordering::SeqCst);
            self.try_take(bytes)
        })
    }

    fn try_take(self: &Arc<Self>, bytes: usize) -> Option<AnswerPermit> {
        let fits = |used: usize| (used == 0 || used + bytes <= MAX_ANSWER_BYTES).then_some(used + bytes);
        self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fits).ok()?;
        Some(AnswerPermit { bytes, room: Arc::clone(self) })
    }

    /// The bell was heard.
    pub(crate) fn silence(&self) {
        // One that did not ring has nothing to be read.
        rustix::io::read(&self.bell, &mut [0; 8]).ok();
    }
}

impl AsFd for AnswerRoom {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl AnswerPermit {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for AnswerPermit {
    fn drop(&mut self) {
        self.room.used.fetch_sub(self.bytes, Ordering::SeqCst);
        if self.room.is_wanted.swap(false, Ordering::SeqCst) {
            // A full counter has rung already.
            rustix::io::write(&self.room.bell, &1_u64.to_ne_bytes()).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn rings(room: &AnswerRoom) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(room, PollFlags::IN)], Some(&now)).unwrap() > 0
    }

    #[test]
    fn room_is_given_back_with_the_answer_and_the_one_that_waits_is_told() {
        let room = AnswerRoom::new().unwrap();
        let huge = room.take(2 * MAX_ANSWER_BYTES).expect("one alone always fits");
        assert!(room.take(1).is_none() && !rings(&room));
        drop(huge);
        assert!(rings(&room));
        room.silence();
        let halves = [room.take(MAX_ANSWER_BYTES / 2), room.take(MAX_ANSWER_BYTES / 2)];
        assert!(halves.iter().all(Option::is_some) && room.take(1).is_none());
        drop(halves);
        assert!(rings(&room) && room.take(1).is_some());
    }
}
