//! The turn ledger records how and when each process ended (E6), also across restarts.

use serde_json::{Value, json};

use crate::harness::{DaemonTestHome, ENDINGS, ReplyPath};

/// Returns the attempts of a run, one for each turn that a process served.
fn attempts(home: &DaemonTestHome, run: &str) -> Vec<Value> {
    let turns = home.get(&format!("/v1/runs/{run}/turns?limit=1"));
    let mut attempts = Vec::new();
    let mut page = turns;
    loop {
        let items = page["items"].as_array().cloned().expect("a list has items");
        attempts
            .extend(items.iter().flat_map(|turn| turn["attempts"].as_array().cloned().unwrap_or_default()));
        let Some(cursor) = page["next_cursor"].as_str() else { return attempts };
        page = home.get(&format!("/v1/runs/{run}/turns?limit=1&cursor={cursor}"));
    }
}

#[test]
fn e6_every_attempt_of_every_turn_has_its_end() {
    let script = "ask open_text One?\nask open_text Two?\nsay It is $reply.";
    for (engine, processes) in [("parrot", 3), ("parrot-sticky", 1)] {
        for ending in ENDINGS {
            let mut home = DaemonTestHome::new();
            let run = home.create(engine, script, json!({}));
            let waiting = home.wait_for_status(&run, "waiting_user");
            // Replied at once: the process that asked may still be exiting.
            home.reply(&waiting, "one", ReplyPath::Http);
            home.wait_for_status(&run, "waiting_user");
            home.restart(ending);
            let waiting = home.wait_for_status(&run, "waiting_user");
            home.reply(&waiting, "two", ReplyPath::Http);
            home.wait_for_status(&run, "succeeded");
            home.wait_for_no_keeper();
            let attempts = home.wait_until("each attempt has ended", || {
                let attempts = attempts(&home, &run);
                attempts.iter().all(|attempt| attempt["ended_at"].is_string()).then_some(attempts)
            });
            assert_eq!(attempts.len(), 3, "{engine} {ending:?}: {attempts:?}");
            assert!(attempts.iter().all(|it| it["exit_code"].is_i64()), "{engine} {ending:?}: {attempts:?}");
            let numbers: std::collections::BTreeSet<_> =
                attempts.iter().filter_map(|it| it["attempt"].as_u64()).collect();
            assert_eq!(numbers.len(), processes, "{engine} {ending:?}: {attempts:?}");
        }
    }
}
