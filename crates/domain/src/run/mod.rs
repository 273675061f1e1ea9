//! The run: its state, and the one function that changes it.
//!
//! [`apply`] takes a run and an event and says what the run becomes and what is then owed to the world. It is
//! called by the daemon before every commit, by the store when it rebuilds its tables, and by the simulator.
//! Each event has its story in a file of its own; what several stories share is in `draft.rs`.
//! Deciding where events come from and carrying orders out are not here.

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
    Active, AnsweredGate, Cancellation, Finished, Hold, Launching, NextTurn, Recovering, Run, RunState,
    Status, StopReason, Stopping, Waiting, Working,
};

use alloc::vec::Vec;

use draft::Draft;

use crate::{effect::Owed, event::Event, refused::Refused, time::Stamp};

/// What an event does to a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What the run becomes.
    pub run: Run,
    /// What is newly owed; also kept in the run until it is settled.
    pub effects: Vec<Owed>,
    /// Whether anything changed.
    pub news: News,
    /// An event that must be applied next, in the same commit: an answer that policy gives at once (D6).
    pub then: Option<Event>,
}

/// Whether an event changed anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// It did.
    Changed,
    /// It was late, repeated or about something that no longer matters. Nothing need be committed.
    Absorbed,
}

/// Applies an event to a run. The order of the arms is the order of a run's life.
pub fn apply(run: Option<&Run>, stamp: &Stamp, event: &Event) -> Result<Step, Refused> {
    let Some(run) = run else {
        let Event::RunCreated(new) = event else { return Err(Refused::NoSuchRun) };
        return Ok(Draft::create(stamp, new).into_step());
    };
    let mut draft = Draft::of(run, stamp);
    let news = match event {
        Event::RunCreated(_) => return Err(Refused::RunExists),
        Event::Admitted => draft.admitted()?,
        Event::ProfileResolved { profile, abilities, handle, command } => {
            draft.profile_resolved(profile, *abilities, handle.as_ref(), command.as_ref())
        }
        Event::EngineUnusable { failure } => draft.engine_unusable(failure),
        Event::AttemptStarted { attempt, process } => draft.attempt_started(*attempt, process),
        Event::LaunchFailed { attempt, failure, retry } => draft.launch_failed(*attempt, failure, *retry),
        Event::HandleAnnounced { attempt, position, handle } => {
            draft.handle_announced(*attempt, *position, handle)
        }
        Event::Progressed { attempt, position, .. } => draft.progressed(*attempt, *position),
        Event::GateRaised { attempt, turn_id, position, gate, purpose, question } => {
            draft.gate_raised((*attempt, *turn_id), *position, gate, *purpose, question)
        }
        Event::GateWithdrawn { attempt, position, gate } => draft.gate_withdrawn(*attempt, *position, gate),
        Event::TurnEnded { attempt, turn_id, position, ending, aftermath } => {
            draft.turn_ended((*attempt, *turn_id), *position, ending, *aftermath)
        }
        Event::ReplyArrived { reply } => draft.reply_arrived(reply)?,
        Event::MessageArrived { message, on_busy } => draft.message_arrived(message, *on_busy)?,
        Event::InterruptRequested { by } => draft.interrupt_requested(by)?,
        Event::CancelRequested { by } => draft.cancel_requested(by)?,
        Event::ShutdownRequested => draft.shutdown_requested(),
        Event::RulesAdopted { rules } => draft.rules_adopted(*rules),
        Event::ProcessExited { attempt, exit } => draft.process_exited(*attempt, *exit),
        Event::ContactLost { attempt, within } => draft.contact_lost(*attempt, *within),
        Event::ContactRestored { attempt, process } => draft.contact_restored(*attempt, process),
        Event::RecoveryFailed { attempt, reason } => draft.recovery_failed(*attempt, reason),
        Event::SessionLost { failure } => draft.session_lost(failure),
        Event::DeadlinePassed { deadline } => draft.deadline_passed(*deadline),
        Event::DeliveryConfirmed { delivery_id } => draft.delivery_confirmed(*delivery_id),
        Event::DeliveryFailed { delivery_id, certainty } => draft.delivery_failed(*delivery_id, *certainty),
        Event::ConversationSpoke => draft.conversation_spoke(),
        Event::EffectPerformed { effect } => draft.effect_performed(*effect),
        Event::EffectMissed { effect } => draft.effect_missed(*effect),
    };
    Ok(match news {
        News::Changed => draft.into_step(),
        News::Absorbed => Step { run: run.clone(), effects: Vec::new(), news, then: None },
    })
}
