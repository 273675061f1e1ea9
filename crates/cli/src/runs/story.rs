//! Formats events as text, with a severity.
//!
//! An event of an unknown kind is printed by its name, because a daemon may be newer than its command line.

use abide_wire::event::EventEnvelope;
use serde_json::{Map, Value};

use crate::{table::TextStyle, text};

/// A formatted event.
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
    /// Transient status.
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
    !matches!(event.kind.as_str(), "progressed" | "handle_announced")
}

/// Formats an event; `None` for internal events of the daemon.
pub(super) fn format_event(event: &EventEnvelope) -> Option<EventLine> {
    let data = &event.data;
    let text = |key: &str| data.get(key).and_then(Value::as_str).unwrap_or_default();
    let line = |key: &str| text::one_line(text(key));
    let number = |key: &str| data.get(key).map_or_else(|| "?".to_owned(), Value::to_string);
    let event_line = |weight, line: String| Some(EventLine { severity: weight, line, full_text: None });
    match event.kind.as_str() {
        "run_created" => {
            event_line(EventSeverity::Detail, format!("created for {}: {}", line("engine"), line("prompt")))
        }
        "admitted" => event_line(EventSeverity::Detail, "got a slot".to_owned()),
        "message_arrived" => event_line(EventSeverity::Step, format!("message: {}", line("text"))),
        "reply_arrived" => {
            let line = match (text("source"), text("reason")) {
                ("auto_decide_timeout", "auto_mode") => format!(
                    "answered automatically (auto_decide_timeout: auto_mode, policy {}, {}): {}",
                    line("policy"),
                    line("interaction_id"),
                    line("instruction")
                ),
                ("auto_decide_timeout", _) => format!(
                    "nobody answered in time; answered automatically (auto_decide_timeout: {}, policy {}, {}): {}",
                    line("reason"),
                    line("policy"),
                    line("interaction_id"),
                    line("instruction")
                ),
                _ => format!("answered by {}: {}", line("by"), line("text")),
            };
            event_line(EventSeverity::Step, line)
        }
        "interrupt_requested" => event_line(EventSeverity::Step, format!("stopped by {}", line("by"))),
        "cancel_requested" => event_line(EventSeverity::Step, format!("canceled by {}", line("by"))),
        "shutdown_requested" => {
            event_line(EventSeverity::Step, "stopped because the daemon was shut down".to_owned())
        }
        "profile_resolved" => {
            event_line(EventSeverity::Detail, format!("wait mode {}: {}", line("kind"), line("reason")))
        }
        "engine_unusable" => {
            event_line(EventSeverity::Problem, format!("the engine cannot be used: {}", format_error(data)))
        }
        "attempt_started" => event_line(
            EventSeverity::Detail,
            format!("attempt {} started, pid {}", number("attempt"), number("pid")),
        ),
        "launch_failed" => event_line(
            EventSeverity::Problem,
            format!("attempt {} did not start: {}", number("attempt"), format_error(data)),
        ),
        "process_exited" => event_line(
            EventSeverity::Detail,
            format!("the process of attempt {} ended with {}", number("attempt"), number("exit_code")),
        ),
        "contact_lost" => {
            event_line(EventSeverity::Detail, "lost contact with the process; looking for it".to_owned())
        }
        "contact_restored" => event_line(EventSeverity::Detail, "found the process again".to_owned()),
        "recovery_failed" => event_line(
            EventSeverity::Problem,
            format!("what became of the turn is not known: {}", line("reason")),
        ),
        "progressed" => event_line(EventSeverity::Progress, line("text")),
        "gate_raised" => event_line(EventSeverity::Step, format!("question: {}", format_question(data))),
        "gate_withdrawn" => event_line(EventSeverity::Step, "question withdrawn".to_owned()),
        "turn_ended" => Some(format_turn_end(data)),
        "deadline_passed" => event_line(EventSeverity::Step, format!("time is up: {}", line("deadline"))),
        "delivery_confirmed" => event_line(EventSeverity::Detail, "delivered".to_owned()),
        "delivery_failed" => {
            event_line(EventSeverity::Problem, format!("could not be delivered ({})", line("certainty")))
        }
        "handle_announced"
        | "conversation_active"
        | "effect_performed"
        | "effect_obsolete"
        | "rules_adopted" => None,
        other => event_line(EventSeverity::Detail, text::one_line(other)),
    }
}

