//! Logs the events of runs: one line for each event that changed a run, with ids and codes as fields.
//!
//! Text of users and engines is not logged: neither prompts and answers nor failure messages, which may repeat engine
//! input. Those are in the ledger. The exception is an automatic reply, which is text of Abide (D6). The subscriber
//! formats the lines.

use abide_domain::{
    event::{LaunchRetry, RunEvent, TurnOutcome},
    failure::FailureCode,
    id::InteractionId,
    interaction::DecisionPolicy,
    policy::{AUTO_REPLY_SOURCE, AutoDecideReason},
    reply::ReplyAuthor,
    run::Run,
};
use tracing::{debug, info, info_span, warn};

/// The loggable part of an event. Created before the commit and logged after it.
#[derive(Clone, Debug)]
pub(crate) enum EventLogLine {
    Created,
    Started {
        pid: u32,
    },
    LaunchFailed {
        code: FailureCode,
        retry: LaunchRetry,
    },
    Unusable {
        code: FailureCode,
    },
    ContactLost,
    RecoveryFailed,
    TurnEnded {
        ending: &'static str,
    },
    Answered {
        interaction: InteractionId,
    },
    Decided {
        interaction: InteractionId,
        reason: AutoDecideReason,
        policy: DecisionPolicy,
        instruction: String,
    },
    Shutdown,
    Cancel,
    Interrupt,
    Performed {
        effect: u32,
    },
    Missed {
        effect: u32,
    },
    Other {
        event: &'static str,
    },
}

/// Maximum length of an automatic reply in the log, in characters.
const MOST_INSTRUCTION_CHARS: usize = 200;

impl EventLogLine {
    pub(crate) fn of(event: &RunEvent) -> Self {
        match event {
            RunEvent::RunCreated(_) => Self::Created,
            RunEvent::AttemptStarted { process, .. } => Self::Started { pid: process.pid },
            RunEvent::LaunchFailed { failure, retry, .. } => {
                Self::LaunchFailed { code: failure.code, retry: *retry }
            }
            RunEvent::EngineUnusable { failure } => Self::Unusable { code: failure.code },
            RunEvent::ContactLost { .. } => Self::ContactLost,
            RunEvent::RecoveryFailed { .. } => Self::RecoveryFailed,
            RunEvent::TurnEnded { outcome: ending, .. } => Self::TurnEnded {
                ending: match ending {
                    TurnOutcome::Completed { .. } => "completed",
                    TurnOutcome::Asked { .. } => "asked",
                    TurnOutcome::Failed { .. } => "failed",
                    TurnOutcome::Interrupted => "interrupted",
                },
            },
            RunEvent::ReplyArrived { reply } => match &reply.by {
                ReplyAuthor::Person(_) => Self::Answered { interaction: reply.interaction_id },
                ReplyAuthor::Policy { reason, policy } => {
                    let instruction = reply.text.chars().take(MOST_INSTRUCTION_CHARS).collect();
                    let (reason, policy) = (*reason, *policy);
                    Self::Decided { interaction: reply.interaction_id, reason, policy, instruction }
                }
            },
            RunEvent::ShutdownRequested => Self::Shutdown,
            RunEvent::CancelRequested { .. } => Self::Cancel,
            RunEvent::InterruptRequested { .. } => Self::Interrupt,
            RunEvent::EffectPerformed { effect } => Self::Performed { effect: effect.0 },
            RunEvent::EffectObsolete { effect } => Self::Missed { effect: effect.0 },
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
            | RunEvent::ConversationActive => Self::Other { event: event.name() },
        }
    }

    /// Logs the event with the new state of the run.
    pub(crate) fn write(self, run: &Run) {
        let engine = run.settings.engine.as_str();
        let span = info_span!("run", run = %run.run_id, attempt = run.last_attempt.0, engine);
        let _within = span.enter();
        let (turn, status) = (run.turn_index, run.status().name());
        match self {
            Self::Created => info!(status, "run created"),
            Self::Started { pid } => info!(turn, pid, "attempt started"),
            Self::LaunchFailed { code, retry } => warn!(turn, ?code, ?retry, status, "launch failed"),
            Self::Unusable { code } => warn!(?code, status, "engine unusable"),
            Self::ContactLost => warn!(turn, "contact lost"),
            Self::RecoveryFailed => warn!(turn, status, "recovery failed"),
            Self::TurnEnded { ending } => info!(turn, ending, status, "turn ended"),
            Self::Answered { interaction } => info!(%interaction, status, "reply accepted"),
            Self::Decided { interaction, reason, policy, instruction } => {
                let (reason, policy, source) = (reason.name(), policy.name(), AUTO_REPLY_SOURCE);
                info!(%interaction, source, reason, policy, instruction, status, "automatic reply accepted");
            }
            Self::Shutdown => info!(turn, status, "stopped by a shutdown"),
            Self::Cancel => info!(status, "cancel requested"),
            Self::Interrupt => info!(turn, "interrupt requested"),
            Self::Performed { effect } => debug!(effect, "effect performed"),
            Self::Missed { effect } => debug!(effect, "order missed"),
            Self::Other { event } => debug!(event, status, "event taken"),
        }
    }
}
