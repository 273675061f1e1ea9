//! The command line: arguments, configuration, client, printing, and in `up` the assembly of the daemon from its adapters.

mod agent;
mod args;
mod backup;
mod client;
pub mod config;
mod doctor;
mod error;
mod exit;
mod home;
mod mcp;
mod restore;
mod rpc;
mod runs;
mod service;
mod sessions;
mod store;
mod table;
mod terminal_text;
mod token;
mod up;
mod verify;

pub use exit::main;
