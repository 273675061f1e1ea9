//! Runs, turns, attempts, interactions and deliveries, and how each event changes them.
//!
//! The crate is pure: clocks, files, threads and maps with random order are not available. Begin reading with
//! [`run::apply`].
#![no_std]

extern crate alloc;

pub mod id;
pub mod time;

pub mod engine;
pub mod process;
pub mod settings;

pub mod approval;
pub mod context;
pub mod deadline;
pub mod delivery;
pub mod inbound;
pub mod interaction;
pub mod policy;
pub mod reply;
pub mod run;
pub mod slots;
pub mod turn;

pub mod effect;
pub mod event;
pub mod failure;
pub mod ledger;
pub mod refused;
mod texts;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct DomainReadme;
