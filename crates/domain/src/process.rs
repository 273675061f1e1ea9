//! Which operating-system process an attempt is, and what is known of its end.
//!
//! Holding and watching processes is not here: that is the keeper's trade.

use alloc::string::String;

use serde::{Deserialize, Serialize};

use crate::time::TimeSpan;

/// One process launch, numbered within its run from 1. It is the fence: news of another attempt changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Attempt(pub u32);

/// How far into an attempt's speech a fact stands. A fact at or before what was already heard is not news.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OutputPosition(pub u64);

/// The identity of a process (A13): a pid alone is reused, so it never stands alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessBinding {
    /// The keeper that holds it.
    pub keeper: String,
    /// Its process id.
    pub pid: u32,
    /// Its start time in kernel ticks since boot.
    pub start_time: u64,
    /// The boot in which that start time counts.
    pub boot_id: String,
}

/// A process that is alive as far as we know, and how much of it we have heard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveProcess {
    /// The launch that it came from.
    pub attempt: Attempt,
    /// Which process it is.
    pub process: ProcessBinding,
    /// The last fact taken from it.
    pub heard: OutputPosition,
    /// It was told to go on with a session and has not named that session yet (A4).
    pub must_confirm: bool,
    /// How contact with it was lost so far. It counts over all turns that the process is given.
    #[serde(default, skip_serializing_if = "ContactLosses::is_none")]
    pub losses: ContactLosses,
}

/// How often and how long a process was out of contact (E8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContactLosses {
    /// How often.
    pub count: u32,
    /// For how long its turns were searched for, in all.
    pub searched: TimeSpan,
}

impl ContactLosses {
    /// Whether contact was never lost.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// How long the next search waits before it begins: not at all after the first loss, then one second, and each time
    /// twice as long, up to a minute. So contact that is regained and lost again goes round slower and slower.
    pub fn pause(&self) -> TimeSpan {
        const LONGEST: u64 = 60_000_000;
        match self.count {
            0 | 1 => TimeSpan(0),
            more => TimeSpan((1_000_000 << (more - 2).min(6)).min(LONGEST)),
        }
    }
}

/// What became of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitStatus {
    /// It ended with this code; death by signal `n` is `128 + n`.
    Code(i32),
    /// It is gone and nobody saw how.
    Unseen,
}
