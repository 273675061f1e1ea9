//! Stateful tools: programs that run across calls, held by keepers.
//!
//! Reading order: `program` (the kind of program), `record` and `lookup` (where sessions are stored and how they are
//! looked up), `start`, `shell` (shells with command tracking) and `program_input` (all other programs), `call` (a
//! complete call), and `interrupted_call` (calls that a crash interrupted). No session state is kept in memory. Each
//! call looks the session up by its directory, so the next process continues where this one ended.
//!
//! Programs that are started for one call are in [`crate::tool`].

pub(crate) mod call;
pub(crate) mod interrupted_call;
pub(crate) mod lookup;
pub(crate) mod output_copies;
pub(crate) mod program;
pub(crate) mod program_input;
pub(crate) mod record;
pub(crate) mod shell;
pub(crate) mod start;
