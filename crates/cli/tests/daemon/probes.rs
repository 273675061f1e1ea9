//! A failed probe is retried and never rejects a run; a missing program does (A3). Each turn uses the command with
//! which the run was begun (A9).

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::harness::{DaemonEnding, DaemonTestHome, ReplyPath};

/// Creates a program that acts as the parrot after the shell lines in `check`.
fn write_parrot_wrapper(home: &DaemonTestHome, name: &str, check: &str) -> PathBuf {
    let path = home.path().join(name);
    let abide = env!("CARGO_BIN_EXE_abide");
    let script = format!("#!/bin/sh\n{check}\nexec {abide} __parrot \"$@\"\n");
    fs::write(&path, script).expect("it can be written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it can be executed");
    path
}

fn configure_program(home: &DaemonTestHome, program: &Path) {
    let config = format!("[engines.parrot]\ncommand = [{:?}]\n", program.display().to_string());
    fs::write(home.path().join("config.toml"), config).expect("it can be written");
}

fn profile(run: &Value) -> (&str, &str) {
    let profile = &run["profile"];
    (profile["kind"].as_str().unwrap_or_default(), profile["reason"].as_str().unwrap_or_default())
}

#[test]
fn a3_a_probe_that_fails_once_is_tried_again() {
    let mut home = DaemonTestHome::new();
    let mark = home.path().join("failed-once");
    let once = format!("[ -e {0} ] || {{ touch {0}; echo not now >&2; exit 1; }}", mark.display());
    let program = write_parrot_wrapper(&home, "flaky", &once);
    configure_program(&home, &program);
    home.restart(DaemonEnding::Terminated);
    let run = home.create("parrot", "say done", json!({}));
    let done = home.wait_for_status(&run, "succeeded");
    assert_eq!(profile(&done).0, "resumable", "{done}");
}

#[test]
fn a3_a_probe_that_fails_to_the_end_holds_the_process() {
    let mut home = DaemonTestHome::new();
    let never = "case \"$*\" in *--version*|*--help*) echo broken >&2; exit 3;; esac";
    let program = write_parrot_wrapper(&home, "broken", never);
    configure_program(&home, &program);
    home.restart(DaemonEnding::Terminated);
    let run = home.create("parrot", "ask open_text What now?\nsay It is $reply.", json!({}));
    let waiting = home.wait_for_status(&run, "waiting_user");
    let (kind, reason) = profile(&waiting);
    assert_eq!(kind, "sticky_process", "{waiting}");
    assert!(reason.contains("the probe failed") && reason.contains("broken"), "{reason}");
    home.reply(&waiting, "red", ReplyPath::Http);
    assert_eq!(home.wait_for_status(&run, "succeeded")["result"]["text"], "It is red.");
}

#[test]
fn a3_only_a_missing_program_is_not_found() {
    let mut home = DaemonTestHome::new();
    configure_program(&home, &home.path().join("nowhere"));
    home.restart(DaemonEnding::Terminated);
    let run = home.create("parrot", "say done", json!({}));
    let failed = home.wait_for_status(&run, "failed");
    assert_eq!(failed["error"]["code"], "ENGINE_NOT_FOUND", "{failed}");
}

#[test]
fn a9_every_turn_uses_the_command_that_the_run_was_begun_with() {
    let mut home = DaemonTestHome::new();
    let first = write_parrot_wrapper(&home, "first", "echo first >> \"$ABIDE_HOME/called\"");
    let second = write_parrot_wrapper(&home, "second", "echo second >> \"$ABIDE_HOME/called\"");
    configure_program(&home, &first);
    home.restart(DaemonEnding::Terminated);
    let run = home.create("parrot", "ask open_text What now?\nsay It is $reply.", json!({}));
    home.wait_for_status(&run, "waiting_user");
    home.down(DaemonEnding::Terminated);
    configure_program(&home, &second);
    fs::remove_file(home.path().join("called")).expect("it was called");
    home.up();
    let waiting = home.wait_for_status(&run, "waiting_user");
    home.reply(&waiting, "red", ReplyPath::Http);
    assert_eq!(home.wait_for_status(&run, "succeeded")["result"]["text"], "It is red.");
    let called = fs::read_to_string(home.path().join("called")).unwrap_or_default();
    assert!(called.contains("first"), "the second turn is the first one's program: {called}");
    // A new run uses the current program; a run whose program is gone reports that.
    let run = home.create("parrot", "ask open_text What now?", json!({}));
    let waiting = home.wait_for_status(&run, "waiting_user");
    fs::remove_file(&second).expect("it can be removed");
    home.reply(&waiting, "red", ReplyPath::Http);
    let failed = home.wait_for_status(&run, "failed");
    assert_eq!(failed["error"]["code"], "ENGINE_NOT_FOUND", "{failed}");
    let message = failed["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains(&second.display().to_string()), "{message}");
}

/// An abandoned request for the list of engines must not block the daemon's stop.
#[test]
#[expect(clippy::disallowed_methods, reason = "the test asserts a duration")]
fn a3_a_program_that_never_answers_holds_up_neither_the_list_of_engines_nor_a_stop() {
    let mut home = DaemonTestHome::new();
    let hangs = "case \"$*\" in *--version*|*--help*) exec sleep 1000;; esac";
    let program = write_parrot_wrapper(&home, "hanging", hangs);
    configure_program(&home, &program);
    home.restart(DaemonEnding::Terminated);
    let began = Instant::now();
    let listed = home.try_get("/v1/engines");
    assert_eq!(listed.status, 200);
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    let again = home.client().expect("a connection");
    let given_up = std::thread::spawn(move || drop(again.get("/v1/engines")));
    home.shut_down();
    given_up.join().expect("it ended");
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
}
