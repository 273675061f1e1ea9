//! The contract of those who watch: told what was committed, after it was, and never asked for anything.
//!
//! Figures and traces are made of this. What they look like outside is not known here, and nothing that must be right
//! after a restart is counted here: that is read from the store.

use std::time::Duration;

use abide_domain::{
    id::{RunId, TurnId},
    process::{Attempt, ExitStatus},
    run::RunStatus,
    time::{TimeSpan, Timestamp},
    turn::{ExecutionStatus, Turn},
};

use crate::store::{JournalCommit, JournalSeq, RunChange, StoreError};

/// Somebody who watches. Calls come from the middle of the work, so they must be quick and cannot fail.
pub trait CommitObserver: Send + Sync {
    /// A commit was answered.
    fn committed(&self, sight: &CommitReport<'_>);
}

/// A commit and what became of it.
#[derive(Debug)]
pub struct CommitReport<'a> {
    /// How long it took, from the order to the answer.
    pub took: Duration,
    /// Where the journal then ended, or why it does not.
    pub outcome: Result<JournalSeq, &'a StoreError>,
    /// What it ended, if it was written.
    pub milestones: &'a [CompletedItem],
}

/// Something that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompletedItem {
    /// A turn, with every process that was launched for it.
    Turn(CompletedTurn),
    /// A run.
    Run(CompletedRun),
    /// The way of something to a conversation, this long after it was wanted.
    Delivered(TimeSpan),
}

/// A turn that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletedTurn {
    /// Its run.
    pub run_id: RunId,
    /// The run's engine.
    pub engine: String,
    /// Its name.
    pub turn_id: TurnId,
    /// Its place in the run.
    pub turn_index: u32,
    /// How it ended.
    pub status: ExecutionStatus,
    /// When it began.
    pub started_at: Timestamp,
    /// When its ending became durable.
    pub ended_at: Timestamp,
    /// The processes.
    pub attempts: Vec<AttemptSummary>,
}

/// A process that worked at a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptSummary {
    /// Its number within the run.
    pub attempt: Attempt,
    /// When it was first seen working at the turn.
    pub started_at: Timestamp,
    /// When it ended, or the turn did if it was held for more.
    pub ended_at: Timestamp,
    /// How it ended, if it did.
    pub exit: Option<ExitStatus>,
}

/// A run that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletedRun {
    /// Its name.
    pub run_id: RunId,
    /// Its engine.
    pub engine: String,
    /// How it ended.
    pub status: RunStatus,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it ended.
    pub ended_at: Timestamp,
    /// How many turns it had.
    pub turns: u32,
}

impl CompletedItem {
    /// Everything that a commit ends.
    pub fn of(commit: &JournalCommit) -> Vec<Self> {
        let mut milestones = Vec::new();
        for change in &commit.changes {
            let now = change.stamp.at;
            let ended = |turn: &&Turn| turn.result_persisted_at == Some(now);
            milestones.extend(change.turns().filter(ended).map(|turn| Self::Turn(turned(change, turn))));
            let arrived = |at: Option<Timestamp>| at == Some(now);
            let deliveries = change.deliveries().filter(|delivery| arrived(delivery.delivered_at));
            milestones.extend(deliveries.map(|delivery| Self::Delivered(delivery.created_at.until(now))));
            let run = &change.run;
            if run.status().is_final() && !change.was.is_some_and(RunStatus::is_final) {
                milestones.push(Self::Run(CompletedRun {
                    run_id: run.run_id,
                    engine: run.settings.engine.clone(),
                    status: run.status(),
                    created_at: run.created_at,
                    ended_at: now,
                    turns: run.turn_index,
                }));
            }
        }
        milestones
    }
}

fn turned(change: &RunChange, turn: &Turn) -> CompletedTurn {
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
