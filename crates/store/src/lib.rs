//! Stores the journal and the ledgers in SQLite, Postgres or memory.
//!
//! The contracts and the meaning of a change for the tables are in `ports`. This crate contains only the storage.

#[cfg(feature = "_records")]
mod chain;
mod cursor;
pub mod memory;
#[cfg(feature = "_records")]
mod migration;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "_records")]
mod record;
pub mod registry;
#[cfg(feature = "_records")]
mod row_buffer;
#[cfg(feature = "_records")]
mod run_rows;
#[cfg(feature = "sqlite")]
pub mod sqlite;
pub mod verification;
#[cfg(feature = "_records")]
mod witness;

#[cfg(feature = "_records")]
pub use witness::LossPolicy;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct StoreReadme;
