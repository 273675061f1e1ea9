//! The command line: arguments, configuration, and the one place where real adapters are plugged in.

mod args;
pub mod catalogue;
mod client;
pub mod clock;
pub mod config;
mod doctor;
mod exit;
#[cfg(feature = "failpoints")]
mod failpoints;
mod home;
mod machine;
mod mcp;
mod parrot;
pub mod processes;
mod rpc;
mod runs;
mod service;
mod sessions;
mod table;
mod text;
mod trouble;
mod up;
pub mod workspace;

pub use exit::main;
