//! The contract of observers, which are notified of commits after they were written and return nothing.
//!
//! Metrics and traces are derived from these notifications; their formats are not defined here. Values that must be
//! correct after a restart are read from the store instead of being counted here.

use std::time::Duration;

use abide_domain::{
    id::{RunId, TurnId},
    process::{Attempt, ExitStatus},
    run::RunStatus,
    time::{TimeSpan, Timestamp},
    turn::{ExecutionStatus, Turn},
};

use crate::store::{JournalCommit, JournalSeq, RunChange, StoreError};

/// Receives a report of each commit. It is called on the commit path, so calls must be quick and cannot fail.
pub trait CommitObserver: Send + Sync {
    /// Called after each commit, successful or not.
    fn on_commit(&self, report: &CommitReport<'_>);
}

/// A commit and its result.
#[derive(Debug)]
pub struct CommitReport<'a> {
    /// The time from the request to the result.
    pub duration: Duration,
    /// The journal's head after the commit, or the error.
    pub outcome: Result<JournalSeq, &'a StoreError>,
    /// The items that the commit completed. Empty if it failed.
    pub completed_items: &'a [CompletedItem],
}

/// A turn, run or delivery that was completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompletedItem {
    /// A turn, with all processes that were launched for it.
    Turn(CompletedTurn),
    Run(CompletedRun),
    /// A delivery, with the time since it was requested.
    Delivery(TimeSpan),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletedTurn {
    pub run_id: RunId,
    pub engine: String,
    pub turn_id: TurnId,
    /// Its index within the run, counted from 1.
    pub turn_index: u32,
    pub status: ExecutionStatus,
    pub started_at: Timestamp,
    /// The time at which its outcome became durable.
    pub ended_at: Timestamp,
    pub attempts: Vec<AttemptSummary>,
}

/// A process that worked on a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptSummary {
    /// Unique per run; increases by one for each launch.
    pub attempt: Attempt,
    /// The time at which it was first observed working on the turn.
    pub started_at: Timestamp,
    /// The time of its exit. The end of the turn if the process was kept for another one.
    pub ended_at: Timestamp,
    /// None if no exit was observed.
    pub exit: Option<ExitStatus>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletedRun {
    pub run_id: RunId,
    pub engine: String,
    pub status: RunStatus,
    pub created_at: Timestamp,
    pub ended_at: Timestamp,
    /// The number of its turns.
    pub turns: u32,
}

impl CompletedItem {
    /// All items that a commit completes.
    pub fn of(commit: &JournalCommit) -> Vec<Self> {
        let mut items = Vec::new();
        for change in &commit.changes {
            let now = change.stamp.at;
            let ended = |turn: &&Turn| turn.result_persisted_at == Some(now);
            items.extend(change.turns().filter(ended).map(|turn| Self::Turn(completed_turn(change, turn))));
            let arrived = |at: Option<Timestamp>| at == Some(now);
            let deliveries = change.deliveries().filter(|delivery| arrived(delivery.delivered_at));
            items.extend(deliveries.map(|delivery| Self::Delivery(delivery.created_at.span_until(now))));
            let run = &change.run;
            if run.status().is_final() && !change.previous_status.is_some_and(RunStatus::is_final) {
                items.push(Self::Run(CompletedRun {
                    run_id: run.run_id,
                    engine: run.settings.engine.clone(),
                    status: run.status(),
                    created_at: run.created_at,
                    ended_at: now,
                    turns: run.turn_index,
                }));
            }
        }
        items
    }
}

fn completed_turn(change: &RunChange, turn: &Turn) -> CompletedTurn {
    let ended_at = change.stamp.at;
    let attempts = turn.attempts.iter().map(|record| AttemptSummary {
        attempt: record.attempt,
        started_at: record.started_at.unwrap_or(turn.started_at),
        ended_at: record.ended_at.unwrap_or(ended_at),
        exit: record.exit,
    });
    CompletedTurn {
        run_id: turn.run_id,
        engine: change.run.settings.engine.clone(),
        turn_id: turn.turn_id,
        turn_index: turn.turn_index,
        status: turn.execution_status,
        started_at: turn.started_at,
        ended_at,
        attempts: attempts.collect(),
    }
}
