//! The one point in time that a run waits for. It is part of the state, so a restart cannot forget it.

use serde::{Deserialize, Serialize};

use crate::{
    id::InteractionId,
    process::Attempt,
    time::{Seconds, Timestamp},
};

/// A point in time and what it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deadline {
    /// When.
    pub at: Timestamp,
    /// What it ends.
    pub kind: DeadlineKind,
}

/// What a deadline ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeadlineKind {
    /// The wait for an answer.
    Answer(InteractionId),
    /// The work of a turn.
    Turn(Attempt),
    /// The engine's chance to stop by itself.
    Stop(Attempt),
    /// The search for a lost turn's outcome.
    Recovery(Attempt),
    /// The idling of a chat's held process.
    Idling(Attempt),
}

/// How long an engine may take to obey an interrupt before its process is ended.
pub const STOP_GRACE: Seconds = Seconds(15);
/// How long a lost turn is searched for before a person is asked, over all losses of the same attempt (E8).
pub const RECOVERY_BOUND: Seconds = Seconds(300);
/// How often contact with an attempt may be lost during its turns before a person is asked, however soon it was regained.
pub const MAX_LOSSES: u32 = 16;
