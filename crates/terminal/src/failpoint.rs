//! A failpoint of the runtime, reached before any work for a session.
//!
//! Compiled only with the feature `failpoints`, which no release has. Without it, the calls are empty.

use crate::session::SessionId;

#[cfg(feature = "failpoints")]
static HOOK: std::sync::OnceLock<fn(&SessionId)> = std::sync::OnceLock::new();

/// Installs the hook that is called before any work for a session. Only the first hook counts.
#[cfg(feature = "failpoints")]
pub fn install(hook: fn(&SessionId)) {
    HOOK.set(hook).ok();
}

/// Called before any work for a session.
#[inline]
pub(crate) fn reach(session: Option<&SessionId>) {
    #[cfg(feature = "failpoints")]
    if let (Some(hook), Some(session)) = (HOOK.get(), session) {
        hook(session);
    }
    #[cfg(not(feature = "failpoints"))]
    let _ = session;
}
