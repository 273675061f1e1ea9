//! The daemon's loop: take an event, apply it, commit, execute the pending effects.
//!
//! [`Daemon`] is the handle for clients. Its event loop passes every input to a [`Dispatcher`], a pure value that owns
//! one actor for each active run and the scheduler, and performs the actions that the dispatcher returns. The
//! simulator drives the same dispatcher. [`probe`] determines whether an engine can be used. This crate names no
//! adapter.

/// Implements `Debug` for types with parts that have no such implementation, or whose text must not be logged.
macro_rules! opaque_debug {
    ($($opaque:ty),+) => {$(
        impl std::fmt::Debug for $opaque {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($opaque)).finish_non_exhaustive()
            }
        }
    )+};
}

mod budget;
mod content;
mod dispatcher;
mod error;
mod event_loop;
mod executor;
mod guard;
mod launch;
mod log;
mod pressure;
pub mod probe;
mod probe_cache;
mod process;
mod replies;
mod run_actor;
mod scheduler;
mod service;
mod shutdown;

pub use dispatcher::{
    ActiveRun, DaemonAction, DaemonActivity, DaemonInput, Dispatcher, DispatcherConfig, ProbeOutcome,
};
pub use error::RequestError;
pub use executor::{
    EffectExecutor, EffectOperation, EffectResult, LocatedProcess, MachineSurvey, ReadRequest,
    read_available, turns_of_attempt,
};
pub use guard::{CrashGuard, CrashGuardDecision, GuardPauses, GuardedEffect};
pub use launch::{parse_process_name, process_name};
pub use pressure::{DiskShortage, SpaceLimit};
pub use replies::QuestionAndRun;
pub use run_actor::{
    ActorNumber, ActorPause, RequestOutcome, RequestReply, RunAction, RunInput, TransitionRules,
};
pub use service::{Daemon, DaemonConfig, DaemonDeps, DaemonParts, is_orphan, runs_to_recover};
pub use shutdown::{ActivityBeforeStop, ShutdownReport, StoppedRun};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct DaemonReadme;

opaque_debug!(Daemon, DaemonDeps, DispatcherConfig, CrashGuard, GuardedEffect);
opaque_debug!(launch::PreparedLaunch, log::EventLogLine, probe::ProbeRequest<'_>);
