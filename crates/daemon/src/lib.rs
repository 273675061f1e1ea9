//! The loop: take an event, apply it, commit, perform what is owed.
//!
//! [`RunService`] is the part that takes, applies and commits: the one door to every run. [`EffectExecutor`] carries out what is
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

pub use daemon::{ActivityBeforeStop, Daemon, DaemonConfig, ShutdownReport, StoppedRun};
pub use desk::{CachedProbeResult, RequestOutcome, RunService, TransitionRules};
pub use error::RequestError;
pub use guard::{CrashGuard, CrashGuardDecision, GuardPauses, GuardedEffect};
pub use performer::{DaemonDeps, EffectExecutor};
pub use pressure::{DiskShortage, SpaceLimit};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct DaemonReadme;
