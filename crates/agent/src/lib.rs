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

pub mod agent_state;
pub mod ask_human;
pub mod context;
pub mod environment;
pub mod event;
pub mod journal;
pub mod journal_state;
pub mod outcome;
pub mod provenance;
pub mod run;
pub mod run_plan;
pub mod state_directory;

mod clock;
mod lock;
mod recovery;
mod secrets;
mod tool_runner;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct AgentReadme;
