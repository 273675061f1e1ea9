//! Versions of the rules. A journal of an older release is replayed with the rules of that release.
//!
//! A changed rule for an event that existing journals contain must check the run's version here. New events do not need
//! a check.

use super::{ApplyOutcome, RunState, transition::RunTransition};
use crate::{
    failure::{FailureCode, RunFailure},
    texts::{DerivedTexts, TEXTS, TEXTS_BEFORE_VERSION_4},
};

/// The rules of new runs.
///
/// | rules | change |
/// |---|---|
/// | 0 | the first release |
/// | 1 | a request inside a turn is void when its process ends (A10); automatic answers are events of their own (D6); a sticky run never fails with `SESSION_RESUME_FAILED`; late reports of the start and the exit of a process are recorded; a session that a lost process may have created with the id chosen by Abide is resumed |
/// | 2 | a person's answer to an approval must be a yes or a no, and any other answer is refused; the decision is recorded (I42, I43) |
/// | 3 | a message that is being added to a turn ends with it if Abide stops or supersedes the turn, because the process may have received it |
/// | 4 | other wording of failures, questions and instructions (`texts.rs`) |
pub const CURRENT_RULES_VERSION: u32 = 4;

impl RunTransition {
    /// Continues an older run under newer rules. The version never decreases.
    pub(super) fn on_rules_adopted(&mut self, rules: u32) -> ApplyOutcome {
        let finished = matches!(self.run.state, RunState::Finished(_));
        if finished || rules <= self.run.rules {
            return ApplyOutcome::Ignored;
        }
        self.run.rules = rules;
        ApplyOutcome::Changed
    }

    /// Whether a request inside a turn is void when its process ends.
    pub(super) fn voids_requests(&self) -> bool {
        self.run.rules >= 1
    }

    /// Whether the ledger records the end of failed launches, and late starts and exits of processes.
    pub(super) fn corrects_exits(&self) -> bool {
        self.run.rules >= 1
    }

    /// Whether a session that a lost process may have created with Abide's id is resumed.
    pub(super) fn resumes_lost_sessions(&self) -> bool {
        self.run.rules >= 1
    }

    /// Whether an automatic answer is a separate event.
    pub(super) fn auto_replies_are_events(&self) -> bool {
        self.run.rules >= 1
    }

    /// Whether an answer to an approval must be a yes or a no.
    pub(super) fn requires_clear_verdict(&self) -> bool {
        self.run.rules >= 2
    }

    /// The texts that the run's version derives.
    pub(super) fn texts(&self) -> &'static DerivedTexts {
        if self.run.rules >= 4 { &TEXTS } else { &TEXTS_BEFORE_VERSION_4 }
    }

    /// Whether a message that is being added to a turn ends with a turn that Abide stops or supersedes.
    pub(super) fn ends_steered_messages(&self) -> bool {
        self.run.rules >= 3
    }

    /// The failure code for a session that ended with its process.
    pub(super) fn lost_session_code(&self) -> FailureCode {
        if self.run.rules >= 1 {
            FailureCode::InteractionProcessLost
        } else {
            FailureCode::SessionResumeFailed
        }
    }

    /// `SESSION_RESUME_FAILED` applies to resumable runs only (A10). On a sticky run it becomes a failure of the
    /// engine.
    pub(super) fn normalize_failure_code(&self, failure: RunFailure) -> RunFailure {
        let is_inapplicable = failure.code == FailureCode::SessionResumeFailed && self.run.is_sticky();
        if is_inapplicable && self.run.rules >= 1 {
            return RunFailure::new(FailureCode::EngineFailed, failure.message);
        }
        failure
    }
}
