//! The conversation with lines that do not occur in recordings.

use abide_domain::{
    approval::{ApprovalVerdict, option_verdict},
    effect::LaunchSession,
    engine::ProfileKind,
    event::TurnOutcome,
    failure::FailureCode,
    interaction::Question,
    process::ExitStatus,
    time::Timestamp,
};
use abide_ports::engine::{
    EngineFact, EngineInstallation, ExitCause, FactKind, GateAnswer, InterruptMethod, LaunchContext,
    ProcessExit, ProcessInterpreter, ProcessSignal,
};

use super::{interpreter, launch::not_before};
use crate::test_context::{self, session_handle};

const INITIALIZED_LINE: &str =
    r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1,"agentCapabilities":{"loadSession":true}}}"#;
const SESSION_OPENED_LINE: &str = r#"{"jsonrpc":"2.0","id":2,"result":{"sessionId":"s"}}"#;

fn launch_context<'a>(installation: &'a EngineInstallation, session: &'a LaunchSession) -> LaunchContext<'a> {
    LaunchContext { kind: ProfileKind::StickyProcess, ..test_context::launch_context(installation, session) }
}

fn resumed() -> LaunchSession {
    LaunchSession::Resumed(session_handle("acp", "s"))
}

/// A conversation after these lines, and the facts that they produced.
fn feed_lines(session: &LaunchSession, lines: &[&str]) -> (Box<dyn ProcessInterpreter>, Vec<EngineFact>) {
    let mut interpreter = interpreter(&launch_context(&EngineInstallation::for_program("agent"), session));
    let facts = lines.iter().flat_map(|line| interpreter.feed(format!("{line}\n").as_bytes())).collect();
    (interpreter, facts)
}

/// The outcomes of the turns of a new session with these lines after the handshake.
fn turn_outcomes(lines: &[&str]) -> Vec<TurnOutcome> {
    let (_, facts) =
        feed_lines(&LaunchSession::New, &[&[INITIALIZED_LINE, SESSION_OPENED_LINE], lines].concat());
    let endings = facts.into_iter().filter_map(|facts| match facts.kind {
        FactKind::TurnEnded { outcome: ending, .. } => Some(ending),
        FactKind::Session { .. }
        | FactKind::Text(_)
        | FactKind::Progress(_)
        | FactKind::Warning(_)
        | FactKind::Gate { .. }
        | FactKind::GateWithdrawn { .. }
        | FactKind::WriteStdin(_)
        | FactKind::OutputComplete
        | FactKind::UnknownLine(_) => None,
    });
    endings.collect()
}

fn update(kind: &str, text: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"s","update":{{"sessionUpdate":"{kind}","content":{{"type":"text","text":"{text}"}}}}}}}}"#
    )
}

fn permission(id: &str, call: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"session/request_permission","params":{{"sessionId":"s","toolCall":{{"toolCallId":"{call}","title":"rm x"}},"options":[{{"optionId":"a","name":"Always allow","kind":"allow_always"}},{{"optionId":"y","name":"Proceed","kind":"allow_once"}},{{"optionId":"n","name":"Reject","kind":"reject_once"}}]}}}}"#
    )
}

fn gates(facts: &[EngineFact]) -> Vec<(String, Question)> {
    let gates = facts.iter().filter_map(|facts| match &facts.kind {
        FactKind::Gate { gate_id: gate, question, .. } => Some((gate.clone(), question.clone())),
        FactKind::Session { .. }
        | FactKind::Text(_)
        | FactKind::Progress(_)
        | FactKind::Warning(_)
        | FactKind::GateWithdrawn { .. }
        | FactKind::WriteStdin(_)
        | FactKind::OutputComplete
        | FactKind::TurnEnded { .. }
        | FactKind::UnknownLine(_) => None,
    });
    gates.collect()
}

