//! The command line: arguments, configuration, and the composition of the real adapters.

mod access;
mod agent;
mod args;
mod backup;
mod client;
pub mod clock;
pub mod config;
mod contents;
mod crash_guard;
mod doctor;
mod exit;
#[cfg(feature = "failpoints")]
mod failpoints;
pub mod groups;
mod home;
mod home_folders;
mod host_error;
pub mod isolation;
mod machine;
mod made;
mod mcp;
mod private;
pub mod processes;
mod restore;
mod retention;
mod rpc;
mod runs;
mod service;
mod sessions;
mod space;
mod store;
mod table;
mod text;
mod token;
mod trouble;
mod up;
mod verify;
pub mod workspace;

pub use exit::main;
