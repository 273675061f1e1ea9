//! `abide sessions` from the command line and in scripts.

use std::path::Path;
use std::process::Output;

use abide_testkit::environment;
use serde_json::{Value, json};

use crate::support::{RpcTestClient, home, home_processes};

pub(crate) fn abide(home: &Path, words: &[&str]) -> Output {
    environment::abide(env!("CARGO_BIN_EXE_abide")).args(words).env("ABIDE_HOME", home).output().unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

#[test]
fn a_session_for_people_outlives_every_command_and_no_runtime_takes_it() {
    let home = home();
    let home = home.path();
    let created = abide(home, &["sessions", "new", "--name", "build", "--shell", "bash", "--json"]);
    let created: Value = serde_json::from_slice(&created.stdout).unwrap();
    let id = created["session_id"].as_str().unwrap();
    assert_eq!(abide(home, &["sessions", "exec", id, "cd /usr; x=1"]).status.code(), Some(0));
    let ran = abide(home, &["sessions", "exec", "build", "pwd; echo $x; echo e >&2; (exit 7)"]);
    assert_eq!((text(&ran.stdout), text(&ran.stderr), ran.status.code()), ("/usr\n1\n", "e\n", Some(7)));
    let ran = abide(home, &["sessions", "exec", id, "--json", "echo $x"]);
    assert_eq!(serde_json::from_slice::<Value>(&ran.stdout).unwrap()["stdout"], "1\n");

    let mut rpc = RpcTestClient::start(home);
    assert_eq!(rpc.call_ok("session.list", json!({})), json!({ "sessions": [] }));
    assert_eq!(rpc.close(), Some(0));

    let listed = abide(home, &["sessions", "ls", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(
        (&listed["sessions"][0]["session_id"], &listed["sessions"][0]["state"]),
        (&json!(id), &json!("IDLE"))
    );
    assert_eq!(text(&abide(home, &["sessions", "rm", id]).stdout), format!("{id}\n"));
    assert!(home_processes(home).is_empty());
}

#[test]
fn control_characters_in_a_name_are_shown_and_not_obeyed() {
    let home = home();
    let home = home.path();
    let name = "red \u{1b}[31m\u{1b}]0;title\u{7}\u{9b}2J\nnext";
    let created = abide(home, &["sessions", "new", "--name", name, "--shell", "bash", "--json"]);
    let created: Value = serde_json::from_slice(&created.stdout).unwrap();
    let id = created["session_id"].as_str().unwrap();
    let listed = abide(home, &["sessions", "ls"]);
    let listed = text(&listed.stdout);
    assert!(!listed.chars().any(|c| c.is_control() && c != '\n'), "{listed:?}");
    assert_eq!(listed.lines().count(), 2, "{listed:?}");
    assert!(listed.contains("red ␛[31m"), "{listed:?}");
    let missing = abide(home, &["sessions", "exec", "no\u{1b}[31m", "true"]);
    assert!(!text(&missing.stderr).contains('\u{1b}'), "{:?}", text(&missing.stderr));
    assert_eq!(abide(home, &["sessions", "rm", id]).status.code(), Some(0));
}

#[test]
fn mistakes_have_their_exit_codes_and_a_way_on() {
    let home = home();
    let home = home.path();
    let missing = abide(home, &["sessions", "exec", "s-000000", "true"]);
    assert_eq!((missing.status.code(), text(&missing.stdout)), (Some(1), ""));
    assert!(text(&missing.stderr).contains("abide sessions ls"), "{}", text(&missing.stderr));
    assert_eq!(abide(home, &["sessions", "new", "--shell", "/no/such/shell"]).status.code(), Some(1));
    assert_eq!(abide(home, &["sessions", "frobnicate"]).status.code(), Some(2));
    assert_eq!(abide(home, &[]).status.code(), Some(2));
    let help = abide(home, &["sessions", "--help"]);
    assert!(help.status.success() && text(&help.stdout).contains("Examples:"));
}
