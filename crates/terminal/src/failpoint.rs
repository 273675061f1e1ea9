//! A place at which tests let the runtime break: before it does anything for a session.
//!
//! Compiled in only with the feature `failpoints`, which no shipped program has; without it nothing is left of it.

use crate::session::SessionId;

#[cfg(feature = "failpoints")]
static HOOK: std::sync::OnceLock<fn(&SessionId)> = std::sync::OnceLock::new();

/// From now on this is called before anything is done for a session. Only the first hook counts.
#[cfg(feature = "failpoints")]
pub fn install(hook: fn(&SessionId)) {
    HOOK.set(hook).ok();
}

/// Something is about to be done for a session.
#[inline]
pub(crate) fn reach(session: Option<&SessionId>) {
    #[cfg(feature = "failpoints")]
    if let (Some(hook), Some(session)) = (HOOK.get(), session) {
        hook(session);
    }
    #[cfg(not(feature = "failpoints"))]
    let _ = session;
}
