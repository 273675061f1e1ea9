//! The daemon's lifecycle from the command line: started on demand, one per home, and stopped.

use std::{net::TcpListener, os::unix::fs::PermissionsExt, process::Stdio};

use abide_testkit::wait;
use serde_json::Value;

use crate::house::CommandTestHome;

#[test]
fn a_command_that_needs_a_daemon_starts_it_and_the_next_one_uses_it() {
    let home = CommandTestHome::new();
    let none = home.abide(&["status"]);
    assert_eq!((none.code, none.out.as_str()), (1, ""));
    assert!(none.err.contains("abide up --detach"), "{}", none.err);
    let first = home.abide(&["run", "parrot", "say hello"]);
    assert_eq!((first.code, first.out.as_str()), (0, "hello\n"), "{}", first.err);
    assert!(first.err.contains("started the daemon at http://127.0.0.1:"), "{}", first.err);
    let second = home.abide(&["ls"]);
    assert_eq!((second.code, second.err.as_str()), (0, ""));
    let status = home.json(&["status"]);
    assert_eq!((&status["ready"], &status["runs"]["succeeded"]), (&true.into(), &1.into()));
    let told = home.abide(&["status"]).out;
    assert!(told.contains("ready") && told.contains("1 succeeded"), "{told}");
}

#[test]
fn of_many_that_start_a_daemon_at_once_one_does_and_all_use_it() {
    let home = CommandTestHome::new();
    // Some start it explicitly, some implicitly.
    let ways: [&[&str]; 6] = [
        &["ls", "--json"],
        &["inbox", "--json"],
        &["ls", "--json"],
        &["inbox", "--json"],
        &["up", "--detach", "--json"],
        &["up", "--detach", "--json"],
    ];
    let children: Vec<_> = ways
        .iter()
        .map(|words| home.command(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
        .collect();
    let outputs: Vec<_> = children.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    assert!(outputs.iter().all(|output| output.status.success()), "{outputs:?}");
    let pids: Vec<Value> = outputs[4..]
        .iter()
        .map(|output| serde_json::from_slice::<Value>(&output.stdout).unwrap()["pid"].clone())
        .collect();
    assert_eq!(pids[0], pids[1]);
    assert_eq!(home.json(&["status"])["pid"], pids[0]);
}

#[test]
fn a_daemon_that_is_started_by_hand_at_the_same_moment_is_used() {
    let home = CommandTestHome::new();
    let mut by_hand = home.spawn_watched(&["up"]);
    let listed = home.abide(&["ls", "--json"]);
    assert_eq!((listed.code, listed.out.as_str()), (0, "[]\n"), "{}", listed.err);
    // The first of the two is the home's daemon.
    let pid = home.json(&["status"])["pid"].clone();
    if pid == by_hand.child.id() {
        by_hand.wait_for_line("http://127.0.0.1:");
    } else {
        assert_eq!(by_hand.wait_for_exit(), Some(1));
    }
}

#[test]
fn a_home_has_one_daemon() {
    let home = CommandTestHome::new();
    home.up();
    let again = home.abide(&["up"]);
    assert_eq!((again.code, again.out.as_str()), (1, ""));
    assert!(again.err.contains("is already running at http://127.0.0.1:"), "{}", again.err);
    let detached = home.abide(&["up", "--detach"]);
    assert_eq!(detached.code, 0);
    assert!(detached.out.starts_with("http://127.0.0.1:"), "{}", detached.out);
    assert!(detached.err.contains("a daemon is already running"), "{}", detached.err);
}

#[test]
fn a_daemon_that_cannot_start_says_why() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let home = CommandTestHome::with_config(&format!("listen = \"{}\"\n", taken.local_addr().unwrap()));
    let failed = home.abide(&["ls"]);
    assert_eq!((failed.code, failed.out.as_str()), (1, ""));
    for said in ["did not start", "cannot listen on", "--listen 127.0.0.1:0", "background.log"] {
        assert!(failed.err.contains(said), "{said}: {}", failed.err);
    }
    let failed = home.abide(&["ls", "--json"]);
    let told: Value = serde_json::from_str(&failed.err).unwrap();
    assert_eq!(told["code"], "DAEMON_FAILED");
}

#[test]
fn a_daemon_with_another_token_is_told_from_this_homes_own() {
    let home = CommandTestHome::new();
    home.up();
    let token = std::fs::read_to_string(home.path().join("token")).unwrap();
    std::fs::write(home.path().join("token"), "0".repeat(64)).unwrap();
    let refused = home.abide(&["ls"]);
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("another home"), "{}", refused.err);
    std::fs::write(home.path().join("token"), token).unwrap();
}

