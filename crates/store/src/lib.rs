//! The journal and the ledgers, kept in SQLite, Postgres or memory.
//!
//! What must be kept, and what a change means for the tables, is said in `ports`; here is only how it is kept.

#[cfg(feature = "_records")]
mod assembly;
#[cfg(feature = "_records")]
mod chain;
mod cursor;
pub mod memory;
#[cfg(feature = "_records")]
mod migration;
#[cfg(feature = "_records")]
mod pen;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "_records")]
mod record;
pub mod registry;
#[cfg(feature = "sqlite")]
pub mod sqlite;
pub mod upkeep;
#[cfg(feature = "_records")]
mod witness;
pub mod wrapped;

#[cfg(feature = "_records")]
pub use witness::LossPolicy;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct StoreReadme;
