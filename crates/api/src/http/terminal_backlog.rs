//! Memory that waits for the clients of WebSockets: events that are not serialised, and requests without a reply.
//!
//! Both are counted for each client and for all together. Serialised output is counted in `budget`.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use abide_terminal::{ClientFlow, TerminalEvent};

use super::HttpState;

/// Unread bytes above which the sessions of the client's calls are paused.
const HOLD_AT: usize = 1 << 20;
/// Unread bytes below which they resume.
const RESUME_AT: usize = HOLD_AT / 32;
/// Unread bytes above which no further requests of the client are read.
const STOP_AT: usize = 4 << 20;
/// Unread bytes of all clients above which each client with unread bytes is paused.
pub(super) const MAX_UNREAD_BYTES: usize = 16 << 20;
/// Memory of requests without a reply above which no further requests of the client are read.
const MAX_WAITING_BYTES_OF_ONE: usize = 1 << 20;
/// The same limit while all clients together exceed theirs.
const MAX_WAITING_BYTES_WHEN_FULL: usize = 16 << 10;
/// Memory of requests without a reply of all clients above which clients with many of them are paused.
pub(super) const MAX_WAITING_BYTES: usize = 16 << 20;

/// Unread bytes of one client, in responses and streams. Shared by the runtime's thread and the client's task.
#[derive(Debug)]
pub(super) struct ClientBacklog {
    interface: HttpState,
    bytes: AtomicUsize,
    /// Whether a session is paused because of this client.
    holds: AtomicBool,
}

impl ClientBacklog {
    pub(super) fn new(interface: HttpState) -> Self {
        Self { interface, bytes: AtomicUsize::new(0), holds: AtomicBool::new(false) }
    }

    pub(super) fn add(&self, event: &TerminalEvent) -> ClientFlow {
        let more = event.output_bytes();
        if more == 0 {
            return ClientFlow::Continue;
        }
        let has_room = self.interface.0.unread.add(more);
        let bytes = self.bytes.fetch_add(more, Ordering::AcqRel) + more;
        if has_room && bytes < HOLD_AT {
            return ClientFlow::Continue;
        }
        self.holds.store(true, Ordering::Release);
        ClientFlow::Pause
    }

    /// Subtracts serialised bytes. Returns whether paused sessions may resume.
    pub(super) fn remove(&self, bytes: usize) -> bool {
        let remaining_bytes = self.bytes.fetch_sub(bytes, Ordering::AcqRel) - bytes;
        self.interface.0.unread.remove(bytes);
        remaining_bytes < RESUME_AT && self.holds.swap(false, Ordering::AcqRel)
    }

    pub(super) fn takes_requests(&self) -> bool {
        self.bytes.load(Ordering::Acquire) < STOP_AT
    }
}

impl Drop for ClientBacklog {
    fn drop(&mut self) {
        self.interface.0.unread.remove(*self.bytes.get_mut());
    }
}

/// Memory of one client's requests that have no reply yet.
#[derive(Debug)]
pub(super) struct WaitingRequests {
    interface: HttpState,
    bytes: usize,
}

impl WaitingRequests {
    pub(super) fn new(interface: HttpState) -> Self {
        Self { interface, bytes: 0 }
    }

    pub(super) fn set(&mut self, bytes: usize) {
        self.interface.0.waiting.add(bytes);
        self.interface.0.waiting.remove(self.bytes);
        self.bytes = bytes;
    }

    pub(super) fn takes_requests(&self) -> bool {
        let has_room = self.interface.0.waiting.has_room();
        self.bytes < if has_room { MAX_WAITING_BYTES_OF_ONE } else { MAX_WAITING_BYTES_WHEN_FULL }
    }
}

impl Drop for WaitingRequests {
    fn drop(&mut self) {
        self.set(0);
    }
}
