//! A turn is over: an answer, a question, a failure or a stop.

use alloc::string::String;

use super::{Finished, Hold, News, RunState, StopReason, Working, draft::Draft};
use crate::{
    delivery::Content,
    event::{Aftermath, Ending},
    failure::{Failure, FailureCode},
    id::TurnId,
    interaction::{Asker, Closing, Question},
    process::{Attempt, Live, Position},
    settings::ExecutionMode,
    turn::{ExecutionStatus, RuntimeStatus},
};

impl Draft {
    pub(super) fn turn_ended(
        &mut self,
        (attempt, turn_id): (Attempt, TurnId),
        position: Position,
        ending: &Ending,
        aftermath: Aftermath,
    ) -> News {
        // Only a turn that is not over can end; a sticky process between turns has nothing to end.
        let stop = match &self.run.state {
            RunState::Running(Working::Active(_) | Working::Recovering(_)) => None,
            RunState::Running(Working::Stopping(stopping)) => Some((stopping.reason, stopping.by.clone())),
            RunState::WaitingUser(waiting) if matches!(waiting.hold, Hold::Turn { .. }) => None,
            RunState::Running(Working::Probing | Working::Launching(_))
            | RunState::Queued { .. }
            | RunState::WaitingUser(_)
            | RunState::Idle { .. }
            | RunState::Finished(_) => return News::Absorbed,
        };
        if !self.is_latest_turn(turn_id) || !self.hears_the_end(attempt, position) {
            return News::Absorbed;
        }
        if let (RunState::WaitingUser(_), Ending::Failed { failure }, Aftermath::Exited(exit)) =
            (&self.run.state, ending, aftermath)
            && self.voids_requests()
        {
            // It did not go on without the answer: its process ended while it waited (A10).
            self.note_exit(attempt, exit);
            self.leave_dead_process();
            self.request_void(&failure.message);
            return News::Changed;
        }
        // The engine went on without an answer that it had asked for.
        self.run.waiting_gates.clear();
        self.close_questions(Closing::Withdrawn);
        let unconfirmed = self.is_unconfirmed();
        let live = self.settle_process(attempt, aftermath);
        let by = stop.as_ref().map(|(_, by)| by.clone()).unwrap_or_default();
        let reason = stop.map(|(reason, _)| reason);
        let is_shutdown = reason == Some(StopReason::Shutdown);
        match reason {
            Some(StopReason::Superseded) => self.replace_superseded(live),
            // It was superseded first and interrupted then: what it says counts no more.
            Some(StopReason::Interrupted) if !self.has_turn_at_work() => self.interrupted(live, &by),
            Some(StopReason::Shutdown) if !self.has_turn_at_work() => self.stopped_by_shutdown(live),
            Some(StopReason::Interrupted | StopReason::Shutdown) | None => match ending {
                // What was said in another session than the one asked for is not the answer (A4).
                Ending::Completed { .. } | Ending::Asked { .. } if unconfirmed => {
                    self.settle_without(live);
                    self.fail_unconfirmed();
                }
                Ending::Completed { text } => self.completed(text, live),
                Ending::Asked { text, question } => self.asked(text, question, live),
                Ending::Failed { failure } => {
                    self.settle_without(live);
                    self.turn_failed(failure.clone());
                }
                Ending::Interrupted if is_shutdown => self.stopped_by_shutdown(live),
                Ending::Interrupted => self.interrupted(live, &by),
            },
        }
        News::Changed
    }

    /// Like [`Draft::hears`], but the end of a turn that was lost before its process was seen counts too.
    fn hears_the_end(&mut self, attempt: Attempt, position: Position) -> bool {
        match &self.run.state {
            RunState::Running(Working::Recovering(recovering)) if recovering.live.is_none() => {
                recovering.attempt == attempt
            }
            RunState::Queued { .. }
            | RunState::Running(_)
            | RunState::WaitingUser(_)
            | RunState::Idle { .. }
            | RunState::Finished(_) => self.hears(attempt, position),
        }
    }

