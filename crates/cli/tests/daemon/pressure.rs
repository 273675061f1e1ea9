//! Low disk space: no new turn starts, waiting runs can be answered, and work resumes when there is space again.

use serde_json::{Value, json};

use crate::stage::{DaemonEnding, DaemonTestHome, ReplyPath};

/// More than the size of any disk, in bytes.
const EVERYTHING: &str = "9000000000000000000";

#[test]
fn with_too_little_space_no_run_starts_and_new_input_is_refused_until_there_is_more() {
    let mut stage = DaemonTestHome::new();
    let asking = stage.create("parrot", "gate May I?\nsay told: $reply", json!({}));
    let chat = stage.create_in("chat", "parrot", "say hello");
    let resumable = stage.create("parrot", "ask open_text What?\nsay It is $reply.", json!({}));
    stage.wait(&chat, "idle");
    stage.wait(&resumable, "waiting_user");
    stage.wait(&asking, "waiting_user");
    stage.down(DaemonEnding::Kept);
    stage.up_with(&[("ABIDE_LIMITS_MIN_FREE_BYTES", EVERYTHING)]);

    let post = |path: &str, body: &Value| {
        let answer = stage.home.client().and_then(|client| client.post(path, body)).expect("it answers");
        (answer.status, answer.text("/code").to_owned())
    };
    let refused = (507, "RESOURCE_PRESSURE".to_owned());
    let workspace = stage.home.workspace("w");
    assert_eq!(
        post("/v1/runs", &json!({ "engine": "parrot", "prompt": "say x", "workspace": workspace })),
        refused
    );
    assert_eq!(post(&format!("/v1/runs/{chat}/messages"), &json!({ "text": "say more" })), refused);
    let ready = stage.get("/readyz");
    assert!(ready["resource_pressure"].as_str().is_some_and(|why| why.contains("min_free_bytes")), "{ready}");
    assert!(stage.get("/v1/status")["resource_pressure"].is_string());
    let doctor = stage.home.run(&["doctor", "--set", &format!("limits.min_free_bytes={EVERYTHING}")]);
    assert!(doctor.stdout.contains("limits.min_free_bytes asks for"), "{doctor:?}");

    // Open questions can be answered: a waiting process continues, and a run without a process is queued.
    let waiting = stage.wait(&asking, "waiting_user");
    stage.reply(&waiting, "yes", ReplyPath::Http);
    stage.wait(&asking, "succeeded");
    let waiting = stage.wait(&resumable, "waiting_user");
    stage.reply(&waiting, "red", ReplyPath::Http);
    let queued = stage.wait(&resumable, "queued");
    assert!(queued["held_back"].as_str().is_some_and(|why| why.contains("bytes are free")), "{queued}");

    stage.down(DaemonEnding::Kept);
    stage.up();
    assert_eq!(stage.wait(&resumable, "succeeded")["result"]["text"], "It is red.");
}
