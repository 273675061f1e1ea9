//! Formats events as text, with a severity.
//!
//! An event of an unknown kind is printed by its name, because a daemon may be newer than its command line.

use abide_wire::{
    event::{
        EventBody, EventEnvelope, QuestionView, ReplyArrivedEvent, RunEventView, TurnEndedEvent,
        TurnOutcomeValue,
    },
    interaction::{AutoDecideReasonValue, DecisionPolicyValue, ResolutionModeValue},
    run::RunErrorView,
};

use crate::{table::TextStyle, terminal_text};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EventLine {
    pub(super) severity: EventSeverity,
    pub(super) line: String,
    /// The full text, unescaped.
    pub(super) full_text: Option<String>,
}

/// Relevance of an event to a user who follows a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum EventSeverity {
    /// Shown only on request.
    Detail,
    /// A status that the next one replaces.
    Progress,
    /// A step in the lifecycle of the run.
    Step,
    /// Requires attention.
    Problem,
}

impl EventSeverity {
    /// Returns the style of its line.
    pub(super) fn style(self) -> TextStyle {
        match self {
            Self::Detail | Self::Progress => TextStyle::Dim,
            Self::Step => TextStyle::Plain,
            Self::Problem => TextStyle::Error,
        }
    }
}

/// Returns whether the event may change the run. Most output of a working engine does not.
pub(super) fn may_change_run(event: &EventEnvelope) -> bool {
    !matches!(event.event, EventBody::Known(RunEventView::Progressed(_) | RunEventView::HandleAnnounced(_)))
}

/// Formats an event; `None` for internal events of the daemon.
pub(super) fn format_event(event: &EventEnvelope) -> Option<EventLine> {
    match &event.event {
        EventBody::Known(event) => format_known(event),
        EventBody::Unknown(event) => event_line(EventSeverity::Detail, terminal_text::one_line(&event.kind)),
    }
}

fn event_line(severity: EventSeverity, line: String) -> Option<EventLine> {
    Some(EventLine { severity, line, full_text: None })
}

fn format_known(event: &RunEventView) -> Option<EventLine> {
    use EventSeverity::{Detail, Problem, Progress, Step};
    use terminal_text::one_line;
    match event {
        RunEventView::RunCreated(event) => event_line(
            Detail,
            format!("created for {}: {}", one_line(&event.engine), one_line(&event.prompt)),
        ),
        RunEventView::Admitted(_) => event_line(Detail, "got a slot".to_owned()),
        RunEventView::MessageArrived(event) => {
            event_line(Step, format!("message: {}", one_line(&event.text)))
        }
        RunEventView::ReplyArrived(event) => event_line(Step, format_reply(event)),
        RunEventView::InterruptRequested(event) => {
            event_line(Step, format!("stopped by {}", one_line(&event.by)))
        }
        RunEventView::CancelRequested(event) => {
            event_line(Step, format!("canceled by {}", one_line(&event.by)))
        }
        RunEventView::ShutdownRequested(_) => {
            event_line(Step, "stopped because the daemon was shut down".to_owned())
        }
        RunEventView::ProfileResolved(event) => {
            event_line(Detail, format!("wait mode {}: {}", event.kind.as_str(), one_line(&event.reason)))
        }
        RunEventView::EngineUnusable(event) => {
            event_line(Problem, format!("the engine cannot be used: {}", format_error(&event.error)))
        }
        RunEventView::AttemptStarted(event) => {
            event_line(Detail, format!("attempt {} started, pid {}", event.attempt, event.pid))
        }
        RunEventView::LaunchFailed(event) => event_line(
            Problem,
            format!("attempt {} did not start: {}", event.attempt, format_error(&event.error)),
        ),
        RunEventView::ProcessExited(event) => {
            let code = event.exit_code.map_or_else(|| "an unknown exit code".to_owned(), |it| it.to_string());
            event_line(Detail, format!("the process of attempt {} ended with {code}", event.attempt))
        }
        RunEventView::ContactLost(_) => {
            event_line(Detail, "lost contact with the process; looking for it".to_owned())
        }
        RunEventView::ContactRestored(_) => event_line(Detail, "found the process again".to_owned()),
        RunEventView::RecoveryFailed(event) => {
            event_line(Problem, format!("the outcome of the turn is unknown: {}", one_line(&event.reason)))
        }
        RunEventView::SessionLost(event) => {
            event_line(Problem, format!("the engine's session is lost: {}", format_error(&event.error)))
        }
        RunEventView::Progressed(event) => event_line(Progress, one_line(&event.text)),
        RunEventView::GateRaised(event) => {
            event_line(Step, format!("question: {}", format_question(&event.question)))
        }
        RunEventView::GateWithdrawn(_) => event_line(Step, "question withdrawn".to_owned()),
        RunEventView::TurnEnded(event) => Some(format_turn_end(event)),
        RunEventView::DeadlinePassed(event) => {
            event_line(Step, format!("time is up: {}", event.deadline.as_str()))
        }
        RunEventView::DeliveryConfirmed(_) => event_line(Detail, "delivered".to_owned()),
        RunEventView::DeliveryFailed(event) => {
            event_line(Problem, format!("could not be delivered ({})", event.outcome.as_str()))
        }
        RunEventView::HandleAnnounced(_)
        | RunEventView::ConversationActive(_)
        | RunEventView::EffectPerformed(_)
        | RunEventView::EffectObsolete(_)
        | RunEventView::RulesAdopted(_) => None,
    }
}

