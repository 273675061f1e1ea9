//! JSON-RPC and MCP over the terminal runtime.
//!
//! [`rpc`] is one client on a pair of descriptors, turned by one thread; [`mcp`] offers the same as tools. What they
//! share, from wire types to runtime values and back, is in [`translate`].

pub mod mcp;
pub mod rpc;
pub mod translate;

mod escape;
mod line;
