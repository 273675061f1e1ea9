//! Low disk space: no new turn starts, waiting runs can be answered, and work resumes when there is space again.

use serde_json::{Value, json};

use crate::harness::{DaemonEnding, DaemonTestHome, ReplyPath};

/// More than the size of any disk, in bytes.
const UNREACHABLE_FREE_BYTES: &str = "9000000000000000000";

#[test]
fn with_too_little_space_no_run_starts_and_new_input_is_refused_until_there_is_more() {
    let mut home = DaemonTestHome::new();
    let asking = home.create("parrot", "gate May I?\nsay told: $reply", json!({}));
    let chat = home.create_in("chat", "parrot", "say hello");
    let resumable = home.create("parrot", "ask open_text What?\nsay It is $reply.", json!({}));
    home.wait_for_status(&chat, "idle");
    home.wait_for_status(&resumable, "waiting_user");
    home.wait_for_status(&asking, "waiting_user");
    home.down(DaemonEnding::Terminated);
    home.up_with(&[("ABIDE_LIMITS_MIN_FREE_BYTES", UNREACHABLE_FREE_BYTES)]);

    let post = |path: &str, body: &Value| {
        let answer = home.try_post(path, body);
        (answer.status, answer.str_at("/code").to_owned())
    };
    let refused = (507, "RESOURCE_PRESSURE".to_owned());
    let workspace = home.workspace("w");
    assert_eq!(
        post("/v1/runs", &json!({ "engine": "parrot", "prompt": "say x", "workspace": workspace })),
        refused
    );
    assert_eq!(post(&format!("/v1/runs/{chat}/messages"), &json!({ "text": "say more" })), refused);
    let ready = home.get("/readyz");
    assert!(ready["resource_pressure"].as_str().is_some_and(|why| why.contains("min_free_bytes")), "{ready}");
    assert!(home.get("/v1/status")["resource_pressure"].is_string());
    let doctor = home.run(&["doctor", "--set", &format!("limits.min_free_bytes={UNREACHABLE_FREE_BYTES}")]);
    assert!(doctor.stdout.contains("limits.min_free_bytes asks for"), "{doctor:?}");

    // Open questions can be answered: a waiting process continues, and a run without a process is queued.
    let waiting = home.wait_for_status(&asking, "waiting_user");
    home.reply(&waiting, "yes", ReplyPath::Http);
    home.wait_for_status(&asking, "succeeded");
    let waiting = home.wait_for_status(&resumable, "waiting_user");
    home.reply(&waiting, "red", ReplyPath::Http);
    let queued = home.wait_for_status(&resumable, "queued");
    assert!(queued["blocked_reason"].as_str().is_some_and(|why| why.contains("bytes are free")), "{queued}");

    home.down(DaemonEnding::Terminated);
    home.up();
    assert_eq!(home.wait_for_status(&resumable, "succeeded")["result"]["text"], "It is red.");
}
