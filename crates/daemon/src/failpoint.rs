//! Places at which tests let the daemon die: around every commit, and between an order and its report.
//!
//! Compiled in only with the feature `failpoints`, which no shipped program has; without it nothing is left of them.
//! What happens at a place is decided by whoever installs a hook, not here.

/// A place worth dying at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DaemonFailpoint {
    /// Something is decided and not yet written.
    BeforeCommit,
    /// It is written; nobody has heard of it and nothing was done about it.
    AfterCommit,
    /// An effect is on the crash guard's record, and nothing was done about it.
    EffectBegun,
    /// An order was carried out, and that is not yet written.
    OrderCarriedOut,
}

#[cfg(feature = "failpoints")]
static HOOK: std::sync::OnceLock<fn(DaemonFailpoint)> = std::sync::OnceLock::new();

/// From now on this is called whenever a place is reached. Only the first hook counts.
#[cfg(feature = "failpoints")]
pub fn install(hook: fn(DaemonFailpoint)) {
    let _the_first_counts = HOOK.set(hook);
}

/// A place is reached.
#[inline]
pub(crate) fn reach(point: DaemonFailpoint) {
    #[cfg(feature = "failpoints")]
    if let Some(hook) = HOOK.get() {
        hook(point);
    }
    #[cfg(not(feature = "failpoints"))]
    let _nobody_is_interested = point;
}
