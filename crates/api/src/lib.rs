//! The external interfaces: HTTP, JSON-RPC and MCP.
//!
//! [`http`] is the daemon's interface, and [`access`] holds the credentials of its clients. [`rpc`] serves one client
//! of the terminal runtime on a pair of file descriptors with one thread; [`mcp`] offers the same as tools.
//! [`translate`] holds the conversions between wire types and runtime values that they share.

pub mod access;
pub mod http;
pub mod mcp;
pub mod rpc;
pub mod translate;

mod client_lines;
mod escape;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ApiReadme;
