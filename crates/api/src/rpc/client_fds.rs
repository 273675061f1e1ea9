//! The client's input and output descriptors, polled together with the keepers.
//!
//! A regular file cannot be polled, because it is always ready.

use std::os::fd::AsFd;

use abide_terminal::{EventFlags, ExternalFd, TerminalRuntime};

pub(super) const INPUT: ExternalFd = 0;
pub(super) const OUTPUT: ExternalFd = 1;

/// One descriptor and its registration.
#[derive(Debug)]
pub(super) struct ClientFd {
    id: ExternalFd,
    interest: Option<FdInterest>,
    pollable: bool,
}

/// The readiness that is polled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FdInterest {
    Readable,
    Writable,
    /// Only hang-up.
    HangUp,
    None,
}

impl ClientFd {
    pub(super) fn new(which: ExternalFd) -> Self {
        Self { id: which, interest: None, pollable: true }
    }

    /// Changes the registration; no system call is made if it is unchanged.
    pub(super) fn set_interest(&mut self, runtime: &TerminalRuntime, end: impl AsFd, wants: FdInterest) {
        if self.interest == Some(wants) {
            return;
        }
        self.interest = Some(wants);
        let flags = match wants {
            FdInterest::Readable => EventFlags::IN,
            FdInterest::Writable => EventFlags::OUT,
            FdInterest::HangUp => EventFlags::empty(),
            FdInterest::None => return runtime.unwatch_fd(end),
        };
        self.pollable = runtime.watch_fd(end, self.id, flags).is_ok();
    }

    /// Whether the descriptor cannot be polled because it is always ready.
    pub(super) fn is_always_ready(&self) -> bool {
        !self.pollable && matches!(self.interest, Some(FdInterest::Readable | FdInterest::Writable))
    }
}
