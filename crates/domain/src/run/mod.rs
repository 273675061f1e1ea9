//! The run: its state, and the function that changes it.
//!
//! [`apply`] takes a run and an event and returns the new state and the requested effects. It is called by the daemon
//! before every commit, by the store when it rebuilds its tables, and by the simulator. The events are handled in
//! separate files; shared operations are in `transition.rs`. The sources of events and the execution of effects are not part
//! of the domain.

mod admission;
mod answer;
mod arrival;
mod contact;
mod deadline;
mod delivery;
mod effects;
mod ending;
mod gate;
mod launch;
mod question;
mod rules;
mod shutdown;
mod state;
mod stop;
mod transition;

pub use rules::CURRENT_RULES_VERSION;
pub use state::{
    ActiveAttempt, AnsweredGate, HeldProcess, LaunchingAttempt, NextTurn, RecoveringAttempt, Run,
    RunCancellation, RunOutcome, RunState, RunStatus, RunningPhase, StopReason, StoppingAttempt, UserWait,
};
pub use transition::{INBOX_LIMIT, MAX_LAUNCHES_PER_TURN};

use alloc::vec::Vec;

use transition::RunTransition;

use crate::{effect::PendingEffect, event::RunEvent, refused::RequestRefused, time::EventStamp};

/// The result of applying an event to a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunStep {
    pub run: Run,
    /// Newly requested effects. They also stay in the run until they are settled.
    pub effects: Vec<PendingEffect>,
    pub outcome: ApplyOutcome,
    /// An event that must be applied next, in the same commit: an immediate answer by policy (D6).
    pub follow_up: Option<RunEvent>,
}

/// Whether an event changed the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplyOutcome {
    Changed,
    /// The event was late, repeated or obsolete. No commit is needed.
    Ignored,
}

/// Applies an event to a run. The match arms are in the order of a run's life cycle.
pub fn apply(run: Option<&Run>, stamp: &EventStamp, event: &RunEvent) -> Result<RunStep, RequestRefused> {
    let Some(run) = run else {
        let RunEvent::RunCreated(new) = event else { return Err(RequestRefused::NoSuchRun) };
        return Ok(RunTransition::create(stamp, new).into_step());
    };
    let mut transition = RunTransition::begin(run, stamp);
    let outcome = match event {
        RunEvent::RunCreated(_) => return Err(RequestRefused::RunExists),
        RunEvent::Admitted => transition.on_admitted()?,
        RunEvent::ProfileResolved { profile, abilities, handle, command } => {
            transition.on_profile_resolved(profile, *abilities, handle.as_ref(), command.as_ref())
        }
        RunEvent::EngineUnusable { failure } => transition.on_engine_unusable(failure),
        RunEvent::AttemptStarted { attempt, process } => transition.on_attempt_started(*attempt, process),
        RunEvent::LaunchFailed { attempt, failure, retry } => {
            transition.on_launch_failed(*attempt, failure, *retry)
        }
        RunEvent::HandleAnnounced { attempt, position, handle } => {
            transition.on_handle_announced(*attempt, *position, handle)
        }
        RunEvent::Progressed { attempt, position, .. } => transition.on_progressed(*attempt, *position),
        RunEvent::GateRaised { attempt, turn_id, position, gate, purpose, question } => {
            transition.on_gate_raised((*attempt, *turn_id), *position, gate, *purpose, question)
        }
        RunEvent::GateWithdrawn { attempt, position, gate } => {
            transition.on_gate_withdrawn(*attempt, *position, gate)
        }
        RunEvent::TurnEnded { attempt, turn_id, position, outcome, process_after } => {
            transition.on_turn_ended((*attempt, *turn_id), *position, outcome, *process_after)
        }
        RunEvent::ReplyArrived { reply } => transition.on_reply_arrived(reply)?,
        RunEvent::MessageArrived { message, on_busy } => transition.on_message_arrived(message, *on_busy)?,
        RunEvent::InterruptRequested { by } => transition.on_interrupt_requested(by)?,
        RunEvent::CancelRequested { by } => transition.on_cancel_requested(by)?,
        RunEvent::ShutdownRequested => transition.on_shutdown_requested(),
        RunEvent::RulesAdopted { rules } => transition.on_rules_adopted(*rules),
        RunEvent::ProcessExited { attempt, exit } => transition.on_process_exited(*attempt, *exit),
        RunEvent::ContactLost { attempt, search_timeout_sec } => {
            transition.on_contact_lost(*attempt, *search_timeout_sec)
        }
        RunEvent::ContactRestored { attempt, process } => transition.on_contact_restored(*attempt, process),
        RunEvent::RecoveryFailed { attempt, reason } => transition.on_recovery_failed(*attempt, reason),
        RunEvent::SessionLost { failure } => transition.on_session_lost(failure),
        RunEvent::DeadlinePassed { deadline } => transition.on_deadline_passed(*deadline),
        RunEvent::DeliveryConfirmed { delivery_id } => transition.on_delivery_confirmed(*delivery_id),
        RunEvent::DeliveryFailed { delivery_id, certainty } => {
            transition.on_delivery_failed(*delivery_id, *certainty)
        }
        RunEvent::ConversationActive => transition.on_conversation_active(),
        RunEvent::EffectPerformed { effect } => transition.on_effect_performed(*effect),
        RunEvent::EffectObsolete { effect } => transition.on_effect_obsolete(*effect),
    };
    Ok(match outcome {
        ApplyOutcome::Changed => transition.into_step(),
        ApplyOutcome::Ignored => RunStep { run: run.clone(), effects: Vec::new(), outcome, follow_up: None },
    })
}
