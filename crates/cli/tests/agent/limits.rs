//! Limits of the agent, and errors of models.

use abide_testkit::model::{ModelScript, ScriptedAnswer, TestGate};
use serde_json::json;

use super::harness::{AgentTestHome, results, script};

#[test]
fn a_used_up_budget_is_no_success_and_the_same_command_continues() {
    let note = |text: &str| ScriptedAnswer::call("note", json!({ "text": text }));
    let home = AgentTestHome::new(script([note("a"), note("b"), note("c"), ScriptedAnswer::say("done")]));
    let words = ["--message", "go", "--max-iterations", "2"];
    let exhausted = home.run(&words);
    exhausted.expect(1);
    assert!(exhausted.stderr.contains("all 2 iterations are used"), "{}", exhausted.stderr);
    assert_eq!(home.events("RUN_END")[0]["status"], "BUDGET_EXHAUSTED");
    assert_eq!(home.run(&words).expect(0).stdout, "done\n");
    assert_eq!(home.events("USER_MESSAGE").len(), 1);
}

#[test]
fn a_budget_of_tokens_holds() {
    let note = ScriptedAnswer::call("note", json!({ "text": "x" })).with_usage(600, 10);
    let model = ModelScript::new().with_default(note);
    let home = AgentTestHome::with(model, "limits:\n  max_total_tokens: 1000\n");
    home.run(&["--message", "go"]).expect(1);
    assert_eq!(home.model.requests().len(), 2);
    let end = home.events("RUN_END").remove(0);
    assert_eq!(
        (end["status"].as_str(), end["usage"]["input_tokens"].as_u64()),
        (Some("BUDGET_EXHAUSTED"), Some(1200))
    );
}

#[test]
fn unknown_tools_and_missing_arguments_are_told_to_the_model() {
    let home = AgentTestHome::new(script([
        ScriptedAnswer::call("fly", json!({}))
            .then_call("note", json!({}))
            .then_call("session_end", json!({})),
        ScriptedAnswer::say("sorry"),
    ]));
    assert_eq!(home.run(&["--message", "go"]).expect(0).stdout, "sorry\n");
    let seen = results(&home.model.requests().pop().unwrap());
    assert!(seen[0].contains("there is no tool fly; the tools are note, look"), "{seen:#?}");
    assert!(seen[1].contains("text"), "{seen:#?}");
    assert!(seen[2].contains("session_id"), "{seen:#?}");
    home.assert_message_order();
}

#[test]
fn a_model_that_refuses_the_key_fails_the_run_with_the_reason() {
    let home = AgentTestHome::new(ModelScript::new().require_key("other"));
    let failed = home.run(&["--message", "go"]);
    failed.expect(1);
    assert!(failed.stderr.contains("401"), "{}", failed.stderr);
    assert_eq!(home.events("RUN_END")[0]["status"], "FAILED");
    home.model.set_script(ModelScript::new().with_default(ScriptedAnswer::say("in")));
    assert_eq!(home.run(&["--message", "go"]).expect(0).stdout, "in\n");
}

#[test]
fn old_observations_make_room_when_the_window_is_full() {
    let long = "x".repeat(6000);
    let note = ScriptedAnswer::call("note", json!({ "text": long }));
    let model = script(std::iter::repeat_n(note, 12)).with_default(ScriptedAnswer::say("done"));
    let home = AgentTestHome::new(model);
    home.configure("  max_retries: 1", "  max_retries: 1\n  context_tokens: 12000");
    home.run(&["--message", "go"]).expect(0);
    let longest = home.model.requests().iter().map(|request| request.raw.to_string().len()).max().unwrap();
    assert!(longest < 12_000 * 4, "{longest}");
    home.assert_message_order();
}

/// A tool that prints a given number of bytes.
const DUMP_TOOL: &str = r#"
  - name: dump
    description: Prints many bytes.
    command: [sh, -c, 'head -c "$1" /dev/zero | tr "\\0" x', dump]
    parameters:
      - { name: bytes, type: integer, description: How many., inject_as: argument }
"#;

fn dump(calls: usize, bytes: u64) -> ScriptedAnswer {
    let arguments = json!({ "bytes": bytes });
    (1..calls).fold(ScriptedAnswer::call("dump", arguments.clone()), |answer, _| {
        answer.then_call("dump", arguments.clone())
    })
}

/// Adds a rule that refuses requests longer than `most` bytes.
fn limit_request_bytes(script: ModelScript, max_bytes: usize) -> ModelScript {
    let body = r#"{"error":{"code":"context_length_exceeded","message":"maximum context length exceeded"}}"#;
    script.when(move |request| request.raw.to_string().len() > max_bytes, ScriptedAnswer::raw(400, body))
}

