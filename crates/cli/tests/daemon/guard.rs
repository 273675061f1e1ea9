//! The crash guard of the real daemon: an effect during which three daemons died is set aside, reported by `abide
//! doctor`, and performed later.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use abide_testkit::{daemon::TestHome, wait};
use serde_json::{Value, json};

/// Creates a home whose parrot cannot be examined while the file `slow` exists, so that the effect stays in progress.
fn home_with_slow_engine() -> TestHome {
    let program = Path::new(env!("CARGO_BIN_EXE_abide"));
    let home = TestHome::new(program);
    let wrapper = home.path().join("wrapper");
    let script = format!(
        "#!/bin/sh\nwhile [ -e '{}' ]; do sleep 0.05; done\nexec '{}' __parrot \"$@\"\n",
        home.path().join("slow").display(),
        program.display()
    );
    fs::write(&wrapper, script).expect("the home can be written");
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let config = format!("[engines.parrot]\ncommand = [\"{}\"]\n", wrapper.display());
    fs::write(home.path().join("config.toml"), config).expect("the home can be written");
    fs::write(home.path().join("slow"), "").expect("the home can be written");
    home
}

fn record(home: &TestHome) -> String {
    let bytes = fs::read(home.path().join("crash-guard/performing")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', "")
}

fn state(home: &TestHome) -> Value {
    let text = fs::read_to_string(home.path().join("crash-guard/state.json")).expect("it is written");
    serde_json::from_str(&text).expect("it is JSON")
}

fn doctor(home: &TestHome) -> String {
    home.run(&["doctor", "parrot", "--timeout", "1"]).stdout
}

#[test]
fn an_effect_during_which_three_daemons_died_is_set_aside_and_never_dropped() {
    let home = home_with_slow_engine();
    let daemon = home.start();
    let body = json!({ "engine": "parrot", "prompt": "say It is done.", "workspace": home.workspace("w") });
    let run = home.create_run(&body);
    let effect = format!("effect {run}");
    let mut daemon = Some(daemon);
    for death in 1..=3 {
        let dying = daemon.take().unwrap_or_else(|| home.start());
        wait::until("the effect is being performed", || record(&home).contains(&effect));
        dying.kill();
        assert!(!doctor(&home).contains(&effect), "after {} deaths", death - 1);
    }
    // After 17 more crashes the effect is still neither performed early nor dropped.
    for _ in 0..17 {
        let dying = home.start();
        assert!(!record(&home).contains(&effect), "it is not performed before the daemon is ready");
        dying.kill();
    }
    let suspects = state(&home)["suspects"].clone();
    assert_eq!(suspects[0]["deaths"], 3, "deaths without it do not count: {suspects}");
    let report = doctor(&home);
    assert!(report.contains(&effect) && report.contains("crash guard"), "{report}");
    assert!(home.log_text().contains("set aside"), "the log names it");
    // No run failed because of it, and other runs are not delayed.
    let alive = home.start();
    let shown = home.get_run(&run);
    assert_eq!(shown["status"], "running", "{shown}");
    assert_eq!(alive.terminate(), abide_testkit::daemon::DaemonExit::Exited(Some(0)));
    // The retry time is reached.
    let mut later = state(&home);
    later["suspects"][0]["retry_at"] = json!(1);
    fs::write(home.path().join("crash-guard/state.json"), later.to_string())
        .expect("the home can be written");
    fs::remove_file(home.path().join("slow")).expect("it was there");
    let last = home.start();
    home.wait_for_status(&run, "succeeded");
    assert_eq!(state(&home)["suspects"], json!([]), "its success is the end of it");
    last.terminate();
    assert_eq!(record(&home), "", "nothing is on record after an orderly end");
}
