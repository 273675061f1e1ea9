//! Re-encodes values of the first stored format, whose fields had other names. This is the only code that knows the old
//! names.
//!
//! Only names change. A value is renamed as JSON, because the types of the domain describe the current format, and then
//! decoded and encoded by them. Texts and labels of people are never renamed: each function visits the fields of one
//! type.

use abide_domain::{delivery::Delivery, event::RunEvent, interaction::Interaction, run::Run, turn::Turn};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

/// An event of the journal in the current format.
pub(super) fn reencode_event(old: &str) -> serde_json::Result<String> {
    reencode::<RunEvent>(old, event)
}

/// The body of a row in the current format. `table` is the table of the row.
pub(super) fn reencode_body(table: &str, old: &str) -> serde_json::Result<String> {
    match table {
        "runs" => reencode::<Run>(old, run),
        "turns" => reencode::<Turn>(old, turn),
        "interactions" => reencode::<Interaction>(old, interaction),
        _ => reencode::<Delivery>(old, delivery),
    }
}

fn reencode<T: Serialize + DeserializeOwned>(
    old: &str,
    rename: impl FnOnce(&mut Value),
) -> serde_json::Result<String> {
    let mut value: Value = serde_json::from_str(old)?;
    rename(&mut value);
    serde_json::to_string(&serde_json::from_value::<T>(value)?)
}

fn event(value: &mut Value) {
    let Some(fields) = value.as_object_mut() else { return };
    let kind = fields.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    match kind.as_str() {
        "conversation_spoke" => set_kind(fields, "conversation_active"),
        "effect_missed" => set_kind(fields, "effect_obsolete"),
        "contact_lost" => rename_field(fields, "within", "search_timeout_sec"),
        "process_exited" => visit(fields, "exit", exit_status),
        "gate_raised" => visit(fields, "question", question),
        "deadline_passed" => visit(fields, "deadline", |deadline| rename_variant(deadline, "idling", "idle")),
        "turn_ended" => {
            rename_field(fields, "ending", "outcome");
            rename_field(fields, "aftermath", "process_after");
            visit(fields, "outcome", |outcome| {
                visit_variant(outcome, "asked", |fields| visit(fields, "question", question));
            });
            visit(fields, "process_after", |after| {
                if let Some(exit) = after.get_mut("exited") {
                    exit_status(exit);
                }
            });
        }
        // The other events had the same names.
        _ => {}
    }
}

fn run(value: &mut Value) {
    let Some(fields) = value.as_object_mut() else { return };
    rename_field(fields, "owed", "pending_effects");
    rename_field(fields, "auto_decisions_in_a_row", "consecutive_auto_decisions");
    visit(fields, "state", run_state);
    visit_all(fields, "turns", turn);
    visit_all(fields, "interactions", interaction);
    visit_all(fields, "waiting_gates", interaction);
    visit_all(fields, "deliveries", delivery);
    visit_all(fields, "pending_effects", |pending| {
        let effect = pending.get_mut("effect").and_then(Value::as_object_mut);
        if let Some(effect) = effect.filter(|effect| effect.get("type").is_some_and(|kind| kind == "say")) {
            set_kind(effect, "send_prompt");
        }
    });
}

fn run_state(value: &mut Value) {
    visit_variant(value, "queued", |queued| {
        visit(queued, "next", |next| rename_in(next, "cause", "trigger"));
    });
    if let Some(phase) = value.get_mut("running") {
        visit_variant(phase, "launching", |launching| {
            rename_field(launching, "must_confirm", "must_confirm_session");
        });
        visit_variant(phase, "active", |active| visit(active, "live", live_process));
        visit_variant(phase, "stopping", |stopping| {
            rename_field(stopping, "until", "terminate_at");
            visit(stopping, "live", live_process);
        });
        visit_variant(phase, "recovering", |recovering| {
            rename_field(recovering, "until", "search_deadline");
            rename_field(recovering, "work_left", "remaining_time");
            visit(recovering, "live", live_process);
        });
    }
    visit_variant(value, "waiting_user", |waiting| {
        rename_field(waiting, "hold", "held_process");
        visit(waiting, "held_process", held_process);
    });
    visit_variant(value, "idle", |idle| {
        visit(idle, "held", |held| {
            if let Some(process) = held.get_mut(0) {
                live_process(process);
            }
        });
    });
}

fn held_process(value: &mut Value) {
    rename_variant(value, "nothing", "none");
    if let Some(process) = value.get_mut("session") {
        live_process(process);
    }
    visit_variant(value, "turn", |turn| {
        rename_field(turn, "work_left", "remaining_time");
        visit(turn, "live", live_process);
    });
}

fn live_process(value: &mut Value) {
    let Some(fields) = value.as_object_mut() else { return };
    rename_field(fields, "heard", "processed_position");
    rename_field(fields, "must_confirm", "must_confirm_session");
    rename_field(fields, "losses", "contact_losses");
    visit(fields, "contact_losses", |losses| rename_in(losses, "searched", "search_time"));
}

fn turn(value: &mut Value) {
    let Some(fields) = value.as_object_mut() else { return };
    rename_field(fields, "cause", "trigger");
    visit_all(fields, "attempts", |attempt| {
        if let Some(exit) = attempt.get_mut("exit") {
            exit_status(exit);
        }
    });
}

fn interaction(value: &mut Value) {
    let Some(fields) = value.as_object_mut() else { return };
    rename_field(fields, "asker", "origin");
    visit(fields, "question", question);
    visit(fields, "state", |state| {
        visit_variant(state, "closed", |closed| rename_field(closed, "because", "reason"));
    });
}

fn delivery(value: &mut Value) {
    rename_in(value, "carries", "outcome_turn_id");
}

