//! Budgets, and models that make mistakes.

use abide_testkit::model::{Answer, Script};
use serde_json::json;

use super::stage::{Stage, results, script};

#[test]
fn a_used_up_budget_is_no_success_and_the_same_command_goes_on() {
    let note = |text: &str| Answer::call("note", json!({ "text": text }));
    let stage = Stage::new(script([note("a"), note("b"), note("c"), Answer::say("done")]));
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
    let note = Answer::call("note", json!({ "text": "x" })).costing(600, 10);
    let model = Script::new().otherwise(note);
    let stage = Stage::with(model, "limits:\n  max_total_tokens: 1000\n");
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
    let stage = Stage::new(script([
        Answer::call("fly", json!({})).then_call("note", json!({})).then_call("session_end", json!({})),
        Answer::say("sorry"),
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
    let stage = Stage::new(Script::new().demand_key("other"));
    let failed = stage.run(&["--message", "go"]);
    failed.expect(1);
    assert!(failed.stderr.contains("401"), "{}", failed.stderr);
    assert_eq!(stage.events("RUN_END")[0]["status"], "FAILED");
    stage.model.follow(Script::new().otherwise(Answer::say("in")));
    assert_eq!(stage.run(&["--message", "go"]).expect(0).stdout, "in\n");
}

#[test]
fn old_observations_make_room_when_the_window_is_full() {
    let long = "x".repeat(6000);
    let note = Answer::call("note", json!({ "text": long }));
    let model = script(std::iter::repeat_n(note, 12)).otherwise(Answer::say("done"));
    let stage = Stage::new(model);
    let agent = stage.work().with_file_name("agent").join("config.yaml");
    let config = std::fs::read_to_string(&agent).unwrap();
    std::fs::write(&agent, config.replace("  max_retries: 1", "  max_retries: 1\n  context_tokens: 12000"))
        .unwrap();
    stage.run(&["--message", "go"]).expect(0);
    let longest = stage.model.heard().iter().map(|heard| heard.raw.to_string().len()).max().unwrap();
    assert!(longest < 12_000 * 4, "{longest}");
    stage.assert_in_order();
}
