//! Opening of questions to a person: the engine's, or Abide's own when a run needs a decision.
//!
//! All questions are opened here, so a waiting run has exactly one open question.

use alloc::{format, string::String, sync::Arc, vec};

use super::{HeldProcess, RunCancellation, RunState, UserWait, transition::RunTransition};
use crate::{
    delivery::{DeliveryContent, DeliveryNotice, DeliveryStatus},
    effect::Effect,
    failure::{FailureCode, RunFailure},
    interaction::{
        CloseReason, DecisionPolicy, GatePurpose, Interaction, InteractionKind, InteractionOption,
        InteractionOrigin, Question, RuntimeQuestion,
    },
    policy::AutoDecideReason,
    process::LiveProcess,
    settings::{ExecutionMode, UnansweredPolicy},
    time::Timestamp,
    turn::ExecutionStatus,
};

/// The answer that gives up a turn that was lost or could not be started.
pub(super) const STOP_LABEL: &str = "stop";
/// The answer that continues after a lost turn.
pub(super) const CONTINUE_LABEL: &str = "continue";
/// The answer that retries a turn that could not be started.
pub(super) const RETRY_LABEL: &str = "try again";

impl RunTransition {
    pub(super) fn ask(&mut self, origin: InteractionOrigin, question: Question, held_process: HeldProcess) {
        let interaction = self.new_interaction(origin, question);
        self.ask_prepared(interaction, held_process);
    }

    pub(super) fn ask_prepared(&mut self, mut interaction: Interaction, held_process: HeldProcess) {
        let interaction_id = interaction.interaction_id;
        let deadline = self.answer_deadline(&held_process);
        (interaction.opened_at, interaction.deadline_at) = (self.at, deadline);
        match &interaction.origin {
            InteractionOrigin::Gate { purpose: GatePurpose::Approval, .. } => {
                self.turn().execution_status = ExecutionStatus::WaitingApproval;
            }
            InteractionOrigin::Gate { purpose: GatePurpose::Input, .. } | InteractionOrigin::TurnEnd => {
                self.turn().execution_status = ExecutionStatus::WaitingUserInput;
            }
            InteractionOrigin::Abide(_) => {}
        }
        let result_turn = match &interaction.origin {
            // The question includes the text or the failure of its turn.
            InteractionOrigin::TurnEnd | InteractionOrigin::Abide(RuntimeQuestion::FailedRepeatedly) => {
                Some(interaction.turn_id)
            }
            InteractionOrigin::Gate { .. }
            | InteractionOrigin::Abide(
                RuntimeQuestion::Interrupted
                | RuntimeQuestion::OutcomeUnknown
                | RuntimeQuestion::RequestVoid
                | RuntimeQuestion::StoppedByShutdown,
            ) => None,
        };
        self.run.interactions.push(Arc::new(interaction));
        self.run.state = RunState::WaitingUser(UserWait { interaction_id, held_process, deadline });
        match self.run.settings.execution_mode {
            // The question is decided automatically and not shown.
            ExecutionMode::Auto => {
                self.set_turn_delivery_status(result_turn, DeliveryStatus::Suppressed);
                self.decide_unanswered(AutoDecideReason::AutoMode);
            }
            ExecutionMode::Interactive | ExecutionMode::Chat => {
                self.deliver(DeliveryContent::Question(interaction_id), result_turn);
            }
        }
    }

    /// The deadline of the wait (D5). None if no process is held and only a person may answer.
    fn answer_deadline(&self, held_process: &HeldProcess) -> Option<Timestamp> {
        let at = self.at.add_seconds(self.run.session_timeout());
        match (self.run.settings.unanswered, held_process) {
            (UnansweredPolicy::AutoDecide, _) => Some(at),
            (UnansweredPolicy::Strict, HeldProcess::None) => None,
            (UnansweredPolicy::Strict, HeldProcess::Session(_) | HeldProcess::Turn { .. }) => {
                self.run.is_sticky().then_some(at)
            }
        }
    }

    /// Closes all open questions on all surfaces.
    pub(super) fn close_questions(&mut self, because: CloseReason) {
        let at = self.at;
        let mut closed = vec![];
        for interaction in self.run.interactions.iter_mut().filter(|interaction| interaction.is_open()) {
            let interaction = Arc::make_mut(interaction);
            interaction.close(because, at);
            closed.push(interaction.interaction_id);
        }
        for interaction_id in closed {
            self.retract_question(interaction_id);
        }
    }

