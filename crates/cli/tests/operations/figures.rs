//! `/metrics` reports the correct counters and gauges, also after a restart.

use crate::place::OperatorTestHome;

fn metric_value(text: &str, line: &str) -> f64 {
    let value = text.lines().find_map(|found| found.strip_prefix(line)).map(str::trim);
    value.unwrap_or_else(|| panic!("no line {line} in\n{text}")).parse().unwrap()
}

#[test]
fn metrics_count_events_and_open_questions_after_a_restart() {
    let home = OperatorTestHome::new("");
    let daemon = home.up(&[]);
    let done = daemon.run("say hello");
    daemon.wait_for_status(&done, "succeeded");
    let asks = daemon.run("ask open_text What now?");
    daemon.wait_for_status(&asks, "waiting_user");
    let text = daemon.get("/metrics");
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
    daemon.down(&home);
    let again = home.up(&[]);
    let text = again.get("/metrics");
    assert_eq!(metric_value(&text, "abide_runs{status=\"succeeded\"}"), 1.0);
    assert_eq!(metric_value(&text, "abide_runs{status=\"waiting_user\"}"), 1.0);
    assert_eq!(metric_value(&text, "abide_interactions_open"), 1.0);
    assert!(metric_value(&text, "abide_journal_head") >= head);
    assert_eq!(metric_value(&text, "abide_turns_total{outcome=\"completed\"}"), 0.0);
}

#[test]
fn metrics_require_the_token() {
    let home = OperatorTestHome::new("");
    let daemon = home.up(&[]);
    let refused = ureq::get(format!("{}/metrics", daemon.url)).call().unwrap_err();
    assert!(matches!(refused, ureq::Error::StatusCode(401)), "{refused}");
}
