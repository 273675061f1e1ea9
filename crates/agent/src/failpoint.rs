//! Places at which tests let the agent die: around every write to the journal, and in the middle of it.
//!
//! Compiled in only with the feature `failpoints`, which no shipped program has; without it nothing is left of them.
//! What happens at a place is decided by whoever installs a hook, not here.

/// A place worth dying at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentFailpoint {
    /// Something is decided and not yet written.
    BeforeWrite,
    /// Half of it is written.
    MidWrite,
    /// It is written and synced; nothing was done about it.
    AfterWrite,
}

#[cfg(feature = "failpoints")]
static HOOK: std::sync::OnceLock<fn(AgentFailpoint)> = std::sync::OnceLock::new();

/// From now on this is called whenever a place is reached. Only the first hook counts.
#[cfg(feature = "failpoints")]
pub fn install(hook: fn(AgentFailpoint)) {
    let _the_first_counts = HOOK.set(hook);
}

/// A place is reached.
#[inline]
pub(crate) fn reach(point: AgentFailpoint) {
    #[cfg(feature = "failpoints")]
    if let Some(hook) = HOOK.get() {
        hook(point);
    }
    #[cfg(not(feature = "failpoints"))]
    let _nobody_is_interested = point;
}
