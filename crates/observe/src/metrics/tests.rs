//! Property tests: after random histories, the metrics match the ledgers.

use abide_domain::run::RunStatus;
use abide_ports::store::{Journal, JournalCommit, PageRequest, StoreError, StoreQueries};
use abide_store::memory::MemoryStore;
use abide_testkit::history::HistoryGenerator;

use super::*;

/// Commits a random history and notifies the metrics as an observed store does.
async fn commit_observed(metrics: &DaemonMetrics, store: &MemoryStore, commits: Vec<JournalCommit>) {
    for commit in commits {
        let completed_items = CompletedItem::of(&commit);
        let committed = store.commit(commit).await.expect("a legal commit is taken");
        let took = Duration::from_millis(3);
        metrics.on_commit(&CommitReport {
            duration: took,
            outcome: Ok(committed.last),
            completed_items: &completed_items,
        });
    }
}

fn metric_value(text: &str, line: &str) -> u64 {
    let value = text.lines().find_map(|text_line| text_line.strip_prefix(line)).map(str::trim);
    value.unwrap_or_else(|| panic!("no line {line} in\n{text}")).parse().expect("a number")
}

#[tokio::test]
async fn every_ended_turn_and_run_of_the_ledger_is_counted_once() {
    let (metrics, store) = (DaemonMetrics::new(), MemoryStore::new());
    let mut author = HistoryGenerator::new(8, 1).with_runs(30);
    commit_observed(&metrics, &store, author.commits(900)).await;
    let (mut turns, mut finished) = (0, 0);
    for run in store.runs(None, PageRequest::first(1000)).await.unwrap().items {
        finished += u64::from(run.status().is_final());
        let of_run = store.turns_of(run.run_id, PageRequest::first(1000)).await.unwrap().items;
        turns += of_run.iter().filter(|turn| turn.result_persisted_at.is_some()).count() as u64;
    }
    assert!(turns > 20 && finished > 3, "the history has {turns} ended turns and {finished} finished runs");
    let text = metrics.0.encode();
    assert_eq!(metric_value(&text, "abide_turn_duration_seconds_count"), turns);
    let by_outcome: u64 = families::OUTCOMES
        .iter()
        .map(|it| metric_value(&text, &format!("abide_turns_total{{outcome=\"{it}\"}}")))
        .sum();
    assert_eq!(by_outcome, turns, "every outcome has its line:\n{text}");
    let ended = [RunStatus::Succeeded, RunStatus::Failed, RunStatus::Canceled].into_iter().map(|status| {
        let line = format!("abide_runs_finished_total{{outcome=\"{}\"}}", status.name());
        text.lines()
            .find_map(|text_line| text_line.strip_prefix(&line))
            .map_or(0, |it| it.trim().parse().unwrap())
    });
    assert_eq!(ended.sum::<u64>(), finished);
    assert_eq!(metric_value(&text, "abide_commit_duration_seconds_count"), 900);
    assert!(store.count_open_interactions().await.unwrap() > 0, "the history has open questions");
}

#[test]
fn a_commit_that_failed_ends_nothing() {
    let metrics = DaemonMetrics::new();
    let error = StoreError::Unavailable { reason: "away".to_owned() };
    metrics.on_commit(&CommitReport { duration: Duration::ZERO, outcome: Err(&error), completed_items: &[] });
    let text = metrics.0.encode();
    assert_eq!(metric_value(&text, "abide_commits_failed_total"), 1);
    assert!(text.ends_with("# EOF\n"));
}

#[test]
fn a_reader_is_counted_for_as_long_as_it_reads() {
    let metrics = DaemonMetrics::new();
    let readers = [metrics.stream_reader(), metrics.stream_reader()];
    assert_eq!(metric_value(&metrics.0.encode(), "abide_stream_readers"), 2);
    drop(readers);
    assert_eq!(metric_value(&metrics.0.encode(), "abide_stream_readers"), 0);
}
