//! Converts journal entries to wire events.
//!
//! Fields are selected one by one for each event. Secrets and internal values (environments, positions in an engine's
//! output, fingerprints) are left out.

use abide_domain::{
    deadline::DeadlineKind,
    event::{ProcessAfterTurn, RunEvent, TurnOutcome},
    interaction::{GatePurpose, InteractionKind, Question},
    policy::AUTO_REPLY_SOURCE,
    reply::ReplyAuthor,
};
use abide_ports::store::JournalEntry;
use abide_wire::event as wire;
use serde_json::{Map, Value, json};

use super::{
    failure,
    interaction::{context, hidden, options},
    time,
    turn::exit_code,
};

pub(in crate::http) fn event(entry: &JournalEntry) -> wire::EventEnvelope {
    wire::EventEnvelope {
        seq: entry.seq.0,
        run_id: entry.run_id.to_string(),
        at: time(entry.stamp.at),
        kind: snake_case(entry.event.name()),
        data: match data(&entry.event) {
            Value::Object(fields) => fields,
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                Map::new()
            }
        },
    }
}

fn data(event: &RunEvent) -> Value {
    match event {
        RunEvent::RunCreated(new) => json!({
            "engine": new.settings.engine,
            "workspace": new.settings.workspace,
            "execution_mode": new.settings.execution_mode,
            "message_id": new.message.key.message_id,
            "prompt": new.message.text,
        }),
        RunEvent::Admitted | RunEvent::ConversationActive | RunEvent::ShutdownRequested => json!({}),
        RunEvent::RulesAdopted { rules } => json!({ "rules": rules }),
        RunEvent::MessageArrived { message, on_busy } => json!({
            "channel": message.key.channel,
            "message_id": message.key.message_id,
            "text": message.text,
            "on_busy": on_busy,
        }),
        RunEvent::ReplyArrived { reply } => {
            let (interaction_id, text) = (reply.interaction_id, &reply.text);
            match &reply.by {
                ReplyAuthor::Person(name) => json!({
                    "interaction_id": interaction_id, "text": text, "source": "user_reply", "by": name,
                }),
                // Details of an automatic reply (D6).
                ReplyAuthor::Policy { reason, policy } => json!({
                    "interaction_id": interaction_id, "text": text, "source": AUTO_REPLY_SOURCE,
                    "by": "policy", "reason": reason, "policy": policy, "instruction": text,
                }),
            }
        }
        RunEvent::InterruptRequested { by } | RunEvent::CancelRequested { by } => json!({ "by": by }),
        RunEvent::ProfileResolved { profile, .. } => {
            json!({ "kind": profile.kind, "reason": profile.reason })
        }
        RunEvent::EngineUnusable { failure: why } => json!({ "error": failure(why) }),
        RunEvent::AttemptStarted { attempt, process } | RunEvent::ContactRestored { attempt, process } => {
            json!({ "attempt": attempt, "pid": process.pid })
        }
        RunEvent::LaunchFailed { attempt, failure: why, retry } => {
            json!({ "attempt": attempt, "error": failure(why), "retry": retry })
        }
        RunEvent::ProcessExited { attempt, exit } => {
            json!({ "attempt": attempt, "exit_code": exit_code(*exit) })
        }
        RunEvent::ContactLost { attempt, .. } => json!({ "attempt": attempt }),
        RunEvent::SessionLost { failure: why } => json!({ "error": failure(why) }),
        RunEvent::RecoveryFailed { attempt, reason } => json!({ "attempt": attempt, "reason": reason }),
        // The engine's session id is left out: any client that knows it could resume the session.
        RunEvent::HandleAnnounced { attempt, .. } => json!({ "attempt": attempt }),
        RunEvent::Progressed { attempt, text, .. } => json!({ "attempt": attempt, "text": text }),
        RunEvent::GateRaised { attempt, turn_id, purpose, question: question_json, .. } => json!({
            "attempt": attempt, "turn_id": turn_id, "purpose": purpose,
            "question": question(question_json, *purpose == GatePurpose::Approval),
        }),
        RunEvent::GateWithdrawn { attempt, .. } => json!({ "attempt": attempt }),
        RunEvent::TurnEnded { attempt, turn_id, outcome, process_after, .. } => {
            let exit = match process_after {
                ProcessAfterTurn::Exited(exit) => exit_code(*exit),
                ProcessAfterTurn::Alive => None,
            };
            let (outcome, text, question_json, error) = match outcome {
                TurnOutcome::Completed { text } => ("completed", Some(text), None, None),
                TurnOutcome::Asked { text, question: question_json } => (
                    "asked",
                    Some(text),
                    Some(question(question_json, question_json.kind == InteractionKind::RiskAck)),
                    None,
                ),
                TurnOutcome::Failed { failure: why } => ("failed", None, None, Some(failure(why))),
                TurnOutcome::Interrupted => ("interrupted", None, None, None),
            };
            json!({
                "attempt": attempt, "turn_id": turn_id, "outcome": outcome, "text": text,
                "question": question_json, "error": error, "exit_code": exit,
            })
        }
        RunEvent::DeadlinePassed { deadline } => {
            let (what, interaction) = match deadline {
                DeadlineKind::Answer(interaction) => ("answer", Some(interaction)),
                DeadlineKind::Turn(_) => ("turn", None),
                DeadlineKind::Stop(_) => ("stop", None),
                DeadlineKind::Recovery(_) => ("recovery", None),
                DeadlineKind::Idle(_) => ("idle", None),
            };
            json!({ "deadline": what, "interaction_id": interaction })
        }
        RunEvent::DeliveryConfirmed { delivery_id } => json!({ "delivery_id": delivery_id }),
        RunEvent::DeliveryFailed { delivery_id, certainty } => {
            json!({ "delivery_id": delivery_id, "certainty": certainty })
        }
        RunEvent::EffectPerformed { effect } | RunEvent::EffectObsolete { effect } => {
            json!({ "effect": effect })
        }
    }
}

fn question(question: &Question, is_approval: bool) -> Value {
    json!({
        "kind": question.kind,
        "prompt": question.prompt,
        "options": options(question, is_approval),
        "context": question.context.as_deref().map(context),
        "hidden": question.hidden.as_deref().map(hidden),
    })
}

/// Converts a variant name to its wire name: `TurnEnded` becomes `turn_ended`.
fn snake_case(name: &str) -> String {
    let mut text = String::with_capacity(name.len() + 4);
    for char in name.chars() {
        if char.is_ascii_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.push(char.to_ascii_lowercase());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_written_as_the_rest_of_the_wire_is() {
        assert_eq!(snake_case("RunCreated"), "run_created");
        assert_eq!(snake_case("Admitted"), "admitted");
    }
}