    /// What is left of the process: held if only it can go on, ended if a new one can take over.
    fn settle_process(&mut self, attempt: Attempt, aftermath: Aftermath) -> Option<Live> {
        match aftermath {
            Aftermath::Exited(exit) => {
                self.note_exit(attempt, exit);
                None
            }
            Aftermath::Alive if self.run.is_sticky() => {
                // What the ended turn was still to be told is moot.
                self.forgive(|effect| effect.attempt() == Some(attempt));
                if self.run.live().is_none() {
                    // Lost before it was ever seen: it cannot be held, so it is ended.
                    self.end_attempt(attempt);
                }
                self.run.live().cloned()
            }
            Aftermath::Alive => {
                self.end_attempt(attempt);
                self.turn().runtime_status = RuntimeStatus::Ended;
                None
            }
        }
    }

    /// Lets go of a process that was kept for a next turn which will not come.
    fn settle_without(&mut self, live: Option<Live>) {
        if let Some(live) = live {
            self.end_attempt(live.attempt);
        }
        // What the state still names is dealt with.
        self.run.state = RunState::Running(Working::Probing);
    }

    fn completed(&mut self, text: &str, live: Option<Live>) {
        self.turn().reply = Some(String::from(text));
        self.run.result = Some(String::from(text));
        self.run.has_history = true;
        self.end_turn(ExecutionStatus::Completed);
        let turn_id = self.turn_id();
        self.deliver(Content::Result(turn_id), Some(turn_id));
        let chat = self.run.settings.execution_mode == ExecutionMode::Chat;
        if chat && !self.run.is_sticky() && !self.run.handle_announced {
            // The answer is good, but there is nothing to go on with (A11).
            self.settle_without(live);
            return self.fail(Failure::new(
                FailureCode::SessionResumeFailed,
                "the engine answered without naming its session, so the chat cannot go on",
            ));
        }
        let sticky_chat = self.run.is_sticky() && chat;
        if sticky_chat && live.is_none() && self.run.next_message().is_none() {
            // The engine took its leave with its answer; there is nothing left to talk to.
            return self.finish(Finished::Succeeded);
        }
        self.go_on(live);
    }

    /// A turn that failed ends its run, except in a chat that can be resumed: there the person hears of it and may go on.
    pub(super) fn turn_failed(&mut self, failure: Failure) {
        let chat = self.run.settings.execution_mode == ExecutionMode::Chat;
        let resumes = !self.run.is_sticky() && self.run.handle_announced;
        if !chat || !resumes || failure.code == FailureCode::SessionResumeFailed {
            return self.fail(failure);
        }
        self.close_questions(Closing::RunFailed);
        self.turn().error = Some(failure);
        self.end_turn(ExecutionStatus::Failed);
        let turn_id = self.turn_id();
        self.deliver(Content::Result(turn_id), Some(turn_id));
        self.go_on(None);
    }

    /// The handle comes first, then the question: a question that cannot be resumed is not asked (A11).
    fn asked(&mut self, text: &str, question: &Question, live: Option<Live>) {
        let hold = match (self.run.is_sticky(), live) {
            (true, Some(live)) => Hold::Session(live),
            (true, None) => {
                self.settle_without(None);
                return self.fail(Failure::new(
                    FailureCode::InteractionProcessLost,
                    "the engine's process ended with its question and cannot be resumed",
                ));
            }
            (false, live) if !self.run.handle_announced => {
                self.settle_without(live);
                return self.fail(Failure::new(
                    FailureCode::SessionResumeFailed,
                    "the engine asked a question without naming its session, so it could not be resumed",
                ));
            }
            (false, _) => Hold::Nothing,
        };
        self.turn().reply = Some(String::from(text));
        let at = self.at;
        self.turn().result_persisted_at = Some(at);
        self.run.has_history = true;
        self.ask(Asker::TurnEnd, question.clone(), hold);
    }
}
