//! The native think-act-observe agent: journal, tools and model client.
//!
//! Its entire state is a folder (`.abide`) with a journal of messages, requests and observations. Each request to the
//! model is built from the journal. The home has a record of that folder, and the files that tools must not be able to
//! write. The crate uses one thread and has a synchronous interface. Tools are processes under keepers, so stateful
//! tools survive this program.
//!
//! Arguments, environment and terminal belong to `cli`. For the daemon, this agent is an engine like the others.

pub mod definition;
pub mod model;
pub mod session;
pub mod tool;

pub mod context;
pub mod event;
pub mod hands;
pub mod human;
pub mod intake;
pub mod journal;
pub mod memory;
pub mod outcome;
pub mod provenance;
pub mod run;
pub mod state;
pub mod story;

mod bench;
mod clock;
mod lock;
mod recovery;
mod secrets;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct AgentReadme;
