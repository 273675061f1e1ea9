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
    which: ExternalFd,
    wants: Option<FdInterest>,
    waitable: bool,
}

/// The readiness that is polled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FdInterest {
    In,
    Out,
    /// Only hang-up.
    End,
    Nothing,
}

impl ClientFd {
    pub(super) fn new(which: ExternalFd) -> Self {
        Self { which, wants: None, waitable: true }
    }

    /// Changes the registration; no system call is made if it is unchanged.
    pub(super) fn wants(&mut self, runtime: &TerminalRuntime, end: impl AsFd, wants: FdInterest) {
        if self.wants == Some(wants) {
            return;
        }
        self.wants = Some(wants);
        let flags = match wants {
            FdInterest::In => EventFlags::IN,
            FdInterest::Out => EventFlags::OUT,
            FdInterest::End => EventFlags::empty(),
            FdInterest::Nothing => return runtime.ignore(end),
        };
        self.waitable = runtime.watch(end, self.which, flags).is_ok();
    }

    /// Whether the descriptor cannot be polled because it is always ready.
    pub(super) fn is_always_ready(&self) -> bool {
        !self.waitable && matches!(self.wants, Some(FdInterest::In | FdInterest::Out))
    }
}
