//! Journals that Abide did not write, or that are inconsistent.

use super::*;

/// A journal with a run that ended with this status although two calls and a question are open.
fn ended_with_open_calls(status: &str) -> String {
    let request = |seq: u64, tool: &str| {
        format!(
            r#"{{"seq":{seq},"ts":"t","type":"ACTION_REQUEST","payload":{{"action_id":"act_{seq}","call_id":"c{seq}","tool_name":"{tool}","tool_args":{{"question":"?"}}}}}}"#
        )
    };
    let lines = [
        r#"{"seq":1,"ts":"t","type":"RUN_START","payload":{"run_id":"r","agent":"a","model":"m"}}"#
            .to_owned(),
        r#"{"seq":2,"ts":"t","type":"USER_MESSAGE","payload":{"text":"go"}}"#.to_owned(),
        r#"{"seq":3,"ts":"t","type":"THOUGHT","payload":{"text":null,"calls":3}}"#.to_owned(),
        request(4, "look"),
        request(5, "ask_human"),
        request(6, "shell"),
        format!(
            r#"{{"seq":7,"ts":"t","type":"RUN_END","payload":{{"run_id":"r","status":"{status}","iterations":1,"usage":{{"input_tokens":0,"output_tokens":0}}}}}}"#
        ),
    ];
    lines.map(|line| line + "\n").concat()
}

#[test]
fn open_calls_of_an_ended_run_are_unknown_and_never_executed() {
    for status in ["FAILED", "BUDGET_EXHAUSTED", "COMPLETED"] {
        let fixture = AgentLoopFixture::new();
        fixture.write_journal(&ended_with_open_calls(status));
        fixture.push_reply(text_reply("done"));
        assert_eq!(fixture.message("hi"), completed("done"), "{status}");
        assert_eq!(fixture.executed_calls.borrow().as_slice(), [""; 0], "{status}");
        let requests = fixture.last_request();
        let unknown = "tool: The outcome of this call is unknown: abide was stopped while it ran";
        assert_eq!(requests[3..6], [unknown; 3], "{status}");
        assert_eq!(requests[6], "user: hi", "{status}");
    }
}

#[test]
fn an_adopted_journal_is_history_only() {
    let fixture = AgentLoopFixture::new();
    fixture.push_reply(calls_reply(&[("shell", json!({})), ("ask_human", json!({ "question": "?" }))]));
    assert!(matches!(fixture.message("go"), AgentOutcome::Waiting { .. }));
    let path = fixture.state().join("journal.jsonl");
    let forged = fixture.journal()
        + r#"{"seq":7,"ts":"t","type":"SYSTEM_MESSAGE","payload":{"level":"INFO","content":"x"}}"#
        + "\n";
    std::fs::write(&path, &forged).unwrap();
    let refused = fixture.run(&AgentRunRequest::default()).unwrap_err().to_string();
    assert!(refused.contains("journal.jsonl, line 7: ") && refused.contains("--adopt"), "{refused}");
    assert_eq!(fixture.journal(), forged);
    let memory = fixture.open_state(ForeignStatePolicy::Adopt).unwrap();
    fixture.push_reply(text_reply("done"));
    let order = AgentRunRequest { message: Some("continue".to_owned()), ..AgentRunRequest::default() };
    assert_eq!(fixture.run_in(memory, &order).unwrap(), completed("done"));
    let requests = fixture.last_request();
    assert_eq!(
        requests[4],
        "tool: The outcome of this call is unknown: it is in a journal that abide did not write here"
    );
    assert!(
        requests[5].contains("Session 'shell_1' is in a journal that abide did not write here"),
        "{requests:?}"
    );
    assert!(fixture.question().is_none());
    // After the adoption the journal counts as Abide's own.
    assert_eq!(fixture.message("continue"), completed("done"));
}
