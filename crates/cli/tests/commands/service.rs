//! The daemon's lifecycle from the command line: started on demand, one per home, and stopped.

use std::{net::TcpListener, os::unix::fs::PermissionsExt, process::Stdio};

use abide_testkit::{daemon::TestCommandOutput, wait};
use serde_json::Value;

use crate::harness::CommandTestHome;

#[test]
fn a_command_that_needs_a_daemon_starts_it_and_the_next_one_uses_it() {
    let home = CommandTestHome::new();
    let none = home.run(&["status"]);
    assert_eq!((none.code, none.stdout.as_str()), (Some(1), ""));
    assert!(none.stderr.contains("abide up --detach"), "{}", none.stderr);
    let first = home.run(&["run", "parrot", "say hello"]);
    assert_eq!((first.code, first.stdout.as_str()), (Some(0), "hello\n"), "{}", first.stderr);
    assert!(first.stderr.contains("started the daemon at http://127.0.0.1:"), "{}", first.stderr);
    let second = home.run(&["ls"]);
    assert_eq!((second.code, second.stderr.as_str()), (Some(0), ""));
    let status = home.run_json(&["status"]);
    assert_eq!((&status["ready"], &status["runs"]["succeeded"]), (&true.into(), &1.into()));
    let status = home.run(&["status"]).stdout;
    assert!(status.contains("ready") && status.contains("1 succeeded"), "{status}");
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
        .map(|words| {
            home.command().args(*words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let outputs: Vec<_> = children.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    assert!(outputs.iter().all(|output| output.status.success()), "{outputs:?}");
    let pids: Vec<Value> = outputs[4..]
        .iter()
        .map(|output| serde_json::from_slice::<Value>(&output.stdout).unwrap()["pid"].clone())
        .collect();
    assert_eq!(pids[0], pids[1]);
    assert_eq!(home.run_json(&["status"])["pid"], pids[0]);
}

#[test]
fn a_daemon_that_is_started_by_hand_at_the_same_moment_is_used() {
    let home = CommandTestHome::new();
    let mut by_hand = home.spawn_watched(&["up"]);
    let listed = home.run(&["ls", "--json"]);
    assert_eq!((listed.code, listed.stdout.as_str()), (Some(0), "[]\n"), "{}", listed.stderr);
    // The first of the two is the home's daemon.
    let pid = home.run_json(&["status"])["pid"].clone();
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
    let again = home.run(&["up"]);
    assert_eq!((again.code, again.stdout.as_str()), (Some(1), ""));
    assert!(again.stderr.contains("is already running at http://127.0.0.1:"), "{}", again.stderr);
    let detached = home.run(&["up", "--detach"]);
    assert_eq!(detached.code, Some(0));
    assert!(detached.stdout.starts_with("http://127.0.0.1:"), "{}", detached.stdout);
    assert!(detached.stderr.contains("a daemon is already running"), "{}", detached.stderr);
}

#[test]
fn a_daemon_that_cannot_start_says_why() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let home = CommandTestHome::new();
    let config = format!("listen = \"{}\"\n", taken.local_addr().unwrap());
    std::fs::write(home.path().join("config.toml"), config).unwrap();
    let failed = home.run(&["ls"]);
    assert_eq!((failed.code, failed.stdout.as_str()), (Some(1), ""));
    for part in ["did not start", "cannot listen on", "--listen 127.0.0.1:0", "background.log"] {
        assert!(failed.stderr.contains(part), "{part}: {}", failed.stderr);
    }
    let failed = home.run(&["ls", "--json"]);
    let error: Value = serde_json::from_str(&failed.stderr).unwrap();
    assert_eq!(error["code"], "DAEMON_FAILED");
}

#[test]
fn a_daemon_with_another_token_is_told_from_this_homes_own() {
    let home = CommandTestHome::new();
    home.up();
    let token = std::fs::read_to_string(home.path().join("token")).unwrap();
    std::fs::write(home.path().join("token"), "0".repeat(64)).unwrap();
    let refused = home.run(&["ls"]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("another home"), "{}", refused.stderr);
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
    let listed = home.run(&["ls"]);
    assert_eq!(listed.code, Some(0));
    assert!(listed.stderr.contains("the daemon is version 0.0.1"), "{}", listed.stderr);
}

#[test]
fn down_ends_the_turn_at_work_and_its_run_waits_for_a_person() {
    let home = CommandTestHome::new();
    let mut run = home.spawn_watched(&["run", "parrot", "progress busy\nsleep 600\nsay never"]);
    run.wait_for_line("busy");
    let down = home.run(&["down"]);
    assert_eq!(down.code, Some(0), "{}", down.stderr);
    assert!(down.stdout.starts_with("stopped; ended 1 turns"), "{}", down.stdout);
    assert_eq!(home.run(&["status"]).code, Some(1));
    let again = home.run(&["down"]);
    assert_eq!((again.code, again.stdout.as_str()), (Some(0), ""));
    assert!(again.stderr.contains("no daemon is running"), "{}", again.stderr);
    assert_eq!(home.run_json(&["ls"])[0]["status"], "waiting_user");
}

#[test]
fn down_and_keep_leaves_the_turn_at_work_and_the_next_daemon_takes_it_up() {
    let home = CommandTestHome::new();
    let mut run = home.spawn_watched(&["run", "parrot", "progress busy\nsleep 1\nappend ran once\nsay done"]);
    run.wait_for_line("busy");
    let down = home.run_json(&["down", "--keep"]);
    assert_eq!(down["turns"].as_array().unwrap().len(), 0);
    assert_eq!(home.run(&["status"]).code, Some(1));
    home.up();
    assert_eq!(run.wait_for_exit(), Some(0), "{:?}", run.err);
    assert_eq!(run.out, ["done"]);
    let shown = home.run_json(&["show", "last"]);
    assert_eq!(shown["turns"][0]["attempts"].as_array().unwrap().len(), 1);
}

#[test]
fn completions_are_there_for_every_shell() {
    let home = CommandTestHome::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let done = home.run(&["completions", shell]);
        assert_eq!(done.code, Some(0));
        assert!(done.stdout.contains("inbox"), "{shell}");
    }
    assert_eq!(home.run(&["completions", "tcsh"]).code, Some(2));
}

#[test]
fn up_opens_the_page_in_the_persons_browser() {
    let home = CommandTestHome::new();
    let (browser, opened) = (home.path().join("browser"), home.path().join("opened"));
    // Renamed when it is complete, so that it is never read partially.
    let script = format!("#!/bin/sh\necho \"$1\" > {0}.part && mv {0}.part {0}\n", opened.display());
    std::fs::write(&browser, script).unwrap();
    std::fs::set_permissions(&browser, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = home.command();
    command.args(["up", "--detach", "--open"]).env("BROWSER", &browser);
    let done = TestCommandOutput::of(command);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let url = wait::until_some("the browser is started", || std::fs::read_to_string(&opened).ok());
    assert!(
        url.starts_with(done.stdout.trim()) && url.starts_with("http://127.0.0.1:"),
        "{url} {}",
        done.stdout
    );
}
