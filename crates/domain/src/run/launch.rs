//! A process was started, or could not be; it names its session and gets on.

use alloc::sync::Arc;

use super::{
    Launching, News, RunState, Working,
    draft::{Draft, LAUNCH_TRIES},
};
use crate::{
    effect::Effect,
    engine::Handle,
    event::Retry,
    failure::{Failure, FailureCode},
    id::TurnId,
    process::{Attempt, Live, Losses, Position, Process},
    time::Seconds,
    turn::RuntimeStatus,
};

/// How long to wait before another try, per try that failed.
const RETRY_PAUSE: Seconds = Seconds(2);

impl Draft {
    pub(super) fn attempt_started(&mut self, attempt: Attempt, process: &Process) -> News {
        let is_current = self.run.attempt() == Some(attempt);
        match &self.run.state {
            RunState::Running(Working::Launching(launching)) if is_current => {
                let must_confirm = launching.must_confirm;
                self.forgive(|effect| matches!(effect, Effect::Launch { .. }));
                let at = self.at;
                let turn = self.turn();
                turn.runtime_status = RuntimeStatus::Active;
                if let Some(record) = turn.attempt_mut(attempt) {
                    (record.process, record.started_at) = (Some(process.clone()), Some(at));
                }
                self.work_on(Live {
                    attempt,
                    process: process.clone(),
                    heard: Position::default(),
                    must_confirm,
                    losses: Losses::default(),
                });
                News::Changed
            }
            // Told twice.
            RunState::Running(_) | RunState::WaitingUser(_) | RunState::Idle { .. } if is_current => {
                News::Absorbed
            }
            // It was given up while it was being started, and the order to end it may have come too early to find
            // anything: a process that nobody waits for is ended.
            RunState::Queued { .. }
            | RunState::Running(_)
            | RunState::WaitingUser(_)
            | RunState::Idle { .. }
            | RunState::Finished(_) => {
                self.note_start(attempt, process);
                self.end_attempt(attempt);
                News::Changed
            }
        }
    }

    /// Notes which process an attempt is, for the ledger.
    fn note_start(&mut self, attempt: Attempt, process: &Process) {
        if !self.corrects_exits() {
            return;
        }
        let at = self.at;
        for turn in &mut self.run.turns {
            if let Some(record) = Arc::make_mut(turn).attempt_mut(attempt) {
                record.process.get_or_insert_with(|| process.clone());
                record.started_at.get_or_insert(at);
            }
        }
    }

    pub(super) fn launch_failed(&mut self, attempt: Attempt, failure: &Failure, retry: Retry) -> News {
        match self.run.state {
            RunState::Running(Working::Launching(Launching { attempt: current, tries, .. }))
                if current == attempt =>
            {
                self.forgive(|effect| matches!(effect, Effect::Launch { .. }));
                // Nothing was started, so there is nothing to end, and no exit code.
                let (at, dated) = (self.at, self.corrects_exits());
                let turn = self.turn();
                turn.runtime_status = RuntimeStatus::Ended;
                if let Some(record) = turn.attempt_mut(attempt).filter(|_| dated) {
                    record.ended_at = Some(at);
                }
                self.run.state = RunState::Running(Working::Probing);
                match retry {
                    Retry::Later if tries < LAUNCH_TRIES => {
                        let pause = Seconds(RETRY_PAUSE.0 * tries);
                        self.launch(tries + 1, self.at.plus(pause));
                    }
                    Retry::Later => self.failed_repeatedly(failure, tries),
                    Retry::Never => self.fail(failure.clone()),
                }
                News::Changed
            }
            RunState::Queued { .. }
            | RunState::Running(_)
            | RunState::WaitingUser(_)
            | RunState::Idle { .. }
            | RunState::Finished(_) => News::Absorbed,
        }
    }

    /// A resume is believed only when the id that the engine announces equals the id asked for (A4).
    pub(super) fn handle_announced(&mut self, attempt: Attempt, position: Position, handle: &Handle) -> News {
        if !self.hears(attempt, position) {
            return News::Absorbed;
        }
        let asked_for =
            self.run.handle.as_ref().filter(|_| self.run.handle_announced || self.run.has_history);
        match asked_for {
            Some(known) if known.handle_value != handle.handle_value => {
                let message = "the engine started another session instead of resuming the one asked for";
                self.fail(Failure::new(FailureCode::SessionResumeFailed, message));
            }
            Some(_) => {
                if let Some(live) = self.run.live_mut() {
                    live.must_confirm = false;
                }
            }
            None => {
                let created_at_turn = self.run.turn_index;
                self.run.handle = Some(Handle { created_at_turn, ..handle.clone() });
                self.run.handle_announced = true;
            }
        }
        News::Changed
    }

    /// Whether the process was told to go on with a session and has not said that it does.
    pub(super) fn is_unconfirmed(&self) -> bool {
        self.run.live().is_some_and(|live| live.must_confirm)
    }

    pub(super) fn fail_unconfirmed(&mut self) {
        let message = "the engine did not name the session that it was told to go on with";
        self.fail(Failure::new(FailureCode::SessionResumeFailed, message));
    }

    pub(super) fn progressed(&mut self, attempt: Attempt, position: Position) -> News {
        if self.hears(attempt, position) { News::Changed } else { News::Absorbed }
    }

    /// Whether this is the turn at work, and not an earlier one of the same process.
    pub(super) fn is_latest_turn(&self, turn_id: TurnId) -> bool {
        self.run.turns.last().is_some_and(|turn| turn.turn_id == turn_id)
    }

    /// Whether a fact of this attempt at this place of its speech is news. If so, it is now heard.
    pub(super) fn hears(&mut self, attempt: Attempt, position: Position) -> bool {
        let Some(live) = self.run.live_mut() else { return false };
        if live.attempt != attempt || position <= live.heard {
            return false;
        }
        live.heard = position;
        true
    }
}
