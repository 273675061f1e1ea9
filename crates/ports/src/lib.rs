//! The contracts with the outside: what the daemon asks of the world, without saying who answers.
//!
//! No implementation lives here, and nothing that only one implementation needs.

pub mod catalogue;
pub mod clock;
pub mod contents;
pub mod crash_log;
pub mod engine;
pub mod processes;
pub mod secret;
pub mod space;
pub mod store;
pub mod watch;
pub mod workspace;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct PortsReadme;
