//! Invalid definitions, failing tools and invalid calls.

use std::fs;

use abide_testkit::model::{ModelScript, ScriptedAnswer};
use serde_json::json;

use super::harness::{AgentTestHome, results, script};

/// Creates a home with an additional tool.
fn home_with_tool(model: ModelScript, tool: &str) -> AgentTestHome {
    let home = AgentTestHome::new(model);
    let path = home.workdir().with_file_name("agent").join("config.yaml");
    let config = fs::read_to_string(&path).unwrap();
    fs::write(&path, config.replacen("tools:\n", &format!("tools:\n{tool}"), 1)).unwrap();
    home
}

#[test]
fn a_mistake_in_the_definition_is_told_with_its_place_and_nothing_is_begun() {
    let home = AgentTestHome::new(ModelScript::new());
    let path = home.workdir().with_file_name("agent").join("config.yaml");
    let config = fs::read_to_string(&path).unwrap();
    fs::write(&path, config.replacen("stateful", "statefull", 1)).unwrap();
    let refused = home.run(&["--message", "go"]);
    refused.expect(2);
    assert!(
        refused.stderr.contains("config.yaml:") && refused.stderr.contains("stateful"),
        "{}",
        refused.stderr
    );
    assert!(!home.state().exists());
}

#[test]
fn a_program_that_is_not_there_is_told_to_the_model_and_the_run_continues() {
    let tool = "  - { name: gone, description: Is not there., command: [no-such-program-anywhere] }\n";
    let home =
        home_with_tool(script([ScriptedAnswer::call("gone", json!({})), ScriptedAnswer::say("well")]), tool);
    assert_eq!(home.run(&["--message", "go"]).expect(0).stdout, "well\n");
    let seen = results(&home.model.requests().pop().unwrap());
    assert!(seen[0].contains("no-such-program-anywhere"), "{seen:#?}");
}

#[test]
fn a_tool_without_end_is_stopped_in_its_time_and_one_that_prints_without_end_is_bounded() {
    let tools = "  - { name: late, description: Never ends., command: [sh, -c, 'echo early; sleep 1000'], timeout_sec: 1 }\n  \
                 - { name: flood, description: Prints much., command: [sh, -c, 'yes | head -c 50000000'] }\n";
    let batch = ScriptedAnswer::call("late", json!({})).then_call("flood", json!({}));
    let home = home_with_tool(script([batch, ScriptedAnswer::say("well")]), tools);
    home.run(&["--message", "go"]).expect(0);
    let last = home.model.requests().pop().unwrap();
    let seen = results(&last);
    assert!(seen[0].contains("early") && seen[0].contains("longer than 1 s"), "{seen:#?}");
    assert!(seen[1].len() < 20_000 && seen[1].contains(".abide/executions/"), "{}", seen[1].len());
    let of = |index: usize| home.events("ACTION_RESULT")[index]["execution_ref"].as_str().unwrap().to_owned();
    assert_eq!(fs::metadata(home.state().join(of(1)).join("stdout")).unwrap().len(), 50_000_000);
    assert_eq!(home.events("ACTION_RESULT")[0]["status"], "timed_out");
}

#[test]
fn arguments_that_are_no_json_are_told_to_the_model_and_sent_back_as_such_that_pass() {
    let home = AgentTestHome::new(script([
        ScriptedAnswer::call("note", json!("{\"text\": \"x")),
        ScriptedAnswer::say("sorry"),
    ]));
    assert_eq!(home.run(&["--message", "go"]).expect(0).stdout, "sorry\n");
    let seen = results(&home.model.requests().pop().unwrap());
    assert!(seen[0].contains("the arguments are not a JSON object"), "{seen:#?}");
    assert_eq!(home.events("ACTION_REQUEST")[0]["tool_args_raw"], "{\"text\": \"x");
    home.assert_message_order();
}

#[test]
fn an_example_is_written_that_works_and_nothing_is_overwritten() {
    let home = AgentTestHome::new(ModelScript::new().with_default(ScriptedAnswer::say("hello")));
    let folder = home.workdir().with_file_name("example");
    let init = || home.abide(&["agent", "init", folder.to_str().unwrap()]);
    init().expect(0);
    let model = home.model.url("/v1");
    let words = ["agent", "run", "--agent", folder.to_str().unwrap(), "--message", "hi"];
    let env = [("ABIDE_MODEL_BASE_URL", model.as_str()), ("ABIDE_MODEL", "m"), ("ABIDE_MODEL_API_KEY", "k")];
    assert_eq!(home.abide_with(&words, &env).expect(0).stdout, "hello\n");
    init().expect(1);
    let shown = home.abide(&["agent", "show"]);
    assert!(shown.expect(0).stdout.contains("hello"), "{}", shown.stdout);
    home.abide(&["agent", "show", "--state", "nowhere"]).expect(1);
}

#[test]
fn abides_own_folders_are_no_working_directories_and_nothing_is_made_there() {
    let test_home = AgentTestHome::new(ModelScript::new().with_default(ScriptedAnswer::say("hello")));
    let (home, link) = (test_home.home(), test_home.workdir().join("link"));
    fs::create_dir_all(home.join("keepers/runs")).unwrap();
    std::os::unix::fs::symlink(home.join("keepers"), &link).unwrap();
    let agent = test_home.workdir().with_file_name("agent");
    for workdir in [home.clone(), home.join("keepers/runs"), link] {
        let words = ["agent", "run", "--agent", agent.to_str().unwrap(), "--isolation", "off"];
        let words =
            [&words[..], &["--workdir", workdir.to_str().unwrap(), "--message", "hi", "--json"]].concat();
        let refused = test_home.abide(&words);
        refused.expect(2);
        let output = format!("{}{}", refused.stdout, refused.stderr);
        assert!(
            output.contains("WORKSPACE_UNUSABLE") && output.contains("one of its own folders"),
            "{output}"
        );
        assert!(!workdir.join(".abide").exists());
    }
    assert_eq!(test_home.model.requests().len(), 0);
}

/// The daemon records the folder of its database, because its settings are not passed to the agent.
#[test]
fn the_folder_of_the_database_is_no_working_directory() {
    let test_home = AgentTestHome::new(ModelScript::new().with_default(ScriptedAnswer::say("hello")));
    fs::create_dir_all(test_home.home()).unwrap();
    let record = serde_json::json!([test_home.workdir()]).to_string();
    fs::write(test_home.home().join("store-folders.json"), record).unwrap();
    let agent = test_home.workdir().with_file_name("agent");
    let words = ["agent", "run", "--agent", agent.to_str().unwrap(), "--isolation", "off", "--message", "hi"];
    let refused = test_home.abide(&[&words[..], &["--json"]].concat());
    refused.expect(2);
    let output = format!("{}{}", refused.stdout, refused.stderr);
    assert!(output.contains("WORKSPACE_UNUSABLE") && output.contains("database"), "{output}");
    assert_eq!(test_home.model.requests().len(), 0);
}
