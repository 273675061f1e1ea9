//! HTTP, JSON-RPC and MCP: the ways in from outside.
//!
//! [`http`] is the daemon's interface, and [`access`] the credentials that its clients show. [`rpc`] is one client of the terminal runtime on a pair of descriptors, turned by
//! one thread; [`mcp`] offers the same as tools. What they share, from wire types to runtime values and back, is in
//! [`translate`].

pub mod access;
pub mod http;
pub mod mcp;
pub mod metrics;
pub mod rpc;
pub mod translate;

mod escape;
mod line;
