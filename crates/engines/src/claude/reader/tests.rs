//! Requests, turns without a prompt, and lines that are too long.

use abide_domain::{approval::ApprovalVerdict, effect::LaunchSession, engine::ProfileKind};
use abide_ports::engine::{Engine, EngineFact, EngineInstallation, ProcessInterpreter};

use super::*;
use crate::{claude::ENGINE, test_context::launch_context};

const INIT: &str = r#"{"type":"system","subtype":"init","session_id":"s1"}"#;
const BASH: &str = r#"{"type":"control_request","request_id":"r1","request":{"subtype":"can_use_tool","tool_name":"Bash","input":{"command":"ls"},"tool_use_id":"t1"}}"#;
const DONE: &str = r#"{"is_error":false,"result":"done","type":"result"}"#;

fn interpreter() -> Box<dyn ProcessInterpreter> {
    let installation = EngineInstallation::for_program("claude");
    ENGINE.interpreter(&LaunchContext {
        kind: ProfileKind::StickyProcess,
        mode: ExecutionMode::Chat,
        ..launch_context(&installation, &LaunchSession::New)
    })
}

fn feed_lines(interpreter: &mut dyn ProcessInterpreter, lines: &[&str]) -> Vec<FactKind> {
    let bytes: String = lines.iter().map(|line| format!("{line}\n")).collect();
    interpreter.feed(bytes.as_bytes()).into_iter().map(|EngineFact { kind, .. }| kind).collect()
}

fn written_text(fact: Option<&FactKind>) -> String {
    match fact {
        Some(FactKind::WriteStdin(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        other => panic!("{other:?} is no order to write"),
    }
}

#[test]
fn an_unknown_request_is_refused_and_the_turn_continues() {
    let odd = r#"{"type":"control_request","request_id":"r9","request":{"subtype":"hook_callback"}}"#;
    let facts = feed_lines(&mut *interpreter(), &[INIT, odd]);
    let refused = r#"{"type":"control_response","response":{"subtype":"error","request_id":"r9","error":"hook_callback is not supported by this client"}}"#;
    assert_eq!(written_text(facts.get(1)).trim_end(), refused);
    assert_eq!(facts.get(2), Some(&FactKind::UnknownLine(odd.to_owned())));
}

#[test]
fn a_turn_without_a_prompt_gets_no_permission() {
    let notified = r#"{"type":"system","subtype":"task_notification"}"#;
    let foreign =
        r#"{"is_error":false,"result":"mine","origin":{"kind":"task-notification"},"type":"result"}"#;
    let mut interpreter = interpreter();
    let facts = feed_lines(&mut *interpreter, &[INIT, DONE, notified, INIT, BASH, foreign]);
    assert_eq!(facts.len(), 3, "a session, an end and an answer: {facts:?}");
    assert!(written_text(facts.last()).contains(r#""behavior":"deny""#), "{facts:?}");
    assert_eq!(interpreter.status(), EngineSessionStatus::BetweenTurns);
    let ended = feed_lines(&mut *interpreter, &[INIT, DONE]);
    assert!(matches!(ended.as_slice(), [FactKind::TurnEnded { turn: 2, .. }]), "{ended:?}");
}

#[test]
fn a_reader_that_never_saw_the_answer_can_still_give_it() {
    let (mut first, mut second) = (interpreter(), interpreter());
    let answer = GateAnswer { gate_id: "r1", text: "yes", verdict: Some(ApprovalVerdict::Approved) };
    assert_eq!(feed_lines(&mut *first, &[INIT, BASH]), feed_lines(&mut *second, &[INIT, BASH]));
    assert_eq!(first.status(), EngineSessionStatus::WaitingForAnswer);
    assert_eq!(first.encode_answer(&answer), second.encode_answer(&answer));
    assert_eq!(first.status(), EngineSessionStatus::Working);
    let result = r#"{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t1"}]}}"#;
    assert_eq!(feed_lines(&mut *first, &[result]), []);
    assert!(first.encode_answer(&answer).is_err(), "the call is over");
}

#[test]
fn text_of_a_subagent_is_not_the_answer() {
    let sub = r#"{"type":"assistant","parent_tool_use_id":"t1","message":{"content":[{"type":"text","text":"sub"}]}}"#;
    assert_eq!(feed_lines(&mut *interpreter(), &[INIT, sub]).len(), 1);
}

/// A line of more than 16 MiB with this beginning.
fn long(head: &str) -> String {
    format!("{head}{}", "x".repeat(17 << 20))
}

/// Issue 14: a turn must not wait forever because a line is too long.
#[test]
fn a_request_that_is_too_long_is_refused_under_its_id() {
    let request = long(r#"{"type":"control_request","request_id":"r7","request":{"input":""#);
    let facts = feed_lines(&mut *interpreter(), &[INIT, &request]);
    let [_, FactKind::Warning(warning), answer] = facts.as_slice() else { panic!("{facts:?}") };
    assert!(warning.contains("too long"), "{warning}");
    let answer = written_text(Some(answer));
    assert!(answer.contains(r#""subtype":"error","request_id":"r7""#) && answer.contains("16 MiB"));
}

#[test]
fn a_turn_fails_that_cannot_be_understood_without_a_line_that_is_too_long() {
    let result = r#"{"type":"result","is_error":false,"result":""#;
    let nameless = r#"{"type":"control_request","request":{"input":""#;
    for head in [result, nameless, r#"{"is_error":false,"result":""#] {
        let mut interpreter = interpreter();
        let facts = feed_lines(&mut *interpreter, &[INIT, &long(head), DONE]);
        let ended: Vec<_> = facts.iter().filter(|fact| matches!(fact, FactKind::TurnEnded { .. })).collect();
        let Some(FactKind::TurnEnded { turn: 1, outcome: TurnOutcome::Failed { failure } }) = ended.first()
        else {
            panic!("{head}: {ended:?}")
        };
        assert!(failure.message.contains("claude") && failure.message.contains("16 MiB"), "{failure:?}");
    }
    for harmless in [r#"{"type":"user","message":{"content":""#, r#"{"type":"stream_event","x":""#, "x"] {
        let facts = feed_lines(&mut *interpreter(), &[INIT, &long(harmless), DONE]);
        let ended = facts.last();
        let is_answer =
            matches!(ended, Some(FactKind::TurnEnded { turn: 1, outcome: TurnOutcome::Completed { .. } }));
        assert!(is_answer, "{harmless}: {ended:?}");
    }
}

#[test]
fn an_odd_field_does_not_cost_the_line() {
    let odd = r#"{"type":"assistant","parent_tool_use_id":null,"message":{"content":[{"type":"tool_use","name":"mcp","input":{"query":{"a":[1]},"path":7,"url":"u"}}]}}"#;
    assert_eq!(feed_lines(&mut *interpreter(), &[odd]), [FactKind::Progress("mcp: u".to_owned())]);
}
