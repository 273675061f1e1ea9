//! Hostile programs as agents and tools (issue "Trust boundary"): whatever they do in their workspace, the daemon stays up,
//! another run is unaffected, memory stays bounded, and nothing outside the workspace changes.
//!
//! Every story ends with [`stage::AdversaryDaemon::assert_unharmed`]. Requests and lines at the bounds are in `tests/daemon/bounds.rs`,
//! keepers that are stopped at other moments in `tests/processes.rs`, and clones with forged state in `tests/agent`.

mod canary;
mod links;
mod native;
mod output;
mod processes;
mod stage;
mod swaps;
mod trees;
