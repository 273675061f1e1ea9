//! `abide sessions` from the command line and in scripts.

use abide_testkit::daemon::RpcTestClient;
use serde_json::{Value, json};

use crate::support::home;

#[test]
fn a_session_for_people_outlives_every_command_and_no_runtime_takes_it() {
    let home = home();
    let created = home.run(&["sessions", "new", "--name", "build", "--shell", "bash", "--json"]);
    let created: Value = serde_json::from_str(&created.stdout).unwrap();
    let id = created["session_id"].as_str().unwrap();
    assert_eq!(home.run(&["sessions", "exec", id, "cd /usr; x=1"]).code, Some(0));
    let ran = home.run(&["sessions", "exec", "build", "pwd; echo $x; echo e >&2; (exit 7)"]);
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str(), ran.code), ("/usr\n1\n", "e\n", Some(7)));
    let ran = home.run(&["sessions", "exec", id, "--json", "echo $x"]);
    assert_eq!(serde_json::from_str::<Value>(&ran.stdout).unwrap()["stdout"], "1\n");

    let mut rpc = RpcTestClient::start(&home);
    assert_eq!(rpc.call_ok("session.list", json!({})), json!({ "sessions": [] }));
    assert_eq!(rpc.close(), Some(0));

    let listed = home.run(&["sessions", "ls", "--json"]);
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    assert_eq!(
        (&listed["sessions"][0]["session_id"], &listed["sessions"][0]["state"]),
        (&json!(id), &json!("IDLE"))
    );
    assert_eq!(home.run_ok(&["sessions", "rm", id]), format!("{id}\n"));
    assert!(home.processes().is_empty());
}

#[test]
fn control_characters_in_a_name_are_shown_and_not_obeyed() {
    let home = home();
    let name = "red \u{1b}[31m\u{1b}]0;title\u{7}\u{9b}2J\nnext";
    let created = home.run(&["sessions", "new", "--name", name, "--shell", "bash", "--json"]);
    let created: Value = serde_json::from_str(&created.stdout).unwrap();
    let id = created["session_id"].as_str().unwrap();
    let listed = home.run(&["sessions", "ls"]);
    let listed = &listed.stdout;
    assert!(!listed.chars().any(|c| c.is_control() && c != '\n'), "{listed:?}");
    assert_eq!(listed.lines().count(), 2, "{listed:?}");
    assert!(listed.contains("red ␛[31m"), "{listed:?}");
    let missing = home.run(&["sessions", "exec", "no\u{1b}[31m", "true"]);
    assert!(!missing.stderr.contains('\u{1b}'), "{:?}", missing.stderr);
    assert_eq!(home.run(&["sessions", "rm", id]).code, Some(0));
}

#[test]
fn mistakes_have_their_exit_codes_and_a_way_on() {
    let home = home();
    let missing = home.run(&["sessions", "exec", "s-000000", "true"]);
    assert_eq!((missing.code, missing.stdout.as_str()), (Some(1), ""));
    assert!(missing.stderr.contains("abide sessions ls"), "{}", missing.stderr);
    assert_eq!(home.run(&["sessions", "new", "--shell", "/no/such/shell"]).code, Some(1));
    assert_eq!(home.run(&["sessions", "frobnicate"]).code, Some(2));
    assert_eq!(home.run::<&str>(&[]).code, Some(2));
    let help = home.run(&["sessions", "--help"]);
    assert!(help.code == Some(0) && help.stdout.contains("Examples:"));
}
