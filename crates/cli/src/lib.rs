//! The command line: arguments, configuration, and the one place where real adapters are plugged in.

mod args;
pub mod catalogue;
pub mod clock;
pub mod config;
mod doctor;
mod exit;
mod home;
mod machine;
mod mcp;
pub mod processes;
mod rpc;
mod sessions;
mod table;

pub use exit::main;
