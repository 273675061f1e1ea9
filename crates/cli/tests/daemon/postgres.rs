//! The daemon on a Postgres server: a question, a kill of the daemon, an answer, the right end (A8) (A12).

use abide_testkit::skip::skip;
use serde_json::{Value, json};

use crate::stage::{Door, Ending, Stage};

const SCRIPT: &str = "append log before\nask open_text What now?\nappend log after $reply\nsay It is $reply.";

/// A schema of its own on the server that `cargo xtask test` starts.
fn store() -> Option<String> {
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
    let Some(store) = store() else { return };
    let mut stage = Stage::with(&[("ABIDE_STORE", &store)]);
    for (engine, door) in [("parrot", Door::Http), ("parrot-sticky", Door::CommandLine)] {
        let _removed_or_never_there = std::fs::remove_file(stage.home.workspace("w").join("log"));
        let run = stage.create(engine, SCRIPT, json!({}));
        let waiting = stage.wait(&run, "waiting_user");
        stage.restart(Ending::Killed);
        let still = stage.wait(&run, "waiting_user");
        assert_eq!(still["pending_interaction_id"], waiting["pending_interaction_id"]);
        stage.reply(&still, "red", door);
        let done = stage.wait(&run, "succeeded");
        assert_eq!(done["result"]["text"], "It is red.");
        assert_eq!(stage.lines(), ["before", "after red"], "{engine}");
        stage.wait_for_no_keeper();
    }
    assert!(!stage.home.path().join("abide.db").exists(), "nothing is kept in a file");
    let verified = stage.home.run(&["verify", "--json"]);
    let told: Value = serde_json::from_str(&verified.stdout).expect("verify prints JSON");
    assert_eq!((verified.code, &told["ok"], &told["runs"]), (Some(0), &json!(true), &json!(2)), "{told}");
    for (words, expected) in [(["backup", "copy.db"], "pg_dump"), (["restore", "copy.db"], "pg_restore")] {
        let refused = stage.home.run(&words);
        assert!(refused.code == Some(1) && refused.stderr.contains(expected), "{refused:?}");
    }
}
