//! Programs that stay between calls, held by keepers.
//!
//! Not here: programs that are started for one call; those are [`crate::tool`].
