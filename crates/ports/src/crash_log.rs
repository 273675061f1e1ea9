//! What the daemon is performing, kept outside of its process: a daemon that dies leaves the names of what it was doing.

/// Keeps the names of what is being performed, and the state of the crash guard.
///
/// Both survive the death of the process. They need not survive a power failure, so nothing is synced and beginning and
/// ending cost no more than a write to a file.
pub trait CrashLog: Send + Sync {
    /// Keeps the name of something that begins. Returns where it is kept.
    fn begin(&self, item: &str) -> usize;

    /// Removes the name that is kept there.
    fn end(&self, place: usize);

    /// Replaces the state that the next daemon is given.
    fn save(&self, state: &CrashGuardState);

    /// Removes all names: the process is about to end in order.
    fn close(&self);
}

/// What an earlier daemon left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CrashLogContents {
    /// What it was performing when it died. Empty after an orderly end.
    pub in_flight: Vec<String>,
    /// The state that was saved last.
    pub state: CrashGuardState,
}

/// What the crash guard remembers from one daemon to the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CrashGuardState {
    /// What daemons have died of, by name.
    pub suspects: Vec<CrashSuspect>,
    /// How many daemons in a row died while they performed several things at once.
    pub crowded_deaths: u32,
}

/// Something during which a daemon died, with nothing else in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrashSuspect {
    /// Its name, such as `effect RUN NUMBER Launch`.
    pub item: String,
    /// How many daemons in a row died during it.
    pub deaths: u32,
    /// When it may be performed again, in microseconds since 1970. Meaningful from the third death on.
    pub retry_at: i64,
}

/// The number of deaths in a row from which on something is set aside.
pub const MAX_DEATHS: u32 = 3;

impl CrashSuspect {
    /// Whether it is performed only alone, and not before its time.
    pub fn is_set_aside(&self) -> bool {
        self.deaths >= MAX_DEATHS
    }
}
