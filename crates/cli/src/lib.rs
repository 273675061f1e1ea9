//! The command line: arguments, configuration, and the one place where real adapters are plugged in.

mod args;
pub mod catalogue;
pub mod clock;
mod exit;
mod home;
mod mcp;
mod parrot;
pub mod processes;
mod rpc;
mod sessions;

pub use exit::main;
