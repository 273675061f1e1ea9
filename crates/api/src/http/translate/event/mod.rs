//! Converts journal entries to wire events.
//!
//! Fields are selected one by one for each event. Secrets and internal values (environments, positions in an engine's
//! output, fingerprints) are left out.

#[cfg(test)]
mod tests;

use abide_domain::{
    deadline::DeadlineKind,
    delivery::DeliveryFailure,
    event::{LaunchRetry, NewRun, ProcessAfterTurn, RunEvent, TurnOutcome},
    id::TurnId,
    interaction::{GatePurpose, InteractionKind, Question},
    process::Attempt,
    reply::{InteractionReply, ReplyAuthor},
};
use abide_ports::store::JournalEntry;
use abide_wire::{event as wire, interaction::ResolutionModeValue};

use super::{
    failure,
    interaction::{auto_decide_reason, context, decision_policy, hidden, kind, options},
    run::{execution_mode, on_busy_value, profile_kind},
    time,
    turn::exit_code,
};

pub(in crate::http) fn event(entry: &JournalEntry) -> wire::EventEnvelope {
    wire::EventEnvelope {
        seq: entry.seq.0,
        run_id: entry.run_id.to_string(),
        at: time(entry.stamp.at),
        event: wire::EventBody::Known(run_event(&entry.event)),
    }
}

fn run_event(event: &RunEvent) -> wire::RunEventView {
    use wire::RunEventView as View;
    match event {
        RunEvent::RunCreated(new) => View::RunCreated(run_created(new)),
        RunEvent::Admitted => View::Admitted(wire::AdmittedEvent {}),
        RunEvent::MessageArrived { message, on_busy } => View::MessageArrived(wire::MessageArrivedEvent {
            channel: message.key.channel.clone(),
            message_id: message.key.message_id.clone(),
            text: message.text.clone(),
            on_busy: on_busy.map(on_busy_value),
        }),
        RunEvent::ReplyArrived { reply } => View::ReplyArrived(reply_arrived(reply)),
        RunEvent::InterruptRequested { by } => {
            View::InterruptRequested(wire::InterruptRequestedEvent { by: by.clone() })
        }
        RunEvent::CancelRequested { by } => {
            View::CancelRequested(wire::CancelRequestedEvent { by: by.clone() })
        }
        RunEvent::ShutdownRequested => View::ShutdownRequested(wire::ShutdownRequestedEvent {}),
        RunEvent::RulesAdopted { rules } => {
            View::RulesAdopted(wire::RulesAdoptedEvent { rules_version: *rules })
        }
        RunEvent::ProfileResolved { profile, .. } => View::ProfileResolved(wire::ProfileResolvedEvent {
            kind: profile_kind(profile.kind),
            reason: profile.reason.clone(),
        }),
        RunEvent::EngineUnusable { failure: cause } => {
            View::EngineUnusable(wire::EngineUnusableEvent { error: failure(cause) })
        }
        RunEvent::AttemptStarted { attempt, process } => {
            View::AttemptStarted(wire::AttemptStartedEvent { attempt: attempt.0, pid: process.pid })
        }
        RunEvent::LaunchFailed { attempt, failure: cause, retry } => {
            View::LaunchFailed(wire::LaunchFailedEvent {
                attempt: attempt.0,
                error: failure(cause),
                retry: launch_retry(*retry),
            })
        }
        RunEvent::ProcessExited { attempt, exit } => {
            View::ProcessExited(wire::ProcessExitedEvent { attempt: attempt.0, exit_code: exit_code(*exit) })
        }
        RunEvent::ContactLost { attempt, .. } => {
            View::ContactLost(wire::ContactLostEvent { attempt: attempt.0 })
        }
        RunEvent::ContactRestored { attempt, process } => {
            View::ContactRestored(wire::ContactRestoredEvent { attempt: attempt.0, pid: process.pid })
        }
        RunEvent::RecoveryFailed { attempt, reason } => {
            View::RecoveryFailed(wire::RecoveryFailedEvent { attempt: attempt.0, reason: reason.clone() })
        }
        RunEvent::SessionLost { failure: cause } => {
            View::SessionLost(wire::SessionLostEvent { error: failure(cause) })
        }
        // The engine's session id is left out: any client that knows it could resume the session.
        RunEvent::HandleAnnounced { attempt, .. } => {
            View::HandleAnnounced(wire::HandleAnnouncedEvent { attempt: attempt.0 })
        }
        RunEvent::Progressed { attempt, text, .. } => {
            View::Progressed(wire::ProgressedEvent { attempt: attempt.0, text: text.clone() })
        }
        RunEvent::GateRaised { attempt, turn_id, purpose, question: gate_question, .. } => {
            View::GateRaised(wire::GateRaisedEvent {
                attempt: attempt.0,
                turn_id: turn_id.to_string(),
                purpose: gate_purpose(*purpose),
                question: question(gate_question, *purpose == GatePurpose::Approval),
            })
        }
        RunEvent::GateWithdrawn { attempt, .. } => {
            View::GateWithdrawn(wire::GateWithdrawnEvent { attempt: attempt.0 })
        }
        RunEvent::TurnEnded { attempt, turn_id, outcome, process_after, .. } => {
            View::TurnEnded(turn_ended(*attempt, *turn_id, outcome, *process_after))
        }
        RunEvent::DeadlinePassed { deadline } => View::DeadlinePassed(deadline_passed(*deadline)),
        RunEvent::DeliveryConfirmed { delivery_id } => {
            View::DeliveryConfirmed(wire::DeliveryConfirmedEvent { delivery_id: delivery_id.to_string() })
        }
        RunEvent::DeliveryFailed { delivery_id, certainty } => {
            View::DeliveryFailed(wire::DeliveryFailedEvent {
                delivery_id: delivery_id.to_string(),
                outcome: delivery_failure(*certainty),
            })
        }
        RunEvent::ConversationActive => View::ConversationActive(wire::ConversationActiveEvent {}),
        RunEvent::EffectPerformed { effect } => {
            View::EffectPerformed(wire::EffectPerformedEvent { effect: effect.0 })
        }
        RunEvent::EffectObsolete { effect } => {
            View::EffectObsolete(wire::EffectObsoleteEvent { effect: effect.0 })
        }
    }
}