#[test]
fn a_daemon_of_another_version_is_mentioned_and_used() {
    let home = CommandTestHome::new();
    home.up();
    let path = home.path().join("daemon.json");
    let mut address: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    address["version"] = "0.0.1".into();
    std::fs::write(&path, address.to_string()).unwrap();
    let listed = home.abide(&["ls"]);
    assert_eq!(listed.code, 0);
    assert!(listed.err.contains("the daemon is version 0.0.1"), "{}", listed.err);
}

#[test]
fn down_ends_the_turn_at_work_and_its_run_waits_for_a_person() {
    let home = CommandTestHome::new();
    let mut run = home.spawn_watched(&["run", "parrot", "progress busy\nsleep 600\nsay never"]);
    run.wait_for_line("busy");
    let down = home.abide(&["down"]);
    assert_eq!(down.code, 0, "{}", down.err);
    assert!(down.out.starts_with("stopped; ended 1 turns"), "{}", down.out);
    assert_eq!(home.abide(&["status"]).code, 1);
    let again = home.abide(&["down"]);
    assert_eq!((again.code, again.out.as_str()), (0, ""));
    assert!(again.err.contains("no daemon is running"), "{}", again.err);
    assert_eq!(home.json(&["ls"])[0]["status"], "waiting_user");
}

#[test]
fn down_and_keep_leaves_the_turn_at_work_and_the_next_daemon_takes_it_up() {
    let home = CommandTestHome::new();
    let mut run = home.spawn_watched(&["run", "parrot", "progress busy\nsleep 1\nappend ran once\nsay done"]);
    run.wait_for_line("busy");
    let down = home.json(&["down", "--keep"]);
    assert_eq!(down["turns"].as_array().unwrap().len(), 0);
    assert_eq!(home.abide(&["status"]).code, 1);
    home.up();
    assert_eq!(run.wait_for_exit(), Some(0), "{:?}", run.err);
    assert_eq!(run.out, ["done"]);
    let shown = home.json(&["show", "last"]);
    assert_eq!(shown["turns"][0]["attempts"].as_array().unwrap().len(), 1);
}

#[test]
fn completions_are_there_for_every_shell() {
    let home = CommandTestHome::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let done = home.abide(&["completions", shell]);
        assert_eq!(done.code, 0);
        assert!(done.out.contains("inbox"), "{shell}");
    }
    assert_eq!(home.abide(&["completions", "tcsh"]).code, 2);
}

#[test]
fn up_opens_the_page_in_the_persons_browser() {
    let home = CommandTestHome::new();
    let (browser, opened) = (home.path().join("browser"), home.path().join("opened"));
    // Renamed when it is complete, so that it is never read partially.
    let script = format!("#!/bin/sh\necho \"$1\" > {0}.part && mv {0}.part {0}\n", opened.display());
    std::fs::write(&browser, script).unwrap();
    std::fs::set_permissions(&browser, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = home.command(&["up", "--detach", "--open"]);
    command.env("BROWSER", &browser);
    let done = CommandTestHome::run_to_exit(command);
    assert_eq!(done.code, 0, "{}", done.err);
    let url = wait::until_some("the browser is started", || std::fs::read_to_string(&opened).ok());
    assert!(url.starts_with(done.out.trim()) && url.starts_with("http://127.0.0.1:"), "{url} {}", done.out);
}
