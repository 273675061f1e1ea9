//! Fakes and conformance suites. Only ever a dev-dependency.
//!
//! One suite per contract of `ports`; whoever implements the contract must pass it. Nothing here knows an
//! implementation.

pub mod actor;
pub mod clock;
#[cfg(feature = "daemon")]
pub mod daemon;
pub mod dice;
pub mod engine;
pub mod environment;
pub mod history;
#[cfg(feature = "model")]
pub mod model;
pub mod skip;
pub mod store;
pub mod wait;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
