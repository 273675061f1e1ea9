//! The native agent as people run it: the real binary, real shells, and a model that is not one.

#![expect(clippy::unwrap_used, reason = "all of this is a test")]

mod definitions;
mod engine;
mod journals;
mod limits;
mod mistakes;
mod people;
mod recovery;
mod stage;
mod stories;
#[cfg(feature = "failpoints")]
mod sweep;
mod terminal;
