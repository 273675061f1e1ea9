//! From `abide agent init` to an answer without editing any file, as in the guide; and the messages for mistakes.

use std::{fs, path::Path, process::Stdio};

use abide_testkit::{
    daemon::TestCommandOutput,
    environment,
    model::{ModelScript, ModelServer, ScriptedAnswer},
};
use serde_json::{Value, json};

use crate::harness::{AgentTestHome, results, script, shell};

/// Runs the real binary in a folder, with a model at this address.
fn abide(folder: &Path, model: &str, words: &[&str]) -> TestCommandOutput {
    let mut command = environment::abide(env!("CARGO_BIN_EXE_abide"));
    command.args(words).current_dir(folder).stdin(Stdio::null()).env("ABIDE_HOME", folder.join("home"));
    command.env("ABIDE_MODEL_BASE_URL", model).env("ABIDE_MODEL", "stub");
    command.env_remove("OPENAI_API_KEY");
    TestCommandOutput::of(command)
}

#[test]
fn the_example_works_as_it_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let model = ModelServer::start(
        script([
            shell("cd / && pwd")
                .then_call("write_file", json!({ "path": "a/b.txt", "content": "one\ntwo $1\n" })),
            shell("pwd; echo $((6 * 7))").then_call("read_file", json!({ "path": "a/b.txt" })),
            ScriptedAnswer::call("search", json!({ "pattern": "t(w)o", "folder": "a", "max_count": 1 })),
            ScriptedAnswer::call("ask_human", json!({ "question": "Which version is it?" })),
            ScriptedAnswer::say("All is well."),
        ])
        .require_message_order(),
    );
    let base = model.url("");
    let init = abide(folder.path(), &base, &["agent", "init", "my-agent"]);
    assert_eq!(
        init.expect(0).stdout,
        "my-agent/config.yaml\nmy-agent/system_prompt.md\nmy-agent/config.schema.json\n"
    );
    let run = |words: &[&str]| {
        abide(folder.path(), &base, &[&["agent", "run", "--agent", "my-agent"], words].concat())
    };
    assert!(run(&["--message", "Release it"]).expect(101).stderr.contains("Which version is it?"));
    assert_eq!(run(&["--answer", "1.2.0"]).expect(0).stdout.trim_end(), "All is well.");
    let request = model.requests().pop().unwrap();
    let results = results(&request);
    assert!(
        results[0].contains("Session started with session_id: shell_") && results[0].contains('/'),
        "{results:?}"
    );
    assert!(results[2].starts_with("/\n42"), "{results:?}");
    assert!(results[3].contains("two $1"), "{results:?}");
    assert!(results[4].contains("a/b.txt:2:two $1"), "{results:?}");
    assert!(results[5].contains("1.2.0"), "{results:?}");
    assert_eq!(request.key, None);
    assert!(request.system.contains("careful software engineer"));
    assert_eq!(model.faults(), [""; 0]);
}

#[test]
fn init_overwrites_nothing() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.yaml"), "mine").unwrap();
    let init = abide(folder.path(), "http://127.0.0.1:1", &["agent", "init"]);
    assert!(
        init.expect(1).stderr.contains("config.yaml already exists, and nothing is overwritten"),
        "{init:?}"
    );
    assert_eq!(fs::read_to_string(folder.path().join("config.yaml")).unwrap(), "mine");
    assert!(!folder.path().join("system_prompt.md").exists());
    let init = abide(folder.path(), "http://127.0.0.1:1", &["agent", "init", "new", "--json"]);
    let output: Value = serde_json::from_str(&init.expect(0).stdout).unwrap();
    assert_eq!(output["files"][1], "new/system_prompt.md");
}