#[test]
fn late_history_is_not_the_answer() {
    let history = [update("user_message_chunk", "old question"), update("agent_message_chunk", "old answer")];
    let loaded = r#"{"jsonrpc":"2.0","id":2,"result":null}"#;
    let answer = update("agent_message_chunk", "new answer");
    let end = r#"{"jsonrpc":"2.0","id":1001,"result":{"stopReason":"end_turn"}}"#;
    let echo = update("user_message_chunk", "hello");
    let lines =
        [INITIALIZED_LINE, &history[0], &history[1], loaded, &history[0], &history[1], &echo, &answer, end];
    let (_, facts) = feed_lines(&resumed(), &lines);
    let ending = TurnOutcome::Completed { text: "new answer".to_owned() };
    assert_eq!(
        facts.last().map(|facts| &facts.kind),
        Some(&FactKind::TurnEnded { turn: 1, outcome: ending })
    );
}

#[test]
fn the_last_message_is_the_answer() {
    let tool = r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"tool_call","toolCallId":"c","title":"ls"}}}"#;
    let other = update("agent_message_chunk", "another agent's").replace("\"s\"", "\"t\"");
    let end = r#"{"jsonrpc":"2.0","id":1001,"result":{"stopReason":"end_turn"}}"#;
    let (look, begins, ends) = (
        update("agent_message_chunk", "I look."),
        update("agent_message_chunk", "good"),
        update("agent_message_chunk", " news"),
    );
    assert_eq!(
        turn_outcomes(&[&look, tool, &begins, &other, &ends, end]),
        [TurnOutcome::Completed { text: "good news".to_owned() }]
    );
}

