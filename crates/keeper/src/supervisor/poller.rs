//! The event sources of a keeper and its `epoll` instance.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll;
use rustix::io::Errno;

use crate::protocol::OutputStream;

/// An event source, encoded in the `u64` of an epoll event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PollSource {
    Signals,
    Listener,
    Reports,
    Terminal,
    CommandInput,
    Stdin,
    CheckTimer,
    DeletionWatch,
    OutputPipe(u64, OutputStream),
    Client(u64),
}

impl PollSource {
    pub(super) fn pack(self) -> u64 {
        match self {
            Self::Signals => 0,
            Self::Listener => 1,
            Self::Reports => 2,
            Self::Terminal => 3,
            Self::OutputPipe(number, stream) => number << 8 | (4 + stream.index() as u64),
            Self::Client(number) => number << 8 | 6,
            Self::CommandInput => 7,
            Self::CheckTimer => 8,
            Self::Stdin => 9,
            Self::DeletionWatch => 10,
        }
    }

    pub(super) fn unpack(packed: u64) -> Option<Self> {
        Some(match packed & 0xff {
            0 => Self::Signals,
            1 => Self::Listener,
            2 => Self::Reports,
            3 => Self::Terminal,
            4 => Self::OutputPipe(packed >> 8, OutputStream::Stdout),
            5 => Self::OutputPipe(packed >> 8, OutputStream::Stderr),
            6 => Self::Client(packed >> 8),
            7 => Self::CommandInput,
            8 => Self::CheckTimer,
            9 => Self::Stdin,
            10 => Self::DeletionWatch,
            _ => return None,
        })
    }
}

/// The `epoll` instance of a keeper.
#[derive(Debug)]
pub(super) struct EpollSet(pub(super) OwnedFd);

impl EpollSet {
    pub(super) fn add(
        &self,
        fd: impl AsFd,
        source: PollSource,
        flags: epoll::EventFlags,
    ) -> Result<(), Errno> {
        epoll::add(&self.0, fd, epoll::EventData::new_u64(source.pack()), flags)
    }

    pub(super) fn change(&self, fd: impl AsFd, source: PollSource, flags: epoll::EventFlags) {
        // A closed descriptor is no longer in the poller.
        epoll::modify(&self.0, fd, epoll::EventData::new_u64(source.pack()), flags).ok();
    }
}