#[test]
fn mistakes_are_told_with_their_place_and_leave_no_trace() {
    let folder = tempfile::tempdir().unwrap();
    abide(folder.path(), "http://127.0.0.1:1", &["agent", "init", "my-agent"]).expect(0);
    let config = folder.path().join("my-agent/config.yaml");
    let text = fs::read_to_string(&config).unwrap().replace("    stateful: true\n", "    statefull: true\n");
    let line = text.lines().position(|line| line.contains("statefull:")).unwrap() + 1;
    fs::write(&config, text).unwrap();
    let words = ["agent", "run", "--agent", "my-agent", "--message", "go"];
    let run = abide(folder.path(), "http://127.0.0.1:1", &words);
    let expected =
        format!("my-agent/config.yaml:{line}:5: unknown key statefull in tools[0]; did you mean stateful?");
    assert!(run.expect(2).stderr.contains(&expected), "{run:?}");
    assert!(!folder.path().join(".abide").exists());
}

#[test]
fn an_unreachable_model_is_reported_and_the_same_command_continues() {
    let folder = tempfile::tempdir().unwrap();
    let model = ModelServer::start(ModelScript::new().then(ScriptedAnswer::say("late, and well")));
    let (base, port) = (model.url("/v1/"), model.port());
    abide(folder.path(), &base, &["agent", "init", "my-agent"]).expect(0);
    let config = folder.path().join("my-agent/config.yaml");
    let text = fs::read_to_string(&config).unwrap().replace("max_retries: 6", "max_retries: 0");
    fs::write(&config, text).unwrap();
    drop(model);
    let words = ["agent", "run", "--agent", "my-agent", "--message", "go"];
    let run = abide(folder.path(), &base, &words);
    assert!(
        run.expect(1).stderr.contains("Connection refused (os error 111); run the same command again"),
        "{run:?}"
    );
    let _server = ModelServer::start_on(port, ModelScript::new().then(ScriptedAnswer::say("late, and well")));
    assert_eq!(abide(folder.path(), &base, &words).expect(0).stdout.trim_end(), "late, and well");
}

#[test]
fn no_tool_gets_the_model_api_key() {
    let shown = "import os; print(' '.join(sorted(name for name in os.environ if name.startswith('T_'))))";
    let home = AgentTestHome::new(ModelScript::new());
    home.configure("  name: loopback", "  name: loopback\n  api_key_env: T_KEY");
    let key = "sk-0123456789abcdef";
    fs::write(home.workdir().join("key.txt"), key).unwrap();
    let header = format!("Bearer {key}");
    for elsewhere in [true, false] {
        home.model.set_script(script([
            shell(
                "echo key: $T_KEY $T_COPY $T_HEADER $ABIDE_MODEL_API_KEY; env | grep -o '^T_[A-Z]*' | sort",
            ),
            ScriptedAnswer::call("python", json!({ "code": shown })),
            shell("cat key.txt"),
            ScriptedAnswer::say("done"),
        ]));
        let mut command = home.command(&["--message", if elsewhere { "go" } else { "again" }]);
        command.env("T_KEY", key).env("T_COPY", key).env("T_HEADER", &header).env("T_OTHER", "1");
        if elsewhere {
            // The same server under another URL: the key is not sent to it and not passed to tools.
            command.env("ABIDE_MODEL_BASE_URL", home.model.url("/v1/"));
        } else {
            command.env("ABIDE_MODEL_API_KEY", "sk-another-key-0123");
        }
        TestCommandOutput::of(command).expect(0);
        let last = home.model.requests().pop().unwrap();
        let expected = if elsewhere { None } else { Some("sk-another-key-0123") };
        assert_eq!(last.key.as_deref(), expected);
        let seen = results(&last);
        let seen = &seen[seen.len() - 3..];
        assert!(seen[0].contains("key:\nT_OTHER\n"), "{seen:#?}");
        assert!(
            seen[1].contains("T_OTHER") && !seen[1].contains("T_KEY") && !seen[1].contains("T_COPY"),
            "{seen:#?}"
        );
        assert!(seen[2].starts_with("***"), "{seen:#?}");
        let journal = fs::read_to_string(home.state().join("journal.jsonl")).unwrap();
        assert!(!journal.contains(key), "{journal}");
    }
}