#[test]
fn only_end_turn_is_success() {
    for reason in ["refusal", "max_tokens", "max_turn_requests", "something_new"] {
        let end = format!(r#"{{"jsonrpc":"2.0","id":1001,"result":{{"stopReason":"{reason}"}}}}"#);
        assert!(matches!(turn_outcomes(&[&end])[..], [TurnOutcome::Failed { .. }]), "{reason}");
    }
    let cancelled = r#"{"jsonrpc":"2.0","id":1001,"result":{"stopReason":"cancelled"}}"#;
    assert_eq!(turn_outcomes(&[cancelled]), [TurnOutcome::Interrupted]);
    assert!(matches!(
        turn_outcomes(&[r#"{"jsonrpc":"2.0","id":1001,"result":null}"#])[..],
        [TurnOutcome::Failed { .. }]
    ));
    assert_eq!(turn_outcomes(&[r#"{"jsonrpc":"2.0","id":1,"result":{"stopReason":"end_turn"}}"#]), []);
}

#[test]
fn an_agent_that_wants_a_login_says_so() {
    let (_, facts) = feed_lines(
        &resumed(),
        &[INITIALIZED_LINE, r#"{"jsonrpc":"2.0","id":2,"error":{"code":-32000,"message":"no"}}"#],
    );
    let ended = facts.last().map(|facts| facts.kind.clone());
    let Some(FactKind::TurnEnded { outcome: TurnOutcome::Failed { failure }, .. }) = ended else {
        panic!("it failed: {ended:?}")
    };
    assert_eq!(failure.code, FailureCode::EngineAuthRequired);
}

#[test]
fn an_id_that_is_used_again_is_another_request_unless_it_is_the_same_one() {
    let end = r#"{"jsonrpc":"2.0","id":1001,"result":{"stopReason":"end_turn"}}"#;
    let (first, other) = (permission("0", "c1"), permission("0", "c2"));
    let (_, facts) = feed_lines(
        &LaunchSession::New,
        &[INITIALIZED_LINE, SESSION_OPENED_LINE, &first, &first, &other, end, &other],
    );
    let names: Vec<String> = gates(&facts).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["0", "0", "0#2", "0#3"]);
}

#[test]
fn permission_is_given_for_this_once_or_not_at_all() {
    let request = permission("\"q\"", "c");
    let (mut interpreter, facts) =
        feed_lines(&LaunchSession::New, &[INITIALIZED_LINE, SESSION_OPENED_LINE, &request]);
    let (gate, question) = gates(&facts).remove(0);
    let labels: Vec<&str> = question.options.iter().map(|option| option.label.as_str()).collect();
    assert_eq!(labels, ["Yes, Proceed", "Reject"]);
    for (option, expected) in question.options.iter().zip(["y", "n"]) {
        let verdict = option_verdict(&question, option);
        let answer =
            interpreter.encode_answer(&GateAnswer { gate_id: &gate, text: &option.label, verdict }).unwrap();
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.contains("\"id\":\"q\"") && answer.contains(&format!("\"optionId\":\"{expected}\"")));
    }
    let unknown = GateAnswer { gate_id: "other", text: "yes", verdict: Some(ApprovalVerdict::Approved) };
    assert!(interpreter.encode_answer(&unknown).is_err());
}

#[test]
fn a_turn_that_has_not_begun_is_stopped_by_a_signal_and_one_at_work_by_the_protocol() {
    let (mut interpreter, _) = feed_lines(&LaunchSession::New, &[INITIALIZED_LINE]);
    assert_eq!(interpreter.interrupt_method(), InterruptMethod::Signal(ProcessSignal::Terminate));
    let request = permission("0", "c");
    let (mut interpreter, _) =
        feed_lines(&LaunchSession::New, &[INITIALIZED_LINE, SESSION_OPENED_LINE, &request]);
    let InterruptMethod::Write(bytes) = interpreter.interrupt_method() else { panic!("it is told") };
    let lines = String::from_utf8(bytes).unwrap();
    assert!(lines.contains("session/cancel") && lines.contains("\"cancelled\""), "{lines}");
}

#[test]
fn unsupported_methods_are_refused_with_the_request_id() {
    let request = r#"{"jsonrpc":"2.0","id":0,"method":"fs/read_text_file","params":{"path":"/etc/passwd"}}"#;
    let (_, facts) = feed_lines(&LaunchSession::New, &[INITIALIZED_LINE, SESSION_OPENED_LINE, request]);
    let Some(FactKind::WriteStdin(bytes)) = facts.last().map(|facts| &facts.kind) else {
        panic!("it is answered")
    };
    let answer = String::from_utf8_lossy(bytes);
    assert!(answer.contains("\"id\":0") && answer.contains("-32601"), "{answer}");
}

#[test]
fn a11_a_session_that_turns_out_to_be_missing_at_the_first_prompt_could_not_be_resumed() {
    let reopened = r#"{"jsonrpc":"2.0","id":2,"result":{}}"#;
    let error = |code: i64, message: &str, details: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":1001,"error":{{"code":{code},"message":"{message}","data":{{"details":"{details}"}}}}}}"#
        )
    };
    let code = |session: &LaunchSession, line: &str| {
        let (_, facts) = feed_lines(
            session,
            &[
                INITIALIZED_LINE,
                if *session == LaunchSession::New { SESSION_OPENED_LINE } else { reopened },
                line,
            ],
        );
        let Some(FactKind::TurnEnded { outcome: TurnOutcome::Failed { failure }, .. }) =
            facts.last().map(|it| &it.kind)
        else {
            panic!("it ends with a failure: {facts:?}");
        };
        failure.code
    };
    for (number, message, details) in [
        (-32603, "Internal error", "thread not found: 01a1e7b7"),
        (-32002, "Resource not found", ""),
        (-32603, "Session s does not exist", ""),
        (-32602, "Invalid params", "no conversation found; unknown session"),
    ] {
        let line = error(number, message, details);
        assert_eq!(code(&resumed(), &line), FailureCode::SessionResumeFailed, "{line}");
        assert_eq!(
            code(&LaunchSession::New, &line),
            FailureCode::EngineFailed,
            "nothing was resumed: {line}"
        );
    }
    for (message, details) in
        [("Internal error", "model not found: m"), ("Internal error", "thread panicked")]
    {
        let line = error(-32603, message, details);
        assert_eq!(code(&resumed(), &line), FailureCode::EngineFailed, "{line}");
    }
}

#[test]
fn an_exit_between_turns_is_no_failure() {
    let end = r#"{"jsonrpc":"2.0","id":1001,"result":{"stopReason":"end_turn"}}"#;
    let exit = ProcessExit { status: ExitStatus::Code(1), stderr: b"", cause: ExitCause::Voluntary };
    let (mut interpreter, _) = feed_lines(&LaunchSession::New, &[INITIALIZED_LINE, SESSION_OPENED_LINE, end]);
    assert_eq!(interpreter.on_exit(&exit), []);
    let begun = update("agent_message_chunk", "half");
    let (mut interpreter, _) =
        feed_lines(&LaunchSession::New, &[INITIALIZED_LINE, SESSION_OPENED_LINE, end, &begun]);
    let ended = interpreter.on_exit(&exit);
    assert!(
        matches!(
            ended[..],
            [EngineFact { kind: FactKind::TurnEnded { turn: 2, outcome: TurnOutcome::Failed { .. } }, .. }]
        ),
        "{ended:?}"
    );
}

#[test]
fn a_session_is_not_loaded_in_its_first_minute() {
    let (installation, session) = (EngineInstallation::for_program("agent"), resumed());
    let begun = |second: i64| LaunchContext {
        session_started_at: Some(Timestamp(second * 1_000_000)),
        ..launch_context(&installation, &session)
    };
    assert_eq!(not_before(&begun(125)), Some(Timestamp(181_000_000)));
    assert_eq!(not_before(&begun(179)), Some(Timestamp(241_000_000)), "its file may be made a minute later");
    assert_eq!(not_before(&launch_context(&installation, &session)), None);
    // A wait would hold the run's slot without need (A8).
    let resumes = LaunchContext { resume_detail: "it offers session/resume; logins: none", ..begun(125) };
    assert_eq!(not_before(&resumes), None);
}

/// The prompt of a request about this call, after these updates.
fn permission_prompt(updates: &[&str], call: &str) -> Option<String> {
    let updates = updates.iter().map(|update| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"s","update":{update}}}}}"#
        )
    });
    let request = format!(
        r#"{{"jsonrpc":"2.0","id":7,"method":"session/request_permission","params":{{"sessionId":"s","toolCall":{call},"options":[{{"optionId":"y","name":"Allow","kind":"allow_once"}},{{"optionId":"n","name":"No\ncwd: x","kind":"reject_once"}}]}}}}"#
    );
    let lines: Vec<String> = [INITIALIZED_LINE.to_owned(), SESSION_OPENED_LINE.to_owned()]
        .into_iter()
        .chain(updates)
        .chain([request])
        .collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let (_, facts) = feed_lines(&LaunchSession::New, &lines);
    let declined = facts.iter().any(|facts| {
        let rejects = |bytes: &[u8]| String::from_utf8_lossy(bytes).contains(r#""optionId":"n""#);
        matches!(&facts.kind, FactKind::WriteStdin(bytes) if rejects(bytes))
    });
    let gate = gates(&facts).pop().map(|(_, question)| {
        assert_eq!(question.options[1].label, "No\\ncwd: x");
        question.prompt
    });
    assert_ne!(declined, gate.is_some(), "a request is put to a person or declined");
    gate
}

