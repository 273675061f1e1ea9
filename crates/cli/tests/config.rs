//! `abide config` from the command line. The precedence of values is tested in the configuration module.

use std::fs;

use abide_testkit::{
    daemon::{TestCommandOutput, TestHome},
    environment,
};
use serde_json::{Value, json};

fn abide(home: &TestHome, arguments: &[&str], env: &[(&str, &str)]) -> TestCommandOutput {
    let mut command = home.command();
    command.args(arguments).envs(env.iter().copied());
    TestCommandOutput::of(command)
}

fn home(config: &str) -> TestHome {
    let home = TestHome::new(env!("CARGO_BIN_EXE_abide"));
    fs::write(home.path().join("config.toml"), config).expect("the home can be written");
    home
}

#[test]
fn every_value_is_shown_with_its_origin_and_without_secrets() {
    let home = home("store = 'postgres://ann:s3cret@host/db'\n[engines.codex]\nenv = { TOKEN = 's3cret' }\n");
    let env = [("ABIDE_SLOTS_MAX_RUNNING", "3")];
    let shown = abide(&home, &["config", "show", "--set", "terminal.shell=zsh"], &env);
    let table = &shown.stdout;
    assert!(shown.code == Some(0) && !table.contains("s3cret"), "{table}");
    let line = |key: &str| {
        let line = table.lines().find(|line| line.split_whitespace().next() == Some(key)).unwrap_or_default();
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line("store"), r#"store config.toml:1 "postgres://ann:***@host/db""#);
    assert_eq!(line("engines.codex.env"), r#"engines.codex.env config.toml:3 {"TOKEN":"***"}"#);
    assert_eq!(line("slots.max_running"), "slots.max_running ABIDE_SLOTS_MAX_RUNNING 3");
    assert_eq!(line("terminal.shell"), r#"terminal.shell --set terminal.shell "zsh""#);
    assert_eq!(line("listen"), r#"listen default "127.0.0.1:4870""#);

    let shown = abide(&home, &["config", "show", "--json"], &env);
    let shown: Value = serde_json::from_str(&shown.stdout).unwrap();
    let value = |key: &str| {
        shown["values"].as_array().unwrap().iter().find(|value| value["key"] == key).cloned().unwrap()
    };
    let origin = json!({ "kind": "environment", "variable": "ABIDE_SLOTS_MAX_RUNNING" });
    assert_eq!(
        value("slots.max_running"),
        json!({ "key": "slots.max_running", "value": 3, "origin": origin })
    );
    assert_eq!(value("store")["origin"]["line"], 1);
    assert_eq!(value("engines.codex.env")["value"], json!({ "TOKEN": "***" }));
}

#[test]
fn all_problems_are_reported_and_dependent_commands_fail() {
    let home = home("[slots]\nmax_runing = 3\n");
    let path = home.path().join("config.toml");
    let expected = format!(
        "{}:2:1: unknown key slots.max_runing; did you mean slots.max_running?\n\
         ABIDE_TERMINAL_IDLE_MS: expected a whole number from 0 up\n",
        path.display()
    );
    let env = [("ABIDE_TERMINAL_IDLE_MS", "soon")];
    let checked = abide(&home, &["config", "check"], &env);
    assert_eq!((checked.code, checked.stderr), (Some(1), expected));
    let checked = abide(&home, &["config", "check", "--json"], &env);
    let report: Value = serde_json::from_str(&checked.stdout).unwrap();
    assert_eq!((checked.code, &report["ok"]), (Some(1), &json!(false)));
    assert_eq!(report["problems"][0]["suggestion"], "slots.max_running");
    assert_eq!(report["problems"][0]["origin"]["line"], 2);
    assert_eq!(report["problems"].as_array().unwrap().len(), 2);
    for command in [&["rpc"][..], &["mcp"], &["sessions", "new"], &["config", "show"]] {
        let refused = abide(&home, command, &[]);
        assert_eq!(refused.code, Some(1), "{command:?}");
        assert!(refused.stderr.contains("unknown key slots.max_runing"), "{command:?}");
    }
    assert_eq!(abide(&home, &["config", "check", "--set", "nonsense"], &[]).code, Some(2));
}

#[test]
fn a_configuration_that_is_right_or_not_there_is_ok() {
    let home = home("[terminal]\nshell = '/bin/sh'\n");
    let checked = abide(&home, &["config", "check"], &[]);
    let path = home.path().join("config.toml");
    assert_eq!((checked.code, checked.stdout), (Some(0), format!("ok: {}\n", path.display())));
    fs::remove_file(path).unwrap();
    assert!(abide(&home, &["config", "check"], &[]).code == Some(0));
}

#[test]
fn settings_of_the_shell_do_not_reach_the_binary_under_test() {
    environment::assert_not_inherited_by(&["a_configuration_that_is_right_or_not_there_is_ok"]);
}
