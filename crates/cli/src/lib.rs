//! The command line: arguments, configuration, and the one place where real adapters are plugged in.

mod args;
mod exit;
mod home;
mod mcp;
mod parrot;
mod rpc;
mod sessions;

pub use exit::main;
