//! Which rules a run follows, so that the journal of an older release adds up to what that release made of it.
//!
//! A rule that is changed for an event which journals already hold asks here first. A new event needs none of this.

use super::{ApplyOutcome, RunState, draft::RunTransition};
use crate::failure::{FailureCode, RunFailure};

/// The rules that new runs follow.
///
/// | rules | since then |
/// |---|---|
/// | 0 | the first release |
/// | 1 | a request inside a turn is void when its process ends (A10); automatic answers are events of their own (D6); a sticky run never fails with `SESSION_RESUME_FAILED`; starts and exits that are told late are recorded; a session that a lost process may have begun under our id is resumed |
/// | 2 | a person's answer to an approval is a yes or a no, anything else is refused; its meaning is recorded (I42, I43) |
pub const RULES: u32 = 2;

impl RunTransition {
    /// An older run goes on under newer rules. They are never older ones.
    pub(super) fn rules_adopted(&mut self, rules: u32) -> ApplyOutcome {
        let over = matches!(self.run.state, RunState::Finished(_));
        if over || rules <= self.run.rules {
            return ApplyOutcome::Absorbed;
        }
        self.run.rules = rules;
        ApplyOutcome::Changed
    }

    /// Whether a request inside a turn is void when its process ends.
    pub(super) fn voids_requests(&self) -> bool {
        self.run.rules >= 1
    }

    /// Whether the ledger dates the end of a launch that failed, and learns of a process whose start or exit is told late.
    pub(super) fn corrects_exits(&self) -> bool {
        self.run.rules >= 1
    }

    /// Whether a session that a lost process may have begun under our id is resumed.
    pub(super) fn resumes_lost_sessions(&self) -> bool {
        self.run.rules >= 1
    }

    /// Whether an automatic answer is an event of its own.
    pub(super) fn answers_are_events(&self) -> bool {
        self.run.rules >= 1
    }

    /// Whether an answer to an approval must be a yes or a no.
    pub(super) fn judges_approvals(&self) -> bool {
        self.run.rules >= 2
    }

    /// The code for a session that went with its process.
    pub(super) fn code_of_lost_session(&self) -> FailureCode {
        if self.run.rules >= 1 {
            FailureCode::InteractionProcessLost
        } else {
            FailureCode::SessionResumeFailed
        }
    }

    /// `SESSION_RESUME_FAILED` belongs to runs that resume (A10): on a sticky one it is the engine that failed.
    pub(super) fn failure_of_its_path(&self, failure: RunFailure) -> RunFailure {
        let misplaced = failure.code == FailureCode::SessionResumeFailed && self.run.is_sticky();
        if misplaced && self.run.rules >= 1 {
            return RunFailure::new(FailureCode::EngineFailed, failure.message);
        }
        failure
    }
}
