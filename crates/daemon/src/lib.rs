//! The loop: take an event, apply it, commit, perform what is owed.
//!
//! [`Desk`] is the part that takes, applies and commits: the one door to every run. [`Performer`] carries out what is
//! owed and brings back what engines say. [`Daemon`] is both, as the outside sees them. [`probe`] finds out whether an engine can be used. No adapter is named here.

mod board;
mod budget;
mod content;
mod daemon;
mod desk;
mod error;
pub mod failpoint;
mod guard;
mod lanes;
mod performer;
mod pressure;
pub mod probe;
mod recent;
mod talk;
mod tell;

pub use daemon::{BeforeStop, Daemon, Habits, Stopped, StoppedRun};
pub use desk::{Desk, Foresight, Outcome, Rules};
pub use error::DeskError;
pub use guard::{Admission, CrashGuard, GuardPauses, Performance};
pub use performer::{Performer, World};
pub use pressure::{Shortage, SpaceLimit};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
