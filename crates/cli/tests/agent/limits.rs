//! Limits of the agent, and errors of models.

use abide_testkit::model::{ModelScript, ScriptedAnswer, TestGate};
use serde_json::json;

use super::stage::{AgentTestHome, results, script};

#[test]
fn a_used_up_budget_is_no_success_and_the_same_command_goes_on() {
    let note = |text: &str| ScriptedAnswer::call("note", json!({ "text": text }));
    let stage = AgentTestHome::new(script([note("a"), note("b"), note("c"), ScriptedAnswer::say("done")]));
    let words = ["--message", "go", "--max-iterations", "2"];
    let exhausted = stage.run(&words);
    exhausted.expect(1);
    assert!(exhausted.stderr.contains("2 iterations are used up"), "{}", exhausted.stderr);
    assert_eq!(stage.events("RUN_END")[0]["status"], "BUDGET_EXHAUSTED");
    assert_eq!(stage.run(&words).expect(0).stdout, "done\n");
    assert_eq!(stage.events("USER_MESSAGE").len(), 1);
}

#[test]
fn a_budget_of_tokens_holds() {
    let note = ScriptedAnswer::call("note", json!({ "text": "x" })).costing(600, 10);
    let model = ModelScript::new().otherwise(note);
    let stage = AgentTestHome::with(model, "limits:\n  max_total_tokens: 1000\n");
    stage.run(&["--message", "go"]).expect(1);
    assert_eq!(stage.model.heard().len(), 2);
    let end = stage.events("RUN_END").remove(0);
    assert_eq!(
        (end["status"].as_str(), end["usage"]["input_tokens"].as_u64()),
        (Some("BUDGET_EXHAUSTED"), Some(1200))
    );
}

#[test]
fn unknown_tools_and_missing_arguments_are_told_to_the_model() {
    let stage = AgentTestHome::new(script([
        ScriptedAnswer::call("fly", json!({}))
            .then_call("note", json!({}))
            .then_call("session_end", json!({})),
        ScriptedAnswer::say("sorry"),
    ]));
    assert_eq!(stage.run(&["--message", "go"]).expect(0).stdout, "sorry\n");
    let seen = results(&stage.model.heard().pop().unwrap());
    assert!(seen[0].contains("there is no tool fly; the tools are note, look"), "{seen:#?}");
    assert!(seen[1].contains("text"), "{seen:#?}");
    assert!(seen[2].contains("session_id"), "{seen:#?}");
    stage.assert_in_order();
}

#[test]
fn a_model_that_refuses_the_key_fails_the_run_with_the_reason() {
    let stage = AgentTestHome::new(ModelScript::new().demand_key("other"));
    let failed = stage.run(&["--message", "go"]);
    failed.expect(1);
    assert!(failed.stderr.contains("401"), "{}", failed.stderr);
    assert_eq!(stage.events("RUN_END")[0]["status"], "FAILED");
    stage.model.follow(ModelScript::new().otherwise(ScriptedAnswer::say("in")));
    assert_eq!(stage.run(&["--message", "go"]).expect(0).stdout, "in\n");
}

#[test]
fn old_observations_make_room_when_the_window_is_full() {
    let long = "x".repeat(6000);
    let note = ScriptedAnswer::call("note", json!({ "text": long }));
    let model = script(std::iter::repeat_n(note, 12)).otherwise(ScriptedAnswer::say("done"));
    let stage = AgentTestHome::new(model);
    stage.configure("  max_retries: 1", "  max_retries: 1\n  context_tokens: 12000");
    stage.run(&["--message", "go"]).expect(0);
    let longest = stage.model.heard().iter().map(|heard| heard.raw.to_string().len()).max().unwrap();
    assert!(longest < 12_000 * 4, "{longest}");
    stage.assert_in_order();
}

/// A tool that prints a given number of bytes.
const DUMP: &str = r#"
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
fn narrow(script: ModelScript, most: usize) -> ModelScript {
    let body = r#"{"error":{"code":"context_length_exceeded","message":"maximum context length exceeded"}}"#;
    script.when(move |heard| heard.raw.to_string().len() > most, ScriptedAnswer::raw(400, body))
}

