//! Requests inside a turn. The process waits in both wait modes (A8).

use alloc::string::String;

use super::{
    ActiveAttempt, AnsweredGate, ApplyOutcome, HeldProcess, RecoveringAttempt, RunState, RunningPhase,
    transition::RunTransition,
};
use crate::{
    approval::ApprovalVerdict,
    effect::Effect,
    id::{InteractionId, TurnId},
    interaction::{CloseReason, GatePurpose, Interaction, InteractionOrigin, InteractionState, Question},
    process::{Attempt, OutputPosition},
    time::TimeSpan,
    turn::{ExecutionStatus, RuntimeStatus},
};

/// The maximum number of requests of one turn that wait behind the open one. Further requests are declined.
const MAX_WAITING_GATES: usize = 32;

/// The maximum number of answers of one turn that are kept for repeated requests. Requests with older answers would be
/// asked again.
const MAX_ANSWERED_GATES: usize = 64;

impl RunTransition {
    pub(super) fn on_gate_raised(
        &mut self,
        (attempt, turn_id): (Attempt, TurnId),
        position: OutputPosition,
        gate: &str,
        purpose: GatePurpose,
        question: &Question,
    ) -> ApplyOutcome {
        if !self.is_latest_turn(turn_id) || !self.accept_fact(attempt, position) {
            return ApplyOutcome::Ignored;
        }
        if self.is_gate_pending(gate) {
            return ApplyOutcome::Changed;
        }
        if let Some(answered) = self.run.answered_gates.iter().find(|answered| answered.gate == gate) {
            // The request was repeated after a reconnect and already has its answer.
            let answered = answered.clone();
            if !self.run.pending_effects.iter().any(|pending| pending.effect.answers_gate(gate)) {
                self.answer_gate(attempt, answered);
            }
            return ApplyOutcome::Changed;
        }
        if self.is_unconfirmed() {
            self.fail_unconfirmed();
            return ApplyOutcome::Changed;
        }
        let origin = InteractionOrigin::Gate { gate: String::from(gate), purpose };
        match &self.run.state {
            // The process produced output, so it is not lost.
            RunState::Running(RunningPhase::Recovering(
                recovering @ RecoveringAttempt { live: Some(live), .. },
            )) => {
                let live = recovering.recovered_process(self.at).unwrap_or_else(|| live.clone());
                let remaining_time = recovering.remaining_time;
                self.cancel_effects(|effect| matches!(effect, Effect::Recover { .. }));
                self.turn().runtime_status = RuntimeStatus::Active;
                self.ask(origin, question.clone(), HeldProcess::Turn { live, remaining_time });
            }
            RunState::Running(RunningPhase::Active(active)) => {
                let (live, remaining_time) = (active.live.clone(), self.remaining_turn_time(active));
                self.ask(origin, question.clone(), HeldProcess::Turn { live, remaining_time });
            }
            // Only one question is open at a time. The others wait and are not shown.
            RunState::WaitingUser(waiting) if matches!(waiting.held_process, HeldProcess::Turn { .. }) => {
                if self.run.waiting_gates.len() < MAX_WAITING_GATES {
                    let waiting = self.new_interaction(origin, question.clone());
                    self.run.waiting_gates.push(waiting);
                } else {
                    self.decline_gate(
                        attempt,
                        gate,
                        "Too many requests wait already, so this one is not approved.",
                    );
                }
            }
            RunState::Running(RunningPhase::Stopping(_)) => {
                self.decline_gate(attempt, gate, "The turn is being stopped.");
            }
            RunState::Queued { .. }
            | RunState::Running(
                RunningPhase::Probing | RunningPhase::Launching(_) | RunningPhase::Recovering(_),
            )
            | RunState::WaitingUser(_)
            | RunState::Idle { .. }
            | RunState::Finished(_) => {
                self.decline_gate(attempt, gate, "No turn is at work.");
            }
        }
        ApplyOutcome::Changed
    }

    pub(super) fn on_gate_withdrawn(
        &mut self,
        attempt: Attempt,
        position: OutputPosition,
        gate: &str,
    ) -> ApplyOutcome {
        if !self.accept_fact(attempt, position) {
            return ApplyOutcome::Ignored;
        }
        self.run.waiting_gates.retain(|interaction| !interaction.is_gate(gate));
        let open = self.run.interactions.iter().any(|question| question.is_open() && question.is_gate(gate));
        if open {
            self.close_questions(CloseReason::Withdrawn);
            self.open_next_gate_or_resume();
        }
        ApplyOutcome::Changed
    }

    /// Opens the next waiting request, or continues the turn.
    pub(super) fn open_next_gate_or_resume(&mut self) {
        let RunState::WaitingUser(waiting) = &self.run.state else { return };
        let HeldProcess::Turn { live, remaining_time } = waiting.held_process.clone() else {
            return;
        };
        if self.run.waiting_gates.is_empty() {
            let turn_deadline = remaining_time.map(|time| self.at.add_span(time));
            self.turn().execution_status = ExecutionStatus::Running;
            self.run.state = RunState::Running(RunningPhase::Active(ActiveAttempt { live, turn_deadline }));
        } else {
            let next = self.run.waiting_gates.remove(0);
            self.ask_prepared(next, HeldProcess::Turn { live, remaining_time });
        }
    }

    /// Whether this request is open or waiting.
    fn is_gate_pending(&self, gate: &str) -> bool {
        let open = self.run.interactions.iter().filter(|interaction| interaction.is_open());
        open.map(|open| &**open).chain(&self.run.waiting_gates).any(|asked| asked.is_gate(gate))
    }

    /// Sends an answer to the process that waits for it.
    pub(super) fn answer_gate(&mut self, attempt: Attempt, answered: AnsweredGate) {
        let AnsweredGate { gate, interaction_id, text, verdict } = answered;
        self.request_effect(Effect::Answer { attempt, interaction_id, gate, text, verdict });
    }

    /// Keeps an answer until the end of its turn, up to the limit.
    pub(super) fn record_gate_answer(&mut self, answered: AnsweredGate) {
        if self.run.answered_gates.len() == MAX_ANSWERED_GATES {
            self.run.answered_gates.remove(0);
        }
        self.run.answered_gates.push(answered);
    }

    /// Declines a request. Every request needs an answer, because the engine waits for it.
    fn decline_gate(&mut self, attempt: Attempt, gate: &str, text: &str) {
        let interaction_id = InteractionId(self.next_id_seed());
        self.request_effect(Effect::Answer {
            attempt,
            interaction_id,
            gate: String::from(gate),
            text: String::from(text),
            verdict: Some(ApprovalVerdict::Declined),
        });
    }

    /// The remaining execution time of the turn. Time spent waiting for a person does not count.
    pub(super) fn remaining_turn_time(&self, active: &ActiveAttempt) -> Option<TimeSpan> {
        active.turn_deadline.map(|deadline| self.at.span_until(deadline))
    }

    /// Creates an open interaction.
    pub(super) fn new_interaction(&mut self, origin: InteractionOrigin, question: Question) -> Interaction {
        Interaction {
            interaction_id: InteractionId(self.next_id_seed()),
            run_id: self.run.run_id,
            turn_id: self.turn_id(),
            origin,
            question,
            opened_at: self.at,
            deadline_at: None,
            state: InteractionState::Open,
        }
    }
}
