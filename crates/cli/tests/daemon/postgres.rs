//! The daemon on a Postgres server: a question, a kill of the daemon, an answer, and the correct result (A8) (A12).
//! Each schema has at most one daemon (SECURITY 15).

use abide_testkit::{daemon::TestHome, skip::skip, wait};
use serde_json::json;

use crate::harness::{DaemonEnding, DaemonTestHome, ReplyPath};

const SCRIPT: &str = "append log before\nask open_text What now?\nappend log after $reply\nsay It is $reply.";

/// Returns the URL of a new schema on the server that `cargo xtask test` starts.
fn new_schema_url() -> Option<String> {
    let variable = std::env::vars().find(|(name, _)| name == "ABIDE_TEST_POSTGRES_URL");
    let Some((_, url)) = variable else {
        skip("no Postgres server: ABIDE_TEST_POSTGRES_URL is not set; `cargo xtask test` starts one");
        return None;
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let unique: String =
        folder.path().display().to_string().bytes().map(|byte| format!("{byte:x}")).collect();
    Some(format!("{url}?schema=e2e_{}_{}", std::process::id(), &unique[unique.len() - 12..]))
}

#[test]
fn a_run_on_postgres_outlives_the_kill_of_its_daemon_in_each_kind_of_wait() {
    let Some(store) = new_schema_url() else { return };
    let mut home = DaemonTestHome::with_env(&[("ABIDE_STORE", &store)]);
    for (engine, door) in [("parrot", ReplyPath::Http), ("parrot-sticky", ReplyPath::CommandLine)] {
        // The file does not exist in the first round.
        std::fs::remove_file(home.workspace("w").join("log")).ok();
        let run = home.create(engine, SCRIPT, json!({}));
        let waiting = home.wait_for_status(&run, "waiting_user");
        home.restart(DaemonEnding::Killed);
        let still = home.wait_for_status(&run, "waiting_user");
        assert_eq!(still["pending_interaction_id"], waiting["pending_interaction_id"]);
        home.reply(&still, "red", door);
        let done = home.wait_for_status(&run, "succeeded");
        assert_eq!(done["result"]["text"], "It is red.");
        assert_eq!(home.log_lines(), ["before", "after red"], "{engine}");
        home.wait_for_no_keeper();
    }
    assert!(!home.path().join("abide.db").exists(), "nothing is kept in a file");
    let report = home.run_json(&["verify"]);
    assert_eq!((&report["ok"], &report["runs"]), (&json!(true), &json!(2)), "{report}");
    for (words, expected) in [(["backup", "copy.db"], "pg_dump"), (["restore", "copy.db"], "pg_restore")] {
        let refused = home.run(&words);
        assert!(refused.code == Some(1) && refused.stderr.contains(expected), "{refused:?}");
    }
}

/// Two homes with one schema (SECURITY 15).
fn two_homes(store: &str) -> [TestHome; 2] {
    let home = || TestHome::new(env!("CARGO_BIN_EXE_abide")).with_env("ABIDE_STORE", store);
    [home(), home()]
}

/// Terminates all connections of a store, as an operator or a network failure would.
fn cut_connections(store: &str) {
    let (url, schema) = store.split_once("?schema=").expect("a schema of its own");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let (client, connection) =
            tokio_postgres::connect(url, tokio_postgres::NoTls).await.expect("the server answers");
        let connection = tokio::spawn(connection);
        let sql = format!(
            "SELECT pg_terminate_backend((value::json ->> 'backend')::int) FROM {schema}.meta WHERE key = 'holder'"
        );
        client.batch_execute(&sql).await.expect("the holder's connection is ended");
        connection.abort();
    });
}

#[test]
fn a_second_daemon_on_the_same_schema_is_refused_with_the_holders_name() {
    let Some(store) = new_schema_url() else { return };
    let [first, second] = two_homes(&store);
    let running = first.start();
    let refused = second.run(&["up", "--listen", "127.0.0.1:0"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("the machine has a name");
    let (pid, home) = (format!("pid {}", running.pid()), first.path().display().to_string());
    for part in [host.trim(), &pid, &home, "since", "?schema="] {
        assert!(refused.stderr.contains(part), "{part:?} is missing: {}", refused.stderr);
    }
    let verified = second.run(&["verify"]);
    assert_eq!(verified.code, Some(0), "looking is allowed beside a daemon: {verified:?}");
    // The lock of a killed daemon is released.
    running.kill();
    let next = second.start();
    next.terminate();
}

#[test]
fn a_daemon_whose_schema_was_taken_while_its_connection_was_cut_accepts_nothing_and_names_the_holder() {
    let Some(store) = new_schema_url() else { return };
    let [first, second] = two_homes(&store);
    let stopped = first.start();
    let client = first.client().expect("it answers");
    assert_eq!(client.get("/readyz").expect("it answers").status, 200);
    // It is stopped, so that it cannot take the lock again before the other daemon does.
    stopped.signal("STOP");
    cut_connections(&store);
    let taking = second.start();
    stopped.signal("CONT");
    wait::until("it is no longer ready", || client.get("/readyz").is_ok_and(|ready| ready.status == 503));
    let body = json!({ "engine": "parrot", "prompt": "say hi", "workspace": first.workspace("w") });
    let refused = client.post("/v1/runs", &body).expect("it answers");
    assert_eq!((refused.status, refused.str_at("/code")), (503, "STORE_IN_USE"), "{}", refused.body);
    let detail = refused.str_at("/detail");
    assert!(detail.contains(&format!("pid {}", taking.pid())), "{detail}");
    assert!(detail.contains(&second.path().display().to_string()), "{detail}");
    assert_eq!(client.get("/v1/runs").expect("it answers").status, 200, "reading is still possible");
    wait::until("the log says it", || first.log_text().contains("no input is accepted"));
    // The other daemon is not affected.
    let body = json!({ "engine": "parrot", "prompt": "say hi", "workspace": second.workspace("w") });
    second.create_run(&body);
    taking.terminate();
    // After a restart it works as usual.
    stopped.terminate();
    let again = first.start();
    again.terminate();
}