#[test]
fn one_large_batch_is_shortened_and_the_run_goes_on() {
    for (calls, bytes, context) in [(4, 16_000, 8_000), (1, 16_000, 2_600), (30, 5_000, 4_000)] {
        let answers = script([dump(calls, bytes), ScriptedAnswer::say("done")]);
        let stage = AgentTestHome::with(narrow(answers, context * 4), DUMP);
        stage.configure("  max_retries: 1", &format!("  max_retries: 1\n  context_tokens: {context}"));
        assert_eq!(stage.run(&["--message", "go"]).expect(0).stdout, "done\n");
        let seen = results(&stage.model.heard().pop().unwrap());
        let last = seen.last().unwrap();
        assert!(
            last.contains("are in .abide/executions/act_") || last.contains("is in .abide/executions/act_"),
            "{last}"
        );
        let outputs = std::fs::read_dir(stage.state().join("executions")).unwrap().count();
        assert_eq!(outputs, calls);
        stage.assert_in_order();
    }
}

#[test]
fn a_run_that_failed_for_its_length_says_what_to_change_and_goes_on_when_it_fits() {
    let too_long =
        r#"{"error":{"code":"context_length_exceeded","message":"maximum context length exceeded"}}"#;
    let stage =
        AgentTestHome::with(script([dump(4, 16_000)]).otherwise(ScriptedAnswer::raw(400, too_long)), DUMP);
    stage.configure("  max_retries: 1", "  max_retries: 1\n  context_tokens: 8000");
    let failed = stage.run(&["--message", "go"]);
    failed.expect(1);
    for part in
        ["maximum context length exceeded", "system_prompt.md", "model.context_tokens: 8000", "larger window"]
    {
        assert!(failed.stderr.contains(part), "{}", failed.stderr);
    }
    stage.model.follow(narrow(script([ScriptedAnswer::say("done")]), 32_000));
    assert_eq!(stage.run(&["--message", "go"]).expect(0).stdout, "done\n");
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
            let stage = AgentTestHome::new(script([
                ScriptedAnswer::raw(200, body),
                ask,
                ScriptedAnswer::say("done"),
            ]));
            stage.run(&["--message", "go"]).expect(101);
            let seen = results(&stage.model.heard().pop().unwrap());
            let expected = if depth <= 64 { "text" } else { "nested more than 64 levels deep" };
            assert!(seen[0].contains(expected), "{depth}: {seen:?}");
            assert_eq!(stage.run(&["--answer", "yes"]).expect(0).stdout, "done\n");
            stage.abide(&["agent", "show"]).expect(0);
            stage.assert_in_order();
        }
    }
}

#[test]
fn an_answer_that_was_cut_at_its_length_is_told_whole() {
    let parts = ["Once upon ", "a time there", " was a model", "."];
    let cut = |text: &str| ScriptedAnswer::say(text).finishing("length");
    let gate = TestGate::new();
    let stage = AgentTestHome::new(script([
        cut("This is not part of it."),
        ScriptedAnswer::call("note", json!({ "text": "x" })),
        cut(parts[0]),
        cut(parts[1]),
        ScriptedAnswer::say("lost").held(&gate),
    ]));
    let mut child = stage.start(&["--message", "go"]);
    gate.reached();
    child.kill().unwrap();
    child.wait().unwrap();
    gate.open();
    // A failure between two parts of an answer is handled too.
    stage.model.follow(script([cut(parts[2]), ScriptedAnswer::status(400, "no")]));
    stage.run(&["--message", "go"]).expect(1);
    stage.model.follow(script([ScriptedAnswer::say(parts[3])]));
    let whole = parts.concat();
    assert_eq!(stage.run(&["--message", "go"]).expect(0).stdout, format!("{whole}\n"));
    assert_eq!(stage.run(&["--message", "go"]).expect(0).stdout, format!("{whole}\n"));
    assert_eq!(stage.events("RUN_END").pop().unwrap()["answer"], whole.as_str());
    // The next message gets a separate answer.
    stage.model.follow(script([ScriptedAnswer::say("Yes.")]));
    assert_eq!(stage.run(&["--message", "really?"]).expect(0).stdout, "Yes.\n");
}