#[test]
fn one_large_batch_is_shortened_and_the_run_continues() {
    for (calls, bytes, context) in [(4, 16_000, 8_000), (1, 16_000, 2_600), (30, 5_000, 4_000)] {
        let answers = script([dump(calls, bytes), ScriptedAnswer::say("done")]);
        let home = AgentTestHome::with(limit_request_bytes(answers, context * 4), DUMP_TOOL);
        home.configure("  max_retries: 1", &format!("  max_retries: 1\n  context_tokens: {context}"));
        assert_eq!(home.run(&["--message", "go"]).expect(0).stdout, "done\n");
        let seen = results(&home.model.requests().pop().unwrap());
        let last = seen.last().unwrap();
        assert!(
            last.contains("are in .abide/executions/act_") || last.contains("is in .abide/executions/act_"),
            "{last}"
        );
        let outputs = std::fs::read_dir(home.state().join("executions")).unwrap().count();
        assert_eq!(outputs, calls);
        home.assert_message_order();
    }
}

#[test]
fn a_run_that_failed_for_its_length_says_what_to_change_and_continues_when_it_fits() {
    let too_long =
        r#"{"error":{"code":"context_length_exceeded","message":"maximum context length exceeded"}}"#;
    let home = AgentTestHome::with(
        script([dump(4, 16_000)]).with_default(ScriptedAnswer::raw(400, too_long)),
        DUMP_TOOL,
    );
    home.configure("  max_retries: 1", "  max_retries: 1\n  context_tokens: 8000");
    let failed = home.run(&["--message", "go"]);
    failed.expect(1);
    for part in
        ["maximum context length exceeded", "system_prompt.md", "model.context_tokens: 8000", "larger window"]
    {
        assert!(failed.stderr.contains(part), "{}", failed.stderr);
    }
    home.model.set_script(limit_request_bytes(script([ScriptedAnswer::say("done")]), 32_000));
    assert_eq!(home.run(&["--message", "go"]).expect(0).stdout, "done\n");
}

#[test]
fn arguments_of_any_depth_leave_a_journal_that_can_be_read() {
    for depth in [63, 64, 126, 127, 128, 1_000, 100_000] {
        let nested = format!("{}1{}", "[".repeat(depth - 1), "]".repeat(depth - 1));
        let text = format!(r#"{{"text":{nested}}}"#);
        // As a string, and as an object, which some servers send.
        for arguments in [json!(text).to_string(), text.clone()] {
            let call = format!(
                r#"{{"id":"c1","type":"function","function":{{"name":"note","arguments":{arguments}}}}}"#
            );
            let message =
                format!(r#"{{"role":"assistant","content":"{}","tool_calls":[{call}]}}"#, "[{".repeat(200));
            let body =
                format!(r#"{{"choices":[{{"index":0,"message":{message},"finish_reason":"tool_calls"}}]}}"#);
            let ask = ScriptedAnswer::call("ask_human", json!({ "question": "?" }));
            let home = AgentTestHome::new(script([
                ScriptedAnswer::raw(200, body),
                ask,
                ScriptedAnswer::say("done"),
            ]));
            home.run(&["--message", "go"]).expect(101);
            let seen = results(&home.model.requests().pop().unwrap());
            let expected = if depth <= 64 { "text" } else { "nested more than 64 levels deep" };
            assert!(seen[0].contains(expected), "{depth}: {seen:?}");
            assert_eq!(home.run(&["--answer", "yes"]).expect(0).stdout, "done\n");
            home.abide(&["agent", "show"]).expect(0);
            home.assert_message_order();
        }
    }
}

#[test]
fn an_answer_truncated_by_the_model_is_printed_completely() {
    let parts = ["Once upon ", "a time there", " was a model", "."];
    let cut = |text: &str| ScriptedAnswer::say(text).with_finish_reason("length");
    let gate = TestGate::new();
    let home = AgentTestHome::new(script([
        cut("This is not part of it."),
        ScriptedAnswer::call("note", json!({ "text": "x" })),
        cut(parts[0]),
        cut(parts[1]),
        ScriptedAnswer::say("lost").held_by(&gate),
    ]));
    let mut child = home.start(&["--message", "go"]);
    gate.wait_reached();
    child.kill().unwrap();
    child.wait().unwrap();
    gate.open();
    // A failure between two parts of an answer is handled too.
    home.model.set_script(script([cut(parts[2]), ScriptedAnswer::status(400, "no")]));
    home.run(&["--message", "go"]).expect(1);
    home.model.set_script(script([ScriptedAnswer::say(parts[3])]));
    let whole = parts.concat();
    assert_eq!(home.run(&["--message", "go"]).expect(0).stdout, format!("{whole}\n"));
    assert_eq!(home.run(&["--message", "go"]).expect(0).stdout, format!("{whole}\n"));
    assert_eq!(home.events("RUN_END").pop().unwrap()["answer"], whole.as_str());
    // The next message gets a separate answer.
    home.model.set_script(script([ScriptedAnswer::say("Yes.")]));
    assert_eq!(home.run(&["--message", "really?"]).expect(0).stdout, "Yes.\n");
}