    /// A person stopped the turn. The person is asked how to continue, except in a chat, where the next message says
    /// so.
    pub(super) fn finish_interrupted_turn(&mut self, live: Option<LiveProcess>, by: &str) {
        self.end_turn(ExecutionStatus::Interrupted);
        self.suppress_turn();
        let can_continue = live.is_some() || !self.run.is_sticky();
        if can_continue && self.run.next_message().is_some() {
            return self.continue_or_finish(live);
        }
        match self.run.settings.execution_mode {
            ExecutionMode::Chat if can_continue => self.idle(live),
            ExecutionMode::Interactive if can_continue => {
                let question = Question {
                    kind: InteractionKind::OpenText,
                    prompt: String::from("The turn was interrupted. What should happen next?"),
                    options: vec![],
                    ui_hints: None,
                    default_decision_policy: DecisionPolicy::Abort,
                    context: None,
                    hidden: None,
                };
                let held_process = live.map_or(HeldProcess::None, HeldProcess::Session);
                self.ask(InteractionOrigin::Abide(RuntimeQuestion::Interrupted), question, held_process);
            }
            ExecutionMode::Auto | ExecutionMode::Interactive | ExecutionMode::Chat => {
                if let Some(live) = live {
                    self.end_attempt(live.attempt);
                }
                self.run.state = RunState::Idle { held: None };
                let reason = RunFailure::new(FailureCode::CanceledByUser, "the turn was interrupted");
                let by = Some(String::from(by));
                self.cancel(RunCancellation { reason, by }, CloseReason::Stopped);
            }
        }
    }

    /// The outcome of the turn cannot be determined (E8). The turn is not repeated automatically, because it may have
    /// done its work.
    pub(super) fn resolve_unknown_outcome(&mut self, reason: &str) {
        // A message that was to be added to the turn was not accepted, so it waits for its own turn (E5).
        self.cancel_effects(|effect| matches!(effect, Effect::Steer { .. }));
        self.end_process();
        let failure = RunFailure::new(FailureCode::RecoveryFailed, reason);
        let resumable = !self.run.is_sticky() && (self.run.handle.is_some() || !self.run.has_history);
        self.turn().error = Some(failure.clone());
        self.end_turn(ExecutionStatus::RecoveryRequired);
        self.suppress_turn();
        self.close_questions(CloseReason::RunFailed);
        let turn_id = self.turn_id();
        self.run.state = RunState::Idle { held: None };
        match self.run.settings.execution_mode {
            ExecutionMode::Chat if resumable => {
                self.deliver(DeliveryContent::Notice(DeliveryNotice::OutcomeUnknown(turn_id)), None);
                self.continue_or_finish(None);
            }
            ExecutionMode::Interactive if resumable => {
                let prompt = "Contact with the engine was lost during this turn, and whether it finished its work \
                              is not known. Continue, or stop here? Any other text is passed on to the engine.";
                let question = continue_or_stop_question(String::from(prompt), CONTINUE_LABEL);
                self.ask(
                    InteractionOrigin::Abide(RuntimeQuestion::OutcomeUnknown),
                    question,
                    HeldProcess::None,
                );
            }
            ExecutionMode::Auto | ExecutionMode::Interactive | ExecutionMode::Chat => self.fail(failure),
        }
    }

    /// The turn could not be started after all retries. It had no effects, so a retry is safe. Only a person can
    /// request it, because the cause has persisted through the backoff (decision 0011).
    pub(super) fn ask_after_failed_launches(&mut self, failure: &RunFailure, tries: u32) {
        let stop_wording = match self.run.settings.execution_mode {
            ExecutionMode::Auto => return self.fail(failure.clone()),
            ExecutionMode::Interactive => "stop here",
            ExecutionMode::Chat => self.texts().skip_launch,
        };
        let unsent_prompt = self.texts().unsent_prompt;
        self.turn().error = Some(failure.clone());
        self.end_turn(ExecutionStatus::Failed);
        let prompt = format!(
            "The engine could not be started for this turn. It was tried {tries} times, the last time with: {}\n\
             Nothing of the turn was done. Try again, or {stop_wording}? Any other text is passed on to the engine, \
             together with {unsent_prompt}.",
            failure.message
        );
        // A launch is only requested if the session can be continued in a new process, so no process is held for the
        // answer.
        let question = continue_or_stop_question(prompt, RETRY_LABEL);
        self.ask(InteractionOrigin::Abide(RuntimeQuestion::FailedRepeatedly), question, HeldProcess::None);
    }

    /// The superseded turn has stopped; the newer message starts its turn.
    pub(super) fn replace_superseded(&mut self, live: Option<LiveProcess>) {
        self.end_turn(ExecutionStatus::Superseded);
        match self.run.next_message() {
            Some(next) => self.begin_turn(next, live),
            None => self.continue_or_finish(live),
        }
    }
}

/// A question of Abide itself. Its policy is to abort: without a person the run ends, so it cannot loop.
pub(super) fn continue_or_stop_question(prompt: String, continue_label: &str) -> Question {
    let choice = |label: &str, safe| InteractionOption { label: String::from(label), safe };
    Question {
        kind: InteractionKind::ChooseOne,
        prompt,
        options: vec![choice(continue_label, false), choice(STOP_LABEL, true)],
        ui_hints: None,
        default_decision_policy: DecisionPolicy::Abort,
        context: None,
        hidden: None,
    }
}
