//! Invalid definitions, failing tools and invalid calls.

use std::fs;

use abide_testkit::model::{ModelScript, ScriptedAnswer};
use serde_json::json;

use super::stage::{AgentTestHome, results, script};

/// Creates a home with an additional tool.
fn with_tool(model: ModelScript, tool: &str) -> AgentTestHome {
    let stage = AgentTestHome::new(model);
    let path = stage.work().with_file_name("agent").join("config.yaml");
    let config = fs::read_to_string(&path).unwrap();
    fs::write(&path, config.replacen("tools:\n", &format!("tools:\n{tool}"), 1)).unwrap();
    stage
}

#[test]
fn a_mistake_in_the_definition_is_told_with_its_place_and_nothing_is_begun() {
    let stage = AgentTestHome::new(ModelScript::new());
    let path = stage.work().with_file_name("agent").join("config.yaml");
    let config = fs::read_to_string(&path).unwrap();
    fs::write(&path, config.replacen("stateful", "statefull", 1)).unwrap();
    let refused = stage.run(&["--message", "go"]);
    refused.expect(2);
    assert!(
        refused.stderr.contains("config.yaml:") && refused.stderr.contains("stateful"),
        "{}",
        refused.stderr
    );
    assert!(!stage.state().exists());
}

#[test]
fn a_program_that_is_not_there_is_told_to_the_model_and_the_run_goes_on() {
    let tool = "  - { name: gone, description: Is not there., command: [no-such-program-anywhere] }\n";
    let stage =
        with_tool(script([ScriptedAnswer::call("gone", json!({})), ScriptedAnswer::say("well")]), tool);
    assert_eq!(stage.run(&["--message", "go"]).expect(0).stdout, "well\n");
    let seen = results(&stage.model.heard().pop().unwrap());
    assert!(seen[0].contains("no-such-program-anywhere"), "{seen:#?}");
}

#[test]
fn a_tool_without_end_is_stopped_in_its_time_and_one_that_prints_without_end_is_bounded() {
    let tools = "  - { name: late, description: Never ends., command: [sh, -c, 'echo early; sleep 1000'], timeout_sec: 1 }\n  \
                 - { name: flood, description: Prints much., command: [sh, -c, 'yes | head -c 50000000'] }\n";
    let batch = ScriptedAnswer::call("late", json!({})).then_call("flood", json!({}));
    let stage = with_tool(script([batch, ScriptedAnswer::say("well")]), tools);
    stage.run(&["--message", "go"]).expect(0);
    let last = stage.model.heard().pop().unwrap();
    let seen = results(&last);
    assert!(seen[0].contains("early") && seen[0].contains("longer than 1 s"), "{seen:#?}");
    assert!(seen[1].len() < 20_000 && seen[1].contains(".abide/executions/"), "{}", seen[1].len());
    let of =
        |index: usize| stage.events("ACTION_RESULT")[index]["execution_ref"].as_str().unwrap().to_owned();
    assert_eq!(fs::metadata(stage.state().join(of(1)).join("stdout")).unwrap().len(), 50_000_000);
    assert_eq!(stage.events("ACTION_RESULT")[0]["status"], "timed_out");
}

#[test]
fn arguments_that_are_no_json_are_told_to_the_model_and_sent_back_as_such_that_pass() {
    let stage = AgentTestHome::new(script([
        ScriptedAnswer::call("note", json!("{\"text\": \"x")),
        ScriptedAnswer::say("sorry"),
    ]));
    assert_eq!(stage.run(&["--message", "go"]).expect(0).stdout, "sorry\n");
    let seen = results(&stage.model.heard().pop().unwrap());
    assert!(seen[0].contains("the arguments are no JSON object"), "{seen:#?}");
    assert_eq!(stage.events("ACTION_REQUEST")[0]["tool_args_raw"], "{\"text\": \"x");
    stage.assert_in_order();
}

#[test]
fn an_example_is_written_that_works_and_nothing_is_overwritten() {
    let stage = AgentTestHome::new(ModelScript::new().otherwise(ScriptedAnswer::say("hello")));
    let folder = stage.work().with_file_name("example");
    let init = || stage.abide(&["agent", "init", folder.to_str().unwrap()]);
    init().expect(0);
    let model = stage.model.url("/v1");
    let words = ["agent", "run", "--agent", folder.to_str().unwrap(), "--message", "hi"];
    let env = [("ABIDE_MODEL_BASE_URL", model.as_str()), ("ABIDE_MODEL", "m"), ("ABIDE_MODEL_API_KEY", "k")];
    assert_eq!(stage.abide_with(&words, &env).expect(0).stdout, "hello\n");
    init().expect(1);
    let shown = stage.abide(&["agent", "show"]);
    assert!(shown.expect(0).stdout.contains("hello"), "{}", shown.stdout);
    stage.abide(&["agent", "show", "--state", "nowhere"]).expect(1);
}
