//! The loop: take an event, apply it, commit, perform what is owed.
//!
//! [`Desk`] is the part that takes, applies and commits: the one door to every run. Performing what is owed comes
//! with the engines. No adapter is named here.

mod board;
mod desk;
mod error;
mod lanes;

pub use desk::{Desk, Outcome, Rules};
pub use error::DeskError;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
