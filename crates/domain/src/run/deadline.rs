//! Expiry of a deadline. It is ignored if the run no longer waits for it.

use super::{ApplyOutcome, RunState, RunningPhase, transition::RunTransition};
use crate::{
    deadline::DeadlineKind,
    failure::{FailureCode, RunFailure},
    policy::AutoDecideReason,
    settings::UnansweredPolicy,
};

impl RunTransition {
    pub(super) fn on_deadline_passed(&mut self, kind: DeadlineKind) -> ApplyOutcome {
        // A timer that fired early, or whose wait was settled, has no effect.
        if !self.run.deadline().is_some_and(|deadline| deadline.kind == kind && deadline.at <= self.at) {
            return ApplyOutcome::Ignored;
        }
        match kind {
            DeadlineKind::Answer(_) => match self.run.settings.unanswered {
                UnansweredPolicy::AutoDecide => self.decide_unanswered(AutoDecideReason::UserNoReply),
                UnansweredPolicy::Strict => self
                    .fail(RunFailure::new(FailureCode::InteractionWaitTimeout, self.texts().answer_timeout)),
            },
            DeadlineKind::Turn(_) => {
                self.fail(RunFailure::new(FailureCode::TurnTimeout, self.texts().turn_timeout));
            }
            DeadlineKind::Stop(_) => {
                let RunState::Running(RunningPhase::Stopping(stopping)) = &self.run.state else {
                    return ApplyOutcome::Ignored;
                };
                let stopping = stopping.clone();
                self.finish_stop(&stopping);
            }
            DeadlineKind::Recovery(_) => {
                self.resolve_unknown_outcome("contact with the engine was lost and not regained in time");
            }
            DeadlineKind::Idle(_) => {
                self.end_process();
                self.finish_exited_chat(self.texts().chat_idle);
            }
        }
        ApplyOutcome::Changed
    }
}
