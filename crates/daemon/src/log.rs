//! Logs the events of runs: one line for each event that changed a run, with ids and codes as fields.
//!
//! Text of users and engines is not logged: neither prompts and answers nor failure messages, which may repeat engine
//! input. Those are in the ledger. The exception is an automatic reply, which is text of Abide (D6). The subscriber
//! formats the lines.

use abide_domain::{
    event::{RunEvent, TurnOutcome},
    policy::AUTO_REPLY_SOURCE,
    reply::ReplyAuthor,
    run::Run,
};
use tracing::{debug, info, info_span, warn};

/// Logs an event with the turn and the status of its run. Created before the commit, and called after it.
pub(crate) struct EventLogLine(Box<dyn FnOnce(u32, &'static str) + Send>);

/// Maximum length of an automatic reply in the log, in characters.
const MAX_INSTRUCTION_CHARS: usize = 200;

impl EventLogLine {
    pub(crate) fn of(event: &RunEvent) -> Self {
        Self(match event {
            RunEvent::RunCreated(_) => Box::new(|_, status| info!(status, "run created")),
            RunEvent::AttemptStarted { process, .. } => {
                let pid = process.pid;
                Box::new(move |turn, _| info!(turn, pid, "attempt started"))
            }
            RunEvent::LaunchFailed { failure, retry, .. } => {
                let (code, retry) = (failure.code, *retry);
                Box::new(move |turn, status| warn!(turn, ?code, ?retry, status, "launch failed"))
            }
            RunEvent::EngineUnusable { failure } => {
                let code = failure.code;
                Box::new(move |_, status| warn!(?code, status, "engine unusable"))
            }
            RunEvent::ContactLost { .. } => Box::new(|turn, _| warn!(turn, "contact lost")),
            RunEvent::RecoveryFailed { .. } => {
                Box::new(|turn, status| warn!(turn, status, "recovery failed"))
            }
            RunEvent::TurnEnded { outcome, .. } => {
                let ending = match outcome {
                    TurnOutcome::Completed { .. } => "completed",
                    TurnOutcome::Asked { .. } => "asked",
                    TurnOutcome::Failed { .. } => "failed",
                    TurnOutcome::Interrupted => "interrupted",
                };
                Box::new(move |turn, status| info!(turn, ending, status, "turn ended"))
            }
            RunEvent::ReplyArrived { reply } => {
                let interaction = reply.interaction_id;
                match &reply.by {
                    ReplyAuthor::Person(_) => {
                        Box::new(move |_, status| info!(%interaction, status, "reply accepted"))
                    }
                    ReplyAuthor::Policy { reason, policy } => {
                        let instruction: String = reply.text.chars().take(MAX_INSTRUCTION_CHARS).collect();
                        let (reason, policy, source) = (reason.name(), policy.name(), AUTO_REPLY_SOURCE);
                        Box::new(move |_, status| {
                            info!(%interaction, source, reason, policy, instruction, status, "automatic reply accepted");
                        })
                    }
                }
            }
            RunEvent::ShutdownRequested => {
                Box::new(|turn, status| info!(turn, status, "stopped by a shutdown"))
            }
            RunEvent::CancelRequested { .. } => Box::new(|_, status| info!(status, "cancel requested")),
            RunEvent::InterruptRequested { .. } => Box::new(|turn, _| info!(turn, "interrupt requested")),
            RunEvent::EffectPerformed { effect } => {
                let effect = effect.0;
                Box::new(move |_, _| debug!(effect, "effect performed"))
            }
            RunEvent::EffectObsolete { effect } => {
                let effect = effect.0;
                Box::new(move |_, _| debug!(effect, "order missed"))
            }
            RunEvent::Admitted
            | RunEvent::RulesAdopted { .. }
            | RunEvent::MessageArrived { .. }
            | RunEvent::ProfileResolved { .. }
            | RunEvent::ProcessExited { .. }
            | RunEvent::ContactRestored { .. }
            | RunEvent::HandleAnnounced { .. }
            | RunEvent::Progressed { .. }
            | RunEvent::GateRaised { .. }
            | RunEvent::GateWithdrawn { .. }
            | RunEvent::DeadlinePassed { .. }
            | RunEvent::DeliveryConfirmed { .. }
            | RunEvent::DeliveryFailed { .. }
            | RunEvent::SessionLost { .. }
            | RunEvent::ConversationActive => {
                let event = event.name();
                Box::new(move |_, status| debug!(event, status, "event taken"))
            }
        })
    }

    /// Logs the event with the new state of the run.
    pub(crate) fn write(self, run: &Run) {
        let engine = run.settings.engine.as_str();
        let span = info_span!("run", run = %run.run_id, attempt = run.last_attempt.0, engine);
        span.in_scope(|| (self.0)(run.turn_index, run.status().name()));
    }
}
