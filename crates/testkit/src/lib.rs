//! Fakes, conformance suites and the harness for the real daemon. Used only as a dev-dependency.
//!
//! There is one suite for each contract of `ports`, which each implementation must pass. The suites do not depend on
//! any implementation.

pub mod clock;
#[cfg(feature = "daemon")]
pub mod daemon;
pub mod engine;
pub mod environment;
pub mod fake_engine;
pub mod history;
pub mod journal_writer;
#[cfg(feature = "model")]
pub mod model;
pub mod proc;
pub mod seeded_rng;
pub mod skip;
pub mod store;
pub mod user;
pub mod wait;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
