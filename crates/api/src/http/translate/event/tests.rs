//! Every kind of event: its JSON, its way back from JSON, and its schema in the OpenAPI document.

use std::collections::{BTreeMap, BTreeSet};

use abide_domain::{
    deadline::DeadlineKind,
    delivery::DeliveryFailure,
    effect::EffectNumber,
    engine::{EngineInteractiveProfile, EngineSessionHandle, HandleType, ProfileKind, RunAbilities},
    event::{LaunchRetry, NewRun, ProcessAfterTurn, RunEvent, TurnOutcome},
    failure::{FailureCode, RunFailure},
    id::{DeliveryId, IdSeed, InteractionId, RunId, TurnId},
    inbound::{InboundMessage, MessageKey},
    interaction::{DecisionPolicy, GatePurpose, InteractionKind, InteractionOption, Question},
    policy::AutoDecideReason,
    process::{Attempt, ExitStatus, OutputPosition, ProcessBinding},
    reply::{InteractionReply, ReplyAuthor},
    settings::{ExecutionMode, OnBusy, RunSettings, UnansweredPolicy},
    time::Seconds,
};
use abide_testkit::history::HistoryGenerator;
use abide_wire::event::{EventBody, RunEventView};
use serde_json::{Value, json};

use super::run_event;

const ATTEMPT: Attempt = Attempt(2);
const POSITION: OutputPosition = OutputPosition(9);
const INTERACTION: InteractionId = InteractionId(IdSeed(1));
const TURN: TurnId = TurnId(IdSeed(2));
const DELIVERY: DeliveryId = DeliveryId(IdSeed(3));

fn message() -> InboundMessage {
    let key = MessageKey { channel: "api".to_owned(), message_id: "msg_1".to_owned() };
    InboundMessage { key, text: "make tea".to_owned() }
}

fn new_run() -> NewRun {
    NewRun {
        run_id: RunId(IdSeed(4)),
        settings: RunSettings {
            engine: "parrot".to_owned(),
            workspace: "/tmp/w".to_owned(),
            execution_mode: ExecutionMode::Chat,
            conversation_ref: None,
            unanswered: UnansweredPolicy::Strict,
            session_timeout_sec: Seconds(1200),
            turn_timeout_sec: None,
            on_busy: OnBusy::Queue,
            model: None,
            sandbox: None,
            isolation: None,
            skill: None,
            labels: BTreeMap::new(),
        },
        message: message(),
        idempotency: None,
        rules: 1,
    }
}

fn reply(by: ReplyAuthor) -> RunEvent {
    let (interaction_id, text) = (INTERACTION, "green".to_owned());
    RunEvent::ReplyArrived { reply: InteractionReply { interaction_id, text, by, idempotency_key: None } }
}

fn question(kind: InteractionKind) -> Question {
    Question {
        kind,
        prompt: "tea?".to_owned(),
        options: vec![InteractionOption { label: "yes".to_owned(), safe: false }],
        ui_hints: None,
        default_decision_policy: DecisionPolicy::SafeDefault,
        context: None,
        hidden: None,
    }
}

fn question_json(kind: &str, approves: Value) -> Value {
    let options = json!([{ "label": "yes", "safe": false, "approves": approves }]);
    json!({ "kind": kind, "prompt": "tea?", "options": options, "context": null, "hidden": null })
}

fn process() -> ProcessBinding {
    let (keeper, boot_id) = ("keeper".to_owned(), "boot".to_owned());
    ProcessBinding { keeper, pid: 77, start_time: 5, boot_id }
}

fn cause() -> RunFailure {
    RunFailure::new(FailureCode::EngineFailed, "no")
}

fn cause_json() -> Value {
    json!({ "code": "ENGINE_FAILED", "message": "no" })
}

fn turn_end(outcome: TurnOutcome, process_after: ProcessAfterTurn) -> RunEvent {
    RunEvent::TurnEnded { attempt: ATTEMPT, turn_id: TURN, position: POSITION, outcome, process_after }
}

fn turn_end_json(outcome: &str, text: Value, question: Value, error: Value, exit_code: Value) -> Value {
    json!({
        "attempt": 2, "turn_id": TURN.to_string(), "outcome": outcome, "text": text, "question": question,
        "error": error, "exit_code": exit_code,
    })
}

/// Each kind of event at least once, with the expected `data`.
fn samples() -> Vec<(RunEvent, Value)> {
    let mut samples = request_samples();
    samples.extend(process_samples());
    samples.extend(output_samples());
    samples.extend(environment_samples());
    samples
}

