//! The command line: arguments, configuration, and the one place where real adapters are plugged in.

mod args;
pub mod catalogue;
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
mod sessions;
mod table;
mod up;
pub mod workspace;

pub use exit::main;