fn format_turn_end(data: &Map<String, Value>) -> EventLine {
    let words = data.get("text").and_then(Value::as_str).filter(|words| !words.is_empty()).map(str::to_owned);
    let (weight, line) = match data.get("outcome").and_then(Value::as_str).unwrap_or_default() {
        "completed" => (EventSeverity::Step, "done:".to_owned()),
        "asked" => (EventSeverity::Step, format!("question: {}", format_question(data))),
        "failed" => (EventSeverity::Problem, format!("the turn failed: {}", format_error(data))),
        "interrupted" => (EventSeverity::Step, "the turn was stopped".to_owned()),
        other => (EventSeverity::Step, format!("the turn ended: {}", text::one_line(other))),
    };
    EventLine { severity: weight, line, full_text: words }
}

fn format_question(data: &Map<String, Value>) -> String {
    let Some(question) = data.get("question") else { return String::new() };
    let prompt = text::one_line(question["prompt"].as_str().unwrap_or_default());
    let options: Vec<String> = question["options"].as_array().map_or_else(Vec::new, |options| {
        options.iter().map(|option| text::one_line(option["label"].as_str().unwrap_or_default())).collect()
    });
    if options.is_empty() { prompt } else { format!("{prompt} [{}]", options.join(" | ")) }
}

fn format_error(data: &Map<String, Value>) -> String {
    let error = data.get("error").cloned().unwrap_or_default();
    let field = |name: &str| text::one_line(error[name].as_str().unwrap_or_default());
    format!("{} ({})", field("message"), field("code"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn formatted(kind: &str, data: Value) -> Option<EventLine> {
        let Value::Object(data) = data else { panic!("data is an object") };
        let (run_id, at) = ("run_1".to_owned(), "2026-11-16T05:17:02Z".to_owned());
        format_event(&EventEnvelope { seq: 1, run_id, at, kind: kind.to_owned(), data })
    }

    fn line(kind: &str, data: Value) -> String {
        formatted(kind, data).unwrap().line
    }

    #[test]
    fn d6_the_author_of_an_answer_is_printed_and_a_policy_is_no_person() {
        let by_person = json!({ "text": "tea", "source": "user_reply", "by": "api" });
        assert_eq!(line("reply_arrived", by_person), "answered by api: tea");
        // In the format of the event feed; `tests/daemon/policies.rs` tests the feed itself.
        let by_policy = json!({
            "text": "no", "instruction": "no", "source": "auto_decide_timeout", "by": "policy",
            "reason": "user_no_reply", "policy": "safe_default", "interaction_id": "int_1",
        });
        assert_eq!(
            line("reply_arrived", by_policy),
            "nobody answered in time; answered automatically (auto_decide_timeout: user_no_reply, policy \
             safe_default, int_1): no"
        );
    }

    #[test]
    fn a_question_is_formatted_with_options_and_preceding_text() {
        let question = json!({ "prompt": "tea\x1b[1m?", "options": [{ "label": "yes" }, { "label": "no" }] });
        let told = formatted("turn_ended", json!({ "outcome": "asked", "text": "hm", "question": question }))
            .unwrap();
        assert_eq!(
            (told.line.as_str(), told.full_text.as_deref()),
            ("question: tea␛[1m? [yes | no]", Some("hm"))
        );
    }

    #[test]
    fn an_unknown_event_is_printed_by_name_and_an_internal_one_is_hidden() {
        assert_eq!(line("moon_rose", json!({})), "moon_rose");
        assert_eq!(formatted("effect_performed", json!({})), None);
        let failed =
            json!({ "outcome": "failed", "error": { "code": "ENGINE_FAILED", "message": "no\nway" } });
        assert_eq!(line("turn_ended", failed), "the turn failed: no way (ENGINE_FAILED)");
    }
}
