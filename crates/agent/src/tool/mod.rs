//! A call's arguments become an invocation, and what came of it a bounded observation.
//!
//! Not here: programs that stay between calls; those are [`crate::session`].