fn request_samples() -> Vec<(RunEvent, Value)> {
    let by_policy =
        ReplyAuthor::Policy { reason: AutoDecideReason::UserNoReply, policy: DecisionPolicy::SafeDefault };
    vec![
        (
            RunEvent::RunCreated(Box::new(new_run())),
            json!({
                "engine": "parrot", "workspace": "/tmp/w", "execution_mode": "chat", "message_id": "msg_1",
                "prompt": "make tea",
            }),
        ),
        (RunEvent::Admitted, json!({})),
        (
            RunEvent::MessageArrived { message: message(), on_busy: Some(OnBusy::Steer) },
            json!({ "channel": "api", "message_id": "msg_1", "text": "make tea", "on_busy": "steer" }),
        ),
        (
            reply(ReplyAuthor::Person("mara".to_owned())),
            json!({
                "interaction_id": INTERACTION.to_string(), "text": "green", "source": "user_reply",
                "by": "mara",
            }),
        ),
        (
            reply(by_policy),
            json!({
                "interaction_id": INTERACTION.to_string(), "text": "green", "source": "auto_decide_timeout",
                "by": "policy", "reason": "user_no_reply", "policy": "safe_default", "instruction": "green",
            }),
        ),
        (RunEvent::InterruptRequested { by: "mara".to_owned() }, json!({ "by": "mara" })),
        (RunEvent::CancelRequested { by: "mara".to_owned() }, json!({ "by": "mara" })),
        (RunEvent::ShutdownRequested, json!({})),
        (RunEvent::RulesAdopted { rules: 3 }, json!({ "rules_version": 3 })),
    ]
}

fn process_samples() -> Vec<(RunEvent, Value)> {
    let profile = EngineInteractiveProfile {
        kind: ProfileKind::StickyProcess,
        reason: "no resume".to_owned(),
        session_timeout_sec: Seconds(60),
    };
    let abilities = RunAbilities { steer: false, recover: false };
    vec![
        (
            RunEvent::ProfileResolved { profile, abilities, handle: None, command: None },
            json!({ "kind": "sticky_process", "reason": "no resume" }),
        ),
        (RunEvent::EngineUnusable { failure: cause() }, json!({ "error": cause_json() })),
        (
            RunEvent::AttemptStarted { attempt: ATTEMPT, process: process() },
            json!({ "attempt": 2, "pid": 77 }),
        ),
        (
            RunEvent::LaunchFailed { attempt: ATTEMPT, failure: cause(), retry: LaunchRetry::Later },
            json!({ "attempt": 2, "error": cause_json(), "retry": "later" }),
        ),
        (
            RunEvent::ProcessExited { attempt: ATTEMPT, exit: ExitStatus::Code(137) },
            json!({ "attempt": 2, "exit_code": 137 }),
        ),
        (RunEvent::ContactLost { attempt: ATTEMPT, search_timeout_sec: None }, json!({ "attempt": 2 })),
        (
            RunEvent::ContactRestored { attempt: ATTEMPT, process: process() },
            json!({ "attempt": 2, "pid": 77 }),
        ),
        (
            RunEvent::RecoveryFailed { attempt: ATTEMPT, reason: "gone".to_owned() },
            json!({ "attempt": 2, "reason": "gone" }),
        ),
        (RunEvent::SessionLost { failure: cause() }, json!({ "error": cause_json() })),
    ]
}

fn output_samples() -> Vec<(RunEvent, Value)> {
    let handle = EngineSessionHandle {
        engine: "parrot".to_owned(),
        handle_type: HandleType::SessionId,
        handle_value: "secret".to_owned(),
        created_at_turn: 1,
    };
    let (attempt, position, turn_id) = (ATTEMPT, POSITION, TURN);
    let gate = |purpose| RunEvent::GateRaised {
        attempt,
        turn_id,
        position,
        gate: "g".to_owned(),
        purpose,
        question: question(InteractionKind::Confirm),
    };
    let gate_json = |purpose: &str, approves: Value| {
        let question = question_json("confirm", approves);
        json!({ "attempt": 2, "turn_id": TURN.to_string(), "purpose": purpose, "question": question })
    };
    let outcome = TurnOutcome::Asked { text: "hm".to_owned(), question: question(InteractionKind::RiskAck) };
    let exited = ProcessAfterTurn::Exited(ExitStatus::Code(0));
    vec![
        (RunEvent::HandleAnnounced { attempt, position, handle }, json!({ "attempt": 2 })),
        (
            RunEvent::Progressed { attempt, position, text: "boils".to_owned() },
            json!({ "attempt": 2, "text": "boils" }),
        ),
        (gate(GatePurpose::Approval), gate_json("approval", json!(true))),
        (gate(GatePurpose::Input), gate_json("input", Value::Null)),
        (RunEvent::GateWithdrawn { attempt, position, gate: "g".to_owned() }, json!({ "attempt": 2 })),
        (
            turn_end(TurnOutcome::Completed { text: "done".to_owned() }, ProcessAfterTurn::Alive),
            turn_end_json("completed", json!("done"), Value::Null, Value::Null, Value::Null),
        ),
        (
            turn_end(outcome, exited),
            turn_end_json(
                "asked",
                json!("hm"),
                question_json("risk_ack", json!(true)),
                Value::Null,
                json!(0),
            ),
        ),
        (
            turn_end(TurnOutcome::Failed { failure: cause() }, ProcessAfterTurn::Exited(ExitStatus::Unknown)),
            turn_end_json("failed", Value::Null, Value::Null, cause_json(), Value::Null),
        ),
        (
            turn_end(TurnOutcome::Interrupted, exited),
            turn_end_json("interrupted", Value::Null, Value::Null, Value::Null, json!(0)),
        ),
    ]
}

