//! The contracts with the outside: the services that the daemon requires, without their implementations.
//!
//! Types that only one implementation needs do not belong here.

pub mod catalogue;
pub mod clock;
pub mod contents;
pub mod crash_log;
pub mod engine;
pub mod observer;
pub mod operation_guard;
pub mod processes;
pub mod secret;
pub mod space;
pub mod store;
pub mod workspace;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct PortsReadme;