fn format_reply(event: &ReplyArrivedEvent) -> String {
    let ReplyArrivedEvent { interaction_id, text, source, by, reason, policy, instruction } = event;
    match source {
        ResolutionModeValue::UserReply => {
            format!("answered by {}: {}", terminal_text::one_line(by), terminal_text::one_line(text))
        }
        ResolutionModeValue::AutoDecideTimeout => {
            let cause = match reason {
                Some(AutoDecideReasonValue::AutoMode) => "",
                Some(AutoDecideReasonValue::UserNoReply) | None => "no answer in time; ",
            };
            format!(
                "{cause}answered automatically (auto_decide_timeout: {}, policy {}, {}): {}",
                reason.map_or("unknown", AutoDecideReasonValue::as_str),
                policy.map_or("unknown", DecisionPolicyValue::as_str),
                terminal_text::one_line(interaction_id),
                terminal_text::one_line(instruction.as_deref().unwrap_or(text)),
            )
        }
    }
}

fn format_turn_end(event: &TurnEndedEvent) -> EventLine {
    let (severity, line) = match event.outcome {
        TurnOutcomeValue::Completed => (EventSeverity::Step, "done:".to_owned()),
        TurnOutcomeValue::Asked => {
            let question = event.question.as_ref().map(format_question).unwrap_or_default();
            (EventSeverity::Step, format!("question: {question}"))
        }
        TurnOutcomeValue::Failed => {
            let error = event.error.as_ref().map(format_error).unwrap_or_default();
            (EventSeverity::Problem, format!("the turn failed: {error}"))
        }
        TurnOutcomeValue::Interrupted => (EventSeverity::Step, "the turn was stopped".to_owned()),
    };
    EventLine { severity, line, full_text: event.text.clone().filter(|text| !text.is_empty()) }
}

fn format_question(question: &QuestionView) -> String {
    let prompt = terminal_text::one_line(&question.prompt);
    let options: Vec<String> =
        question.options.iter().map(|option| terminal_text::one_line(&option.label)).collect();
    if options.is_empty() { prompt } else { format!("{prompt} [{}]", options.join(" | ")) }
}

fn format_error(error: &RunErrorView) -> String {
    format!("{} ({})", terminal_text::one_line(&error.message), terminal_text::one_line(&error.code))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Formats an event in the format of the event feed.
    fn formatted(kind: &str, data: Value) -> Option<EventLine> {
        let event = json!({
            "seq": 1, "run_id": "run_1", "at": "2026-11-16T05:17:02Z", "type": kind, "data": data,
        });
        format_event(&serde_json::from_value(event).unwrap())
    }

    fn line(kind: &str, data: Value) -> String {
        formatted(kind, data).unwrap().line
    }

    fn turn_end(outcome: &str) -> Value {
        json!({ "attempt": 1, "turn_id": "turn_1", "outcome": outcome })
    }

    #[test]
    fn d6_the_author_of_an_answer_is_printed_and_a_policy_is_no_person() {
        let by_person =
            json!({ "interaction_id": "int_1", "text": "tea", "source": "user_reply", "by": "api" });
        assert_eq!(line("reply_arrived", by_person), "answered by api: tea");
        // In the format of the event feed; `tests/daemon/policies.rs` tests the feed itself.
        let by_policy = json!({
            "text": "no", "instruction": "no", "source": "auto_decide_timeout", "by": "policy",
            "reason": "user_no_reply", "policy": "safe_default", "interaction_id": "int_1",
        });
        assert_eq!(
            line("reply_arrived", by_policy),
            "no answer in time; answered automatically (auto_decide_timeout: user_no_reply, policy \
             safe_default, int_1): no"
        );
    }

    #[test]
    fn a_question_is_formatted_with_options_and_preceding_text() {
        let option = |label: &str| json!({ "label": label, "safe": false, "approves": null });
        let mut end = turn_end("asked");
        end["text"] = json!("hm");
        end["question"] = json!({
            "kind": "confirm", "prompt": "tea\x1b[1m?", "options": [option("yes"), option("no")],
        });
        let event_text = formatted("turn_ended", end).unwrap();
        assert_eq!(
            (event_text.line.as_str(), event_text.full_text.as_deref()),
            ("question: tea␛[1m? [yes | no]", Some("hm"))
        );
    }

    #[test]
    fn an_unknown_event_is_printed_by_name_and_an_internal_one_is_hidden() {
        assert_eq!(line("moon_rose", json!({})), "moon_rose");
        // A known type whose data belong to another version.
        assert_eq!(line("turn_ended", turn_end("exploded")), "turn_ended");
        assert_eq!(formatted("effect_performed", json!({ "effect": 1 })), None);
    }

    #[test]
    fn a_failed_turn_is_a_problem_with_its_error_in_one_line() {
        let mut end = turn_end("failed");
        end["error"] = json!({ "code": "ENGINE_FAILED", "message": "no\nway" });
        let failed = formatted("turn_ended", end).unwrap();
        assert_eq!(failed.severity, EventSeverity::Problem);
        assert_eq!(failed.line, "the turn failed: no way (ENGINE_FAILED)");
    }
}
