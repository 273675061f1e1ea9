//! The types of the public interfaces. Their behaviour is implemented elsewhere.

pub mod access;
pub mod artifact;
pub mod event;
pub mod interaction;
pub mod message;
pub mod rpc;
pub mod run;
pub mod service;
pub mod strict;
pub mod terminal;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct WireReadme;
