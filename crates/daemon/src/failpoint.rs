//! Failpoints for crash tests: around every commit, and between an effect and its report.
//!
//! Compiled only with the feature `failpoints`, which no release has. Without it, the calls are empty. The installed
//! hook decides what happens at a failpoint.

/// A point at which a crash test may kill the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DaemonFailpoint {
    /// A change has been computed and is not written.
    BeforeCommit,
    /// The change is written. Its result has not been returned, and its effects have not been executed.
    AfterCommit,
    /// An effect is recorded by the crash guard and not executed.
    EffectStarted,
    /// An effect was executed, and its report is not written.
    EffectPerformed,
}

#[cfg(feature = "failpoints")]
static HOOK: std::sync::OnceLock<fn(DaemonFailpoint)> = std::sync::OnceLock::new();

/// Installs the hook that is called at each failpoint. Only the first hook counts.
#[cfg(feature = "failpoints")]
pub fn install(hook: fn(DaemonFailpoint)) {
    // Only the first hook is installed.
    HOOK.set(hook).ok();
}

/// Called at each failpoint.
#[inline]
pub(crate) fn reach(point: DaemonFailpoint) {
    #[cfg(feature = "failpoints")]
    if let Some(hook) = HOOK.get() {
        hook(point);
    }
    #[cfg(not(feature = "failpoints"))]
    let _ = point;
}