fn run_created(new: &NewRun) -> wire::RunCreatedEvent {
    wire::RunCreatedEvent {
        engine: new.settings.engine.clone(),
        workspace: new.settings.workspace.clone(),
        execution_mode: execution_mode(new.settings.execution_mode),
        message_id: new.message.key.message_id.clone(),
        prompt: new.message.text.clone(),
    }
}

fn reply_arrived(reply: &InteractionReply) -> wire::ReplyArrivedEvent {
    let (source, by, automatic) = match &reply.by {
        ReplyAuthor::Person(name) => (ResolutionModeValue::UserReply, name.clone(), None),
        // Details of an automatic reply (D6).
        ReplyAuthor::Policy { reason, policy } => {
            (ResolutionModeValue::AutoDecideTimeout, "policy".to_owned(), Some((*reason, *policy)))
        }
    };
    wire::ReplyArrivedEvent {
        interaction_id: reply.interaction_id.to_string(),
        text: reply.text.clone(),
        source,
        by,
        reason: automatic.map(|(reason, _)| auto_decide_reason(reason)),
        policy: automatic.map(|(_, policy)| decision_policy(policy)),
        instruction: automatic.map(|_| reply.text.clone()),
    }
}

fn turn_ended(
    attempt: Attempt,
    turn_id: TurnId,
    ending: &TurnOutcome,
    aftermath: ProcessAfterTurn,
) -> wire::TurnEndedEvent {
    let (outcome, text, question_view, error) = match ending {
        TurnOutcome::Completed { text } => (wire::TurnOutcomeValue::Completed, Some(text), None, None),
        TurnOutcome::Asked { text, question: asked_question } => {
            let view = question(asked_question, asked_question.kind == InteractionKind::RiskAck);
            (wire::TurnOutcomeValue::Asked, Some(text), Some(view), None)
        }
        TurnOutcome::Failed { failure: cause } => {
            (wire::TurnOutcomeValue::Failed, None, None, Some(failure(cause)))
        }
        TurnOutcome::Interrupted => (wire::TurnOutcomeValue::Interrupted, None, None, None),
    };
    wire::TurnEndedEvent {
        attempt: attempt.0,
        turn_id: turn_id.to_string(),
        outcome,
        text: text.cloned(),
        question: question_view,
        error,
        exit_code: match aftermath {
            ProcessAfterTurn::Exited(exit) => exit_code(exit),
            ProcessAfterTurn::Alive => None,
        },
    }
}

fn question(question: &Question, is_approval: bool) -> wire::QuestionView {
    wire::QuestionView {
        kind: kind(question.kind),
        prompt: question.prompt.clone(),
        options: options(question, is_approval),
        context: question.context.as_deref().map(context).map(Box::new),
        hidden: question.hidden.as_deref().map(hidden).map(Box::new),
    }
}

fn deadline_passed(deadline: DeadlineKind) -> wire::DeadlinePassedEvent {
    let (kind, interaction_id) = match deadline {
        DeadlineKind::Answer(interaction_id) => (wire::DeadlineKindValue::Answer, Some(interaction_id)),
        DeadlineKind::Turn(_) => (wire::DeadlineKindValue::Turn, None),
        DeadlineKind::Stop(_) => (wire::DeadlineKindValue::Stop, None),
        DeadlineKind::Recovery(_) => (wire::DeadlineKindValue::Recovery, None),
        DeadlineKind::Idle(_) => (wire::DeadlineKindValue::Idle, None),
    };
    wire::DeadlinePassedEvent { deadline: kind, interaction_id: interaction_id.map(|id| id.to_string()) }
}

fn launch_retry(retry: LaunchRetry) -> wire::LaunchRetryValue {
    match retry {
        LaunchRetry::Later => wire::LaunchRetryValue::Later,
        LaunchRetry::Never => wire::LaunchRetryValue::Never,
    }
}

fn gate_purpose(purpose: GatePurpose) -> wire::GatePurposeValue {
    match purpose {
        GatePurpose::Approval => wire::GatePurposeValue::Approval,
        GatePurpose::Input => wire::GatePurposeValue::Input,
    }
}

fn delivery_failure(failure: DeliveryFailure) -> wire::DeliveryFailureValue {
    match failure {
        DeliveryFailure::Failed => wire::DeliveryFailureValue::Failed,
        DeliveryFailure::Unknown => wire::DeliveryFailureValue::Unknown,
    }
}
