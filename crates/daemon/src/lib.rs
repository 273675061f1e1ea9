//! The daemon's loop: take an event, apply it, commit, execute the pending effects.
//!
//! [`RunService`] applies and commits events, and is the only way to change a run. [`EffectExecutor`] executes effects
//! and reports the output of engines. [`Daemon`] combines both for clients. [`probe`] determines whether an engine can
//! be used. This crate names no adapter.

mod board;
mod budget;
mod content;
mod daemon;
mod desk;
mod error;
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
