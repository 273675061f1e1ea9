//! The crash log: names of operations in progress, stored outside the process, so that the next daemon knows which
//! operation a crash interrupted.

/// Stores the names of operations in progress and the state of the crash guard.
///
/// Both survive the death of the process. They need not survive a power failure, so nothing is synced. Beginning and
/// ending an operation each cost one write to a file.
pub trait CrashLog: Send + Sync {
    /// Records the name of an operation that begins. Returns its slot for [`CrashLog::end`].
    fn begin(&self, item: &str) -> usize;

    fn end(&self, slot: usize);

    /// Replaces the state that the next daemon reads.
    fn save(&self, state: &CrashGuardState);

    /// Clears all slots, because the process is about to exit normally.
    fn close(&self);
}

/// The crash log that an earlier daemon left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CrashLogContents {
    /// The operations in progress when it died. Empty after a normal exit.
    pub in_flight: Vec<String>,
    /// The last saved state.
    pub state: CrashGuardState,
}

/// The state of the crash guard, which persists across daemon restarts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CrashGuardState {
    /// Operations during which daemons died.
    pub suspects: Vec<CrashSuspect>,
    /// Number of consecutive daemon deaths with several operations in progress.
    pub concurrent_deaths: u32,
}

/// An operation that was the only one in progress when a daemon died.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrashSuspect {
    /// The name of the operation, such as `effect RUN NUMBER Launch`.
    pub item: String,
    /// Number of consecutive daemon deaths during it.
    pub deaths: u32,
    /// Earliest time of the next try, in microseconds since 1970. Valid from the third death on.
    pub retry_at: i64,
}

/// Number of consecutive deaths after which an operation is quarantined.
pub const MAX_CONSECUTIVE_DEATHS: u32 = 3;

impl CrashSuspect {
    /// Whether the operation is quarantined: delayed until `retry_at` and then performed alone.
    pub fn is_set_aside(&self) -> bool {
        self.deaths >= MAX_CONSECUTIVE_DEATHS
    }
}
