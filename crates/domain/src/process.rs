//! The identity of an attempt's operating-system process, and its exit.
//!
//! Supervising processes is the task of the keeper.

use alloc::string::String;

use serde::{Deserialize, Serialize};

use crate::time::TimeSpan;

/// One process launch, numbered within its run from 1. It is the fencing token: events of another attempt have no
/// effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Attempt(pub u32);

/// The position of a fact in an attempt's output. A fact at or before the last processed position is ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OutputPosition(pub u64);

/// The identity of a process (A13). A pid alone is not sufficient, because pids are reused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessBinding {
    /// The name of its keeper.
    pub keeper: String,
    pub pid: u32,
    /// In kernel ticks since boot.
    pub start_time: u64,
    /// The boot to which the start time refers.
    pub boot_id: String,
}

/// A process that is assumed to be alive, and the processed part of its output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveProcess {
    /// The launch that started it.
    pub attempt: Attempt,
    pub process: ProcessBinding,
    /// The position of the last processed fact.
    pub processed_position: OutputPosition,
    /// Whether it was told to resume a session and has not confirmed the session id yet (A4).
    pub must_confirm_session: bool,
    /// The contact losses so far, over all turns of the process.
    #[serde(default, skip_serializing_if = "ContactLosses::is_none")]
    pub contact_losses: ContactLosses,
}

/// The number and duration of contact losses of a process (E8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContactLosses {
    pub count: u32,
    /// The total time of the searches for its turns.
    pub search_time: TimeSpan,
}

impl ContactLosses {
    /// Whether contact was never lost.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// The delay before the next search: none after the first loss, then 1 second, doubled each time, up to 60 seconds.
    /// The backoff limits the rate at which contact is regained and lost again.
    pub fn search_delay(&self) -> TimeSpan {
        const MAX_DELAY_MICROS: u64 = 60_000_000;
        match self.count {
            0 | 1 => TimeSpan(0),
            more => TimeSpan((1_000_000 << (more - 2).min(6)).min(MAX_DELAY_MICROS)),
        }
    }
}

/// The exit of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitStatus {
    /// The exit code; `128 + n` for death by signal `n`.
    Code(i32),
    /// The process is gone and its exit status is unknown.
    Unknown,
}
