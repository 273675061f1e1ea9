//! The run: its state, and the function that changes it.
//!
//! [`apply`] takes a run and an event and returns the new state and the requested effects. It is called by the daemon
//! before every commit, by the store when it rebuilds its tables, and by the simulator. The events are handled in
//! separate files; shared operations are in `draft.rs`. The sources of events and the execution of effects are not part
//! of the domain.

mod admission;
mod answer;
mod arrival;
mod contact;
mod deadline;
mod delivery;
mod draft;
mod ending;
mod gate;
mod launch;
mod order;
mod park;
mod rules;
mod shutdown;
mod state;
mod stop;

pub use draft::{INBOX_LIMIT, LAUNCH_TRIES};
pub use rules::RULES;
pub use state::{
    ActiveAttempt, AnsweredGate, HeldProcess, LaunchingAttempt, NextTurn, RecoveringAttempt, Run,
    RunCancellation, RunOutcome, RunState, RunStatus, RunningPhase, StopReason, StoppingAttempt, UserWait,
};

use alloc::vec::Vec;

use draft::RunTransition;

use crate::{effect::PendingEffect, event::RunEvent, refused::RequestRefused, time::EventStamp};

/// The result of applying an event to a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunStep {
    pub run: Run,
    /// Newly requested effects. They also stay in the run until they are settled.
    pub effects: Vec<PendingEffect>,
    pub news: ApplyOutcome,
    /// An event that must be applied next, in the same commit: an immediate answer by policy (D6).
    pub then: Option<RunEvent>,
}

/// Whether an event changed the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplyOutcome {
    Changed,
    /// The event was late, repeated or obsolete. No commit is needed.
    Absorbed,
}

/// Applies an event to a run. The match arms are in the order of a run's life cycle.
pub fn apply(run: Option<&Run>, stamp: &EventStamp, event: &RunEvent) -> Result<RunStep, RequestRefused> {
    let Some(run) = run else {
        let RunEvent::RunCreated(new) = event else { return Err(RequestRefused::NoSuchRun) };
        return Ok(RunTransition::create(stamp, new).into_step());
    };
    let mut draft = RunTransition::of(run, stamp);
    let news = match event {
        RunEvent::RunCreated(_) => return Err(RequestRefused::RunExists),
        RunEvent::Admitted => draft.admitted()?,
        RunEvent::ProfileResolved { profile, abilities, handle, command } => {
            draft.profile_resolved(profile, *abilities, handle.as_ref(), command.as_ref())
        }
        RunEvent::EngineUnusable { failure } => draft.engine_unusable(failure),
        RunEvent::AttemptStarted { attempt, process } => draft.attempt_started(*attempt, process),
        RunEvent::LaunchFailed { attempt, failure, retry } => draft.launch_failed(*attempt, failure, *retry),
        RunEvent::HandleAnnounced { attempt, position, handle } => {
            draft.handle_announced(*attempt, *position, handle)
        }
        RunEvent::Progressed { attempt, position, .. } => draft.progressed(*attempt, *position),
        RunEvent::GateRaised { attempt, turn_id, position, gate, purpose, question } => {
            draft.gate_raised((*attempt, *turn_id), *position, gate, *purpose, question)
        }
        RunEvent::GateWithdrawn { attempt, position, gate } => {
            draft.gate_withdrawn(*attempt, *position, gate)
        }
        RunEvent::TurnEnded { attempt, turn_id, position, ending, aftermath } => {
            draft.turn_ended((*attempt, *turn_id), *position, ending, *aftermath)
        }
        RunEvent::ReplyArrived { reply } => draft.reply_arrived(reply)?,
        RunEvent::MessageArrived { message, on_busy } => draft.message_arrived(message, *on_busy)?,
        RunEvent::InterruptRequested { by } => draft.interrupt_requested(by)?,
        RunEvent::CancelRequested { by } => draft.cancel_requested(by)?,
        RunEvent::ShutdownRequested => draft.shutdown_requested(),
        RunEvent::RulesAdopted { rules } => draft.rules_adopted(*rules),
        RunEvent::ProcessExited { attempt, exit } => draft.process_exited(*attempt, *exit),
        RunEvent::ContactLost { attempt, within } => draft.contact_lost(*attempt, *within),
        RunEvent::ContactRestored { attempt, process } => draft.contact_restored(*attempt, process),
        RunEvent::RecoveryFailed { attempt, reason } => draft.recovery_failed(*attempt, reason),
        RunEvent::SessionLost { failure } => draft.session_lost(failure),
        RunEvent::DeadlinePassed { deadline } => draft.deadline_passed(*deadline),
        RunEvent::DeliveryConfirmed { delivery_id } => draft.delivery_confirmed(*delivery_id),
        RunEvent::DeliveryFailed { delivery_id, certainty } => {
            draft.delivery_failed(*delivery_id, *certainty)
        }
        RunEvent::ConversationSpoke => draft.conversation_spoke(),
        RunEvent::EffectPerformed { effect } => draft.effect_performed(*effect),
        RunEvent::EffectMissed { effect } => draft.effect_missed(*effect),
    };
    Ok(match news {
        ApplyOutcome::Changed => draft.into_step(),
        ApplyOutcome::Absorbed => RunStep { run: run.clone(), effects: Vec::new(), news, then: None },
    })
}
