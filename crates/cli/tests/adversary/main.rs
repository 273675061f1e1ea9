//! Hostile programs as agents and tools (issue "Trust boundary"). For any behaviour in their workspace, the daemon
//! keeps running, another run is unaffected, memory is bounded, and nothing outside the workspace changes.
//!
//! Each test ends with [`harness::AdversaryDaemon::assert_unharmed`]. Requests and lines at the size limits are in
//! `tests/daemon/bounds.rs`, keepers stopped at other times in `tests/processes.rs`, and clones with forged state in
//! `tests/agent`.

mod canary;
mod harness;
mod links;
mod native;
mod output;
mod processes;
mod swaps;
mod trees;
