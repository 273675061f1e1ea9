//! The types of the public API and the schemas generated from them.
//!
//! Plain `serde` values under the names of the interface. No transport, no storage, no behaviour.

pub mod terminal;