fn question(value: &mut Value) {
    let Some(context) = value.get_mut("context").and_then(Value::as_object_mut) else { return };
    rename_field(context, "rest", "other_fields");
    rename_field(context, "cut", "truncated");
    visit(context, "subject", |subject| {
        if let Some(subject) = subject.as_object_mut().filter(|it| it["type"] == "file_change") {
            visit_all(subject, "files", |file| rename_in(file, "cut", "truncated"));
        }
    });
}

fn exit_status(value: &mut Value) {
    rename_variant(value, "unseen", "unknown");
}

fn set_kind(fields: &mut Map<String, Value>, kind: &str) {
    fields.insert("type".to_owned(), Value::from(kind));
}

fn rename_field(fields: &mut Map<String, Value>, old: &str, new: &str) {
    if let Some(value) = fields.remove(old) {
        fields.insert(new.to_owned(), value);
    }
}

fn rename_in(value: &mut Value, old: &str, new: &str) {
    if let Some(fields) = value.as_object_mut() {
        rename_field(fields, old, new);
    }
}

/// Renames a variant of an enum: a plain text, or an object with one field.
fn rename_variant(value: &mut Value, old: &str, new: &str) {
    if value == old {
        *value = Value::from(new);
    } else {
        rename_in(value, old, new);
    }
}

fn visit(fields: &mut Map<String, Value>, name: &str, change: impl FnOnce(&mut Value)) {
    if let Some(value) = fields.get_mut(name) {
        change(value);
    }
}

fn visit_all(fields: &mut Map<String, Value>, name: &str, change: impl FnMut(&mut Value)) {
    if let Some(values) = fields.get_mut(name).and_then(Value::as_array_mut) {
        values.iter_mut().for_each(change);
    }
}

/// Changes the fields of a variant, if the value is that variant.
fn visit_variant(value: &mut Value, name: &str, change: impl FnOnce(&mut Map<String, Value>)) {
    if let Some(fields) = value.get_mut(name).and_then(Value::as_object_mut) {
        change(fields);
    }
}

#[cfg(test)]
mod tests {
    use abide_domain::{effect::Effect, run::RunState};
    use serde_json::json;

    use super::*;

    fn old_live() -> Value {
        json!({
            "attempt": 1, "process": { "keeper": "k", "pid": 1, "start_time": 2, "boot_id": "b" },
            "heard": 5, "must_confirm": true, "losses": { "count": 1, "searched": 9 },
        })
    }

    fn new_live() -> Value {
        json!({
            "attempt": 1, "process": { "keeper": "k", "pid": 1, "start_time": 2, "boot_id": "b" },
            "processed_position": 5, "must_confirm_session": true,
            "contact_losses": { "count": 1, "search_time": 9 },
        })
    }

    /// The states that the fixture of the first names does not contain.
    #[test]
    fn every_state_is_renamed_and_can_be_decoded() {
        let id = "int_00000000000000000000000001";
        let message = json!({ "message": { "channel": "api", "message_id": "cause" } });
        let states = [
            (
                json!({ "queued": { "since": 1, "next": { "cause": message, "prompt": "heard" } } }),
                json!({ "queued": { "since": 1, "next": { "trigger": message, "prompt": "heard" } } }),
            ),
            (
                json!({ "running": { "stopping": {
                    "live": old_live(), "reason": "shutdown", "by": "until", "until": 7 } } }),
                json!({ "running": { "stopping": {
                    "live": new_live(), "reason": "shutdown", "by": "until", "terminate_at": 7 } } }),
            ),
            (
                json!({ "waiting_user": { "interaction_id": id, "hold": "nothing", "deadline": null } }),
                json!({ "waiting_user": { "interaction_id": id, "held_process": "none", "deadline": null } }),
            ),
            (
                json!({ "waiting_user": {
                    "interaction_id": id, "hold": { "session": old_live() }, "deadline": 3 } }),
                json!({ "waiting_user": {
                    "interaction_id": id, "held_process": { "session": new_live() }, "deadline": 3 } }),
            ),
            (json!({ "idle": { "held": [old_live(), 4] } }), json!({ "idle": { "held": [new_live(), 4] } })),
            (json!({ "idle": { "held": null } }), json!({ "idle": { "held": null } })),
        ];
        for (old, new) in states {
            let mut renamed = old.clone();
            run_state(&mut renamed);
            assert_eq!(renamed, new);
            let decoded: RunState = serde_json::from_value(renamed).expect("the state can be decoded");
            assert_eq!(serde_json::to_value(decoded).expect("the state can be encoded"), new);
        }
    }

    #[test]
    fn events_and_effects_that_the_fixture_lacks_are_renamed() {
        let old = r#"{"type":"deadline_passed","deadline":{"idling":3}}"#;
        let new = reencode_event(old).expect("the event can be decoded");
        assert_eq!(new, r#"{"type":"deadline_passed","deadline":{"idle":3}}"#);
        let old = json!({ "type": "turn_ended", "attempt": 1, "turn_id": "turn_00000000000000000000000001",
            "position": 1, "ending": "interrupted", "aftermath": { "exited": "unseen" } });
        let new = reencode_event(&old.to_string()).expect("the event can be decoded");
        assert!(new.contains(r#""outcome":"interrupted","process_after":{"exited":"unknown"}"#), "{new}");
        let say = json!({ "type": "say", "attempt": 1, "turn_id": "turn_00000000000000000000000001",
            "prompt": "say" });
        let mut value = json!({ "owed": [{ "number": 1, "due_at": 0, "effect": say }] });
        run(&mut value);
        let effect = serde_json::from_value(value["pending_effects"][0]["effect"].clone());
        assert!(matches!(effect, Ok(Effect::SendPrompt { prompt, .. }) if prompt == "say"));
    }
}
