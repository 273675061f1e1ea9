//! A point in time was reached. If the run no longer waits for it, nothing happens.

use super::{News, RunState, Working, draft::Draft};
use crate::{
    deadline::DeadlineKind,
    failure::{Failure, FailureCode},
    policy::AutoReason,
    settings::Unanswered,
};

impl Draft {
    pub(super) fn deadline_passed(&mut self, kind: DeadlineKind) -> News {
        // A timer that rang early, or for something that was settled meanwhile, changes nothing.
        if !self.run.deadline().is_some_and(|deadline| deadline.kind == kind && deadline.at <= self.at) {
            return News::Absorbed;
        }
        match kind {
            DeadlineKind::Answer(_) => match self.run.settings.unanswered {
                Unanswered::AutoDecide => self.decide_unanswered(AutoReason::UserNoReply),
                Unanswered::Strict => self.fail(Failure::new(
                    FailureCode::InteractionWaitTimeout,
                    "nobody answered before the engine's process had to be ended",
                )),
            },
            DeadlineKind::Turn(_) => {
                self.fail(Failure::new(FailureCode::TurnTimeout, "the turn worked longer than it may"));
            }
            DeadlineKind::Stop(_) => {
                let RunState::Running(Working::Stopping(stopping)) = &self.run.state else {
                    return News::Absorbed;
                };
                let stopping = stopping.clone();
                self.stopped_for_good(&stopping);
            }
            DeadlineKind::Recovery(_) => {
                self.outcome_unknown("contact with the engine was lost and not regained in time");
            }
            DeadlineKind::Idling(_) => {
                self.end_process();
                self.let_go("the chat rested so long that its engine was let go; start a new one to go on");
            }
        }
        News::Changed
    }
}