/// SECURITY finding 8
#[test]
fn everything_that_a_yes_covers_is_shown() {
    let prompt = permission_prompt(
        &[],
        r#"{"toolCallId":"c","title":"Edit\ntool: x","kind":"edit","status":"pending","locations":[],
        "rawInput":{"path":"a"},"_meta":{"x":1},"content":[
        {"type":"diff","path":"/fixture/.bashrc","oldText":"a\nb\n","newText":"a\nevil\n"},
        {"type":"diff","path":"new","oldText":null,"newText":"x","odd":"y"},
        {"type":"content","content":{"type":"text","text":"harmless"}},
        {"type":"terminal","terminalId":"t"}]}"#
            .replace('\n', " ")
            .as_str(),
    );
    assert_eq!(
        prompt.as_deref(),
        Some(
            "May these 2 files be changed?\nedits: \"/fixture/.bashrc\"\n  |  a\n  | -b\n  | +evil\n\
             writes: \"new\"\n  | +x\n  | \\\\ no newline at the end\ntool: \"edit\"\nodd: \"y\"\n\
             content: \"harmless\"\ncontent: {\"type\": \"terminal\", \"terminalId\": \"t\"}\n\
             rawInput: {\"path\": \"a\"}\n_meta: {\"x\": 1}\n\
             the engine says:\n  | Edit\n  | tool: x"
        )
    );
    let prompt = permission_prompt(
        &[],
        r#"{"toolCallId":"c","title":"ls","kind":"execute","rawInput":{"command":"ls","cwd":"/w","sandbox":false}}"#,
    );
    assert_eq!(
        prompt.as_deref(),
        Some("May this command be run?\ncommand:\n  | ls\ncwd: \"/w\"\ntool: \"execute\"\nsandbox: false")
    );
    let argv = permission_prompt(&[], r#"{"rawInput":{"command":["sh","-c","evil"]}}"#);
    assert!(argv.unwrap().contains("\n  \"sh\"\n  \"-c\"\n  \"evil\""));
    let odd = permission_prompt(&[], r#"{"rawInput":[1,{"a":"b"}],"title":"harmless"}"#);
    assert!(odd.unwrap().contains("rawInput: [1, {\"a\": \"b\"}]"));
}

/// SECURITY finding 8
#[test]
fn earlier_updates_of_a_call_complete_its_request() {
    let update =
        r#"{"sessionUpdate":"tool_call","toolCallId":"c","title":"Run","rawInput":{"command":"evil"}}"#;
    let prompt = permission_prompt(&[update], r#"{"toolCallId":"c","title":"harmless"}"#).unwrap();
    assert!(prompt.contains("command:\n  | evil"), "{prompt}");
    let long = format!(
        r#"{{"sessionUpdate":"tool_call","toolCallId":"c","title":"Run","rawInput":{{"command":"{}"}}}}"#,
        "x".repeat(5 << 20)
    );
    assert_eq!(permission_prompt(&[&long], r#"{"toolCallId":"c","title":"harmless"}"#), None);
    assert!(permission_prompt(&[&long], r#"{"toolCallId":"d","title":"other"}"#).is_some());
}

/// A line of more than 16 MiB with this beginning.
fn long(head: &str) -> String {
    format!("{head}{}", "x".repeat(17 << 20))
}

/// Issue 14: a turn must not wait forever because a line is too long.
#[test]
fn a_request_that_is_too_long_is_refused_under_its_id() {
    for id in ["7", "\"a-b\""] {
        let head =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"session/request_permission","params":{{"x":""#);
        let (_, facts) = feed_lines(
            &LaunchSession::New,
            &[INITIALIZED_LINE, SESSION_OPENED_LINE, &update("agent_message_chunk", "a"), &long(&head)],
        );
        let [
            ..,
            EngineFact { kind: FactKind::Warning(_), .. },
            EngineFact { kind: FactKind::WriteStdin(answer), .. },
        ] = facts.as_slice()
        else {
            panic!("{facts:?}")
        };
        let answer: serde_json::Value = serde_json::from_slice(answer).unwrap();
        assert_eq!(answer["id"].to_string(), id);
        assert!(answer["error"]["message"].as_str().unwrap().contains("16 MiB"), "{answer}");
    }
}

#[test]
fn a_turn_fails_that_cannot_continue_without_a_line_that_is_too_long() {
    let nameless = r#"{"jsonrpc":"2.0","method":"session/request_permission","params":{"x":""#;
    let answer = r#"{"jsonrpc":"2.0","id":1001,"result":{"stopReason":"end_turn","x":""#;
    for head in [nameless, answer, r#"{"result":{"x":""#] {
        let ended = turn_outcomes(&[&long(head)]);
        let [TurnOutcome::Failed { failure }] = ended.as_slice() else { panic!("{head}: {ended:?}") };
        assert!(failure.message.contains("acp") && failure.message.contains("16 MiB"), "{failure:?}");
    }
    let harmless = r#"{"jsonrpc":"2.0","method":"session/update","params":{"x":""#;
    let done = r#"{"jsonrpc":"2.0","id":1001,"result":{"stopReason":"end_turn"}}"#;
    for head in [harmless, "no JSON at all"] {
        let ended = turn_outcomes(&[&long(head), &update("agent_message_chunk", "answer"), done]);
        assert!(matches!(ended.as_slice(), [TurnOutcome::Completed { .. }]), "{head}: {ended:?}");
    }
    // Before the first prompt is sent, the long line is a failure too.
    let (_, facts) = feed_lines(&LaunchSession::New, &[&long(r#"{"jsonrpc":"2.0","id":1,"result":{"x":""#)]);
    assert!(
        matches!(facts.last(), Some(EngineFact { kind: FactKind::TurnEnded { turn: 1, .. }, .. })),
        "{facts:?}"
    );
}
