//! Failpoints around each write to the journal and in the middle of it.
//!
//! They exist only with the feature `failpoints`, which no shipped program has. The installed hook decides what happens
//! at a failpoint.

/// A position at which a crash test can kill the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentFailpoint {
    /// Events are complete in memory, and nothing of them is written.
    BeforeWrite,
    /// Half of the bytes are written.
    MidWrite,
    /// The events are written and synced, but not acted upon.
    AfterWrite,
}

#[cfg(feature = "failpoints")]
static HOOK: std::sync::OnceLock<fn(AgentFailpoint)> = std::sync::OnceLock::new();

/// Installs a hook that is called at each failpoint. Later calls have no effect.
#[cfg(feature = "failpoints")]
pub fn install(hook: fn(AgentFailpoint)) {
    // An error means that a hook is installed; it stays.
    HOOK.set(hook).ok();
}

/// Calls the installed hook, if the feature `failpoints` is enabled.
#[inline]
pub(crate) fn reach(point: AgentFailpoint) {
    #[cfg(feature = "failpoints")]
    if let Some(hook) = HOOK.get() {
        hook(point);
    }
    #[cfg(not(feature = "failpoints"))]
    let _ = point;
}
