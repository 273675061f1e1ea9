//! The client's two ends, waited for together with the keepers.
//!
//! A file cannot be waited for: it is always ready, and then nobody waits at all.

use std::os::fd::AsFd;

use abide_terminal::{EventFlags, ExternalFd, TerminalRuntime};

/// Where requests come from.
pub(super) const INPUT: ExternalFd = 0;
/// Where answers go.
pub(super) const OUTPUT: ExternalFd = 1;

/// One end.
#[derive(Debug)]
pub(super) struct ClientFd {
    which: ExternalFd,
    wants: Option<FdInterest>,
    waitable: bool,
}

/// What is waited for at an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FdInterest {
    In,
    Out,
    /// Only that nobody is there any more.
    End,
    Nothing,
}

impl ClientFd {
    pub(super) fn new(which: ExternalFd) -> Self {
        Self { which, wants: None, waitable: true }
    }

    /// Says what is waited for; asks the system only when that has changed.
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

    /// Whether there is nothing to wait for because it is ready at any time.
    pub(super) fn is_always_ready(&self) -> bool {
        !self.waitable && matches!(self.wants, Some(FdInterest::In | FdInterest::Out))
    }
}
