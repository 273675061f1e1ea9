//! The deadline of a run. It is part of the state, so it survives a restart.

use serde::{Deserialize, Serialize};

use crate::{
    id::InteractionId,
    process::Attempt,
    time::{Seconds, Timestamp},
};

/// A point in time and the wait that it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deadline {
    pub at: Timestamp,
    pub kind: DeadlineKind,
}

/// The wait that a deadline ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeadlineKind {
    /// The wait for an answer.
    Answer(InteractionId),
    /// The execution of a turn.
    Turn(Attempt),
    /// The grace period in which the engine can stop by itself.
    Stop(Attempt),
    /// The search for the outcome of a lost turn.
    Recovery(Attempt),
    /// The idle time of a chat's held process.
    Idle(Attempt),
}

/// The time that an engine has to obey an interrupt before its process is terminated.
pub const STOP_GRACE: Seconds = Seconds(15);
/// The time limit of the search for a lost turn, summed over all losses of the same attempt (E8). Then a person is
/// asked.
pub const RECOVERY_TIMEOUT: Seconds = Seconds(300);
/// The maximum number of contact losses during the turns of an attempt, however short each loss is. Then a person is
/// asked.
pub const MAX_CONTACT_LOSSES: u32 = 16;