fn environment_samples() -> Vec<(RunEvent, Value)> {
    let deadline = |deadline| RunEvent::DeadlinePassed { deadline };
    let deadline_json = |kind: &str| json!({ "deadline": kind, "interaction_id": null });
    let delivery = DELIVERY.to_string();
    vec![
        (
            deadline(DeadlineKind::Answer(INTERACTION)),
            json!({ "deadline": "answer", "interaction_id": INTERACTION.to_string() }),
        ),
        (deadline(DeadlineKind::Turn(ATTEMPT)), deadline_json("turn")),
        (deadline(DeadlineKind::Stop(ATTEMPT)), deadline_json("stop")),
        (deadline(DeadlineKind::Recovery(ATTEMPT)), deadline_json("recovery")),
        (deadline(DeadlineKind::Idle(ATTEMPT)), deadline_json("idle")),
        (RunEvent::DeliveryConfirmed { delivery_id: DELIVERY }, json!({ "delivery_id": delivery })),
        (
            RunEvent::DeliveryFailed { delivery_id: DELIVERY, certainty: DeliveryFailure::Unknown },
            json!({ "delivery_id": delivery, "outcome": "unknown" }),
        ),
        (RunEvent::ConversationActive, json!({})),
        (RunEvent::EffectPerformed { effect: EffectNumber(5) }, json!({ "effect": 5 })),
        (RunEvent::EffectObsolete { effect: EffectNumber(5) }, json!({ "effect": 5 })),
    ]
}

/// Reads the JSON of an event as a client does.
fn read(json: &Value) -> EventBody {
    serde_json::from_str(&json.to_string()).expect("every event can be read")
}

#[test]
fn every_kind_of_event_has_its_json_and_is_read_back_as_the_same_type() {
    for (event, data) in samples() {
        let view = run_event(&event);
        let json = serde_json::to_value(&view).expect("an event is JSON");
        // One name in the journal and on the wire.
        let journal = serde_json::to_value(&event).expect("an event is JSON");
        assert_eq!(json, json!({ "type": journal["type"], "data": data }), "{}", event.name());
        assert_eq!(read(&json), EventBody::Known(view), "{}", event.name());
    }
}

#[test]
fn events_of_random_histories_are_read_back_as_the_same_type() {
    for seed in 0..20 {
        let mut history = HistoryGenerator::new(seed, 1);
        for _ in 0..200 {
            let view = run_event(&history.change().event);
            let json = serde_json::to_value(&view).expect("an event is JSON");
            assert_eq!(read(&json), EventBody::Known(view));
        }
    }
}

/// The document lists the same kinds as [`RunEventView`], and each of them is among the samples. The match in
/// [`run_event`] is exhaustive, so a new kind of the domain cannot be left out.
#[test]
fn the_document_describes_every_kind_of_event_with_its_fields() {
    let document = crate::http::openapi();
    let schema = |name: &str| &document["components"]["schemas"][name];
    let mut described: BTreeMap<&str, &Value> = BTreeMap::new();
    for kind in schema("RunEventView")["oneOf"].as_array().expect("one schema for each kind") {
        let name = kind["properties"]["type"]["enum"][0].as_str().expect("a constant type");
        let reference = kind["properties"]["data"]["$ref"].as_str().expect("a named schema");
        described.insert(name, schema(reference.trim_start_matches("#/components/schemas/")));
    }
    let mut sampled = BTreeSet::new();
    for (event, _) in samples() {
        let json = serde_json::to_value(run_event(&event)).expect("an event is JSON");
        let name = json["type"].as_str().expect("a type").to_owned();
        let data_schema = described.get(name.as_str()).unwrap_or_else(|| panic!("{name} is not described"));
        let properties = data_schema["properties"].as_object();
        for field in json["data"].as_object().expect("an object").keys() {
            assert!(properties.is_some_and(|fields| fields.contains_key(field)), "{name}.{field}");
        }
        sampled.insert(name);
    }
    let described: BTreeSet<_> = described.into_keys().map(str::to_owned).collect();
    assert_eq!(sampled, described);
}

#[test]
fn no_event_contains_the_session_id_of_an_engine() {
    for (event, _) in samples() {
        let json = serde_json::to_string::<RunEventView>(&run_event(&event)).expect("an event is JSON");
        assert!(!json.contains("secret"), "{json}");
    }
}
