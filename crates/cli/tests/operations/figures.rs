//! `/metrics` reports the correct counters and gauges, also after a restart.

use crate::new_home;

fn metric_value(text: &str, line: &str) -> f64 {
    let value = text.lines().find_map(|text_line| text_line.strip_prefix(line)).map(str::trim);
    value.unwrap_or_else(|| panic!("no line {line} in\n{text}")).parse().unwrap()
}

#[test]
fn metrics_count_events_and_open_questions_after_a_restart() {
    let home = new_home("");
    let daemon = home.start();
    let done = home.run_parrot("say hello");
    home.wait_for_status(&done, "succeeded");
    let asks = home.run_parrot("ask open_text What now?");
    home.wait_for_status(&asks, "waiting_user");
    let text = home.get_text("/metrics");
    assert!(text.ends_with("# EOF\n"), "{text}");
    assert_eq!(metric_value(&text, "abide_turns_total{outcome=\"completed\"}"), 1.0);
    assert_eq!(metric_value(&text, "abide_turns_total{outcome=\"waiting_user_input\"}"), 1.0);
    assert_eq!(metric_value(&text, "abide_turn_duration_seconds_count"), 2.0);
    assert_eq!(metric_value(&text, "abide_runs{status=\"succeeded\"}"), 1.0);
    assert_eq!(metric_value(&text, "abide_interactions_open"), 1.0);
    assert!(metric_value(&text, "abide_interactions_oldest_age_seconds") > 0.0);
    assert!(metric_value(&text, "abide_commit_duration_seconds_count") >= 4.0);
    assert!(metric_value(&text, "abide_process_resident_memory_bytes") > 1e6);
    let created = "abide_http_requests_total{method=\"POST\",route=\"/v1/runs\",status=\"201\"}";
    assert_eq!(metric_value(&text, created), 2.0);
    let head = metric_value(&text, "abide_journal_head");
    home.down(daemon);
    let _again = home.start();
    let text = home.get_text("/metrics");
    assert_eq!(metric_value(&text, "abide_runs{status=\"succeeded\"}"), 1.0);
    assert_eq!(metric_value(&text, "abide_runs{status=\"waiting_user\"}"), 1.0);
    assert_eq!(metric_value(&text, "abide_interactions_open"), 1.0);
    assert!(metric_value(&text, "abide_journal_head") >= head);
    assert_eq!(metric_value(&text, "abide_turns_total{outcome=\"completed\"}"), 0.0);
}

#[test]
fn metrics_require_the_token() {
    let home = new_home("");
    let _daemon = home.start();
    let refused = home.client().unwrap().with_token(None).get("/metrics").unwrap();
    assert_eq!(refused.status, 401, "{}", refused.text);
}
