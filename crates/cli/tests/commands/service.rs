//! The daemon's lifecycle from the command line: started on demand, one per home, and stopped.

use std::{net::TcpListener, os::unix::fs::PermissionsExt, process::Stdio};

use abide_testkit::wait;
use serde_json::Value;

use crate::house::CommandTestHome;

#[test]
fn a_command_that_needs_a_daemon_starts_it_and_the_next_one_uses_it() {
    let house = CommandTestHome::new();
    let none = house.abide(&["status"]);
    assert_eq!((none.code, none.out.as_str()), (1, ""));
    assert!(none.err.contains("abide up --detach"), "{}", none.err);
    let first = house.abide(&["run", "parrot", "say hello"]);
    assert_eq!((first.code, first.out.as_str()), (0, "hello\n"), "{}", first.err);
    assert!(first.err.contains("started the daemon at http://127.0.0.1:"), "{}", first.err);
    let second = house.abide(&["ls"]);
    assert_eq!((second.code, second.err.as_str()), (0, ""));
    let status = house.json(&["status"]);
    assert_eq!((&status["ready"], &status["runs"]["succeeded"]), (&true.into(), &1.into()));
    let told = house.abide(&["status"]).out;
    assert!(told.contains("ready") && told.contains("1 succeeded"), "{told}");
}

#[test]
fn of_many_that_start_a_daemon_at_once_one_does_and_all_use_it() {
    let house = CommandTestHome::new();
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
        .map(|words| house.command(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
        .collect();
    let outputs: Vec<_> = children.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    assert!(outputs.iter().all(|output| output.status.success()), "{outputs:?}");
    let pids: Vec<Value> = outputs[4..]
        .iter()
        .map(|output| serde_json::from_slice::<Value>(&output.stdout).unwrap()["pid"].clone())
        .collect();
    assert_eq!(pids[0], pids[1]);
    assert_eq!(house.json(&["status"])["pid"], pids[0]);
}

#[test]
fn a_daemon_that_is_started_by_hand_at_the_same_moment_is_used() {
    let house = CommandTestHome::new();
    let mut by_hand = house.watch(&["up"]);
    let listed = house.abide(&["ls", "--json"]);
    assert_eq!((listed.code, listed.out.as_str()), (0, "[]\n"), "{}", listed.err);
    // The first of the two is the home's daemon.
    let pid = house.json(&["status"])["pid"].clone();
    if pid == by_hand.child.id() {
        by_hand.says("http://127.0.0.1:");
    } else {
        assert_eq!(by_hand.ends(), Some(1));
    }
}

#[test]
fn a_home_has_one_daemon() {
    let house = CommandTestHome::new();
    house.up();
    let again = house.abide(&["up"]);
    assert_eq!((again.code, again.out.as_str()), (1, ""));
    assert!(again.err.contains("runs already at http://127.0.0.1:"), "{}", again.err);
    let detached = house.abide(&["up", "--detach"]);
    assert_eq!(detached.code, 0);
    assert!(detached.out.starts_with("http://127.0.0.1:"), "{}", detached.out);
    assert!(detached.err.contains("runs already"), "{}", detached.err);
}

#[test]
fn a_daemon_that_cannot_start_says_why() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let house = CommandTestHome::with(&format!("listen = \"{}\"\n", taken.local_addr().unwrap()));
    let failed = house.abide(&["ls"]);
    assert_eq!((failed.code, failed.out.as_str()), (1, ""));
    for said in ["did not start", "cannot listen on", "--listen 127.0.0.1:0", "background.log"] {
        assert!(failed.err.contains(said), "{said}: {}", failed.err);
    }
    let failed = house.abide(&["ls", "--json"]);
    let told: Value = serde_json::from_str(&failed.err).unwrap();
    assert_eq!(told["code"], "DAEMON_FAILED");
}

#[test]
fn a_daemon_with_another_token_is_told_from_this_homes_own() {
    let house = CommandTestHome::new();
    house.up();
    let token = std::fs::read_to_string(house.path().join("token")).unwrap();
    std::fs::write(house.path().join("token"), "0".repeat(64)).unwrap();
    let refused = house.abide(&["ls"]);
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("another home"), "{}", refused.err);
    std::fs::write(house.path().join("token"), token).unwrap();
}

#[test]
fn a_daemon_of_another_version_is_mentioned_and_used() {
    let house = CommandTestHome::new();
    house.up();
    let path = house.path().join("daemon.json");
    let mut address: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    address["version"] = "0.0.1".into();
    std::fs::write(&path, address.to_string()).unwrap();
    let listed = house.abide(&["ls"]);
    assert_eq!(listed.code, 0);
    assert!(listed.err.contains("the daemon is version 0.0.1"), "{}", listed.err);
}

#[test]
fn down_ends_the_turn_at_work_and_its_run_waits_for_a_person() {
    let house = CommandTestHome::new();
    let mut run = house.watch(&["run", "parrot", "progress busy\nsleep 600\nsay never"]);
    run.says("busy");
    let down = house.abide(&["down"]);
    assert_eq!(down.code, 0, "{}", down.err);
    assert!(down.out.starts_with("stopped; ended 1 turns"), "{}", down.out);
    assert_eq!(house.abide(&["status"]).code, 1);
    let again = house.abide(&["down"]);
    assert_eq!((again.code, again.out.as_str()), (0, ""));
    assert!(again.err.contains("no daemon runs here"), "{}", again.err);
    assert_eq!(house.json(&["ls"])[0]["status"], "waiting_user");
}

#[test]
fn down_and_keep_leaves_the_turn_at_work_and_the_next_daemon_takes_it_up() {
    let house = CommandTestHome::new();
    let mut run = house.watch(&["run", "parrot", "progress busy\nsleep 1\nappend ran once\nsay done"]);
    run.says("busy");
    let down = house.json(&["down", "--keep"]);
    assert_eq!(down["turns"].as_array().unwrap().len(), 0);
    assert_eq!(house.abide(&["status"]).code, 1);
    house.up();
    assert_eq!(run.ends(), Some(0), "{:?}", run.err);
    assert_eq!(run.out, ["done"]);
    let shown = house.json(&["show", "last"]);
    assert_eq!(shown["turns"][0]["attempts"].as_array().unwrap().len(), 1);
}

#[test]
fn completions_are_there_for_every_shell() {
    let house = CommandTestHome::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let done = house.abide(&["completions", shell]);
        assert_eq!(done.code, 0);
        assert!(done.out.contains("inbox"), "{shell}");
    }
    assert_eq!(house.abide(&["completions", "tcsh"]).code, 2);
}

#[test]
fn up_opens_the_page_in_the_persons_browser() {
    let house = CommandTestHome::new();
    let (browser, opened) = (house.path().join("browser"), house.path().join("opened"));
    // Renamed when it is complete, so that it is never read partially.
    let script = format!("#!/bin/sh\necho \"$1\" > {0}.part && mv {0}.part {0}\n", opened.display());
    std::fs::write(&browser, script).unwrap();
    std::fs::set_permissions(&browser, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = house.command(&["up", "--detach", "--open"]);
    command.env("BROWSER", &browser);
    let done = CommandTestHome::done(command);
    assert_eq!(done.code, 0, "{}", done.err);
    let url = wait::until_some("the browser is started", || std::fs::read_to_string(&opened).ok());
    assert!(url.starts_with(done.out.trim()) && url.starts_with("http://127.0.0.1:"), "{url} {}", done.out);
}
