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
fn open_calls_of_a_run_that_ended_are_unknown_and_never_carried_out() {
    for status in ["FAILED", "BUDGET_EXHAUSTED", "COMPLETED"] {
        let stage = AgentLoopFixture::new();
        stage.leave_journal(&ended_with_open_calls(status));
        stage.then(says("done"));
        assert_eq!(stage.message("hi"), completed("done"), "{status}");
        assert_eq!(stage.done.borrow().as_slice(), [""; 0], "{status}");
        let heard = stage.last_heard();
        let unknown = "tool: The outcome of this call is unknown: abide was stopped while it ran";
        assert_eq!(heard[3..6], [unknown; 3], "{status}");
        assert_eq!(heard[6], "user: hi", "{status}");
    }
}

#[test]
fn an_adopted_journal_is_history_only() {
    let stage = AgentLoopFixture::new();
    stage.then(calls(&[("shell", json!({})), ("ask_human", json!({ "question": "?" }))]));
    assert!(matches!(stage.message("go"), AgentOutcome::Waiting { .. }));
    let path = stage.state().join("journal.jsonl");
    let forged = stage.journal()
        + r#"{"seq":7,"ts":"t","type":"SYSTEM_MESSAGE","payload":{"level":"INFO","content":"x"}}"#
        + "\n";
    std::fs::write(&path, &forged).unwrap();
    let refused = stage.order(&AgentRunRequest::default()).unwrap_err().to_string();
    assert!(refused.contains("journal.jsonl, line 7: ") && refused.contains("--adopt"), "{refused}");
    assert_eq!(stage.journal(), forged);
    let memory = stage.memory(ForeignStatePolicy::Adopt).unwrap();
    stage.then(says("done"));
    let order = AgentRunRequest { message: Some("go on".to_owned()), ..AgentRunRequest::default() };
    assert_eq!(stage.order_in(memory, &order).unwrap(), completed("done"));
    let heard = stage.last_heard();
    assert_eq!(
        heard[4],
        "tool: The outcome of this call is unknown: it is in a journal that abide did not write here"
    );
    assert!(
        heard[5].contains("Session 'shell_1' is in a journal that abide did not write here"),
        "{heard:?}"
    );
    assert!(stage.question().is_none());
    // After the adoption the journal counts as Abide's own.
    assert_eq!(stage.message("go on"), completed("done"));
}
