//! Arrival of a message: it starts a turn, waits for one, is added to the running one, or replaces it.

use alloc::{string::String, sync::Arc};

use super::{
    ApplyOutcome, HeldProcess, NextTurn, RunState, RunningPhase, StopReason,
    transition::{INBOX_LIMIT, RunTransition},
};
use crate::{
    effect::Effect,
    inbound::{InboundMessage, InboundStatus, MessageKey},
    interaction::CloseReason,
    process::Attempt,
    refused::RequestRefused,
    settings::OnBusy,
    turn::{ExecutionStatus, TurnSupersession, TurnTrigger},
};

impl RunTransition {
    pub(super) fn on_message_arrived(
        &mut self,
        message: &InboundMessage,
        on_busy: Option<OnBusy>,
    ) -> Result<ApplyOutcome, RequestRefused> {
        let waiting =
            self.run.inbox.iter().filter(|it| it.execution_status == InboundStatus::Received).count();
        if let RunState::Finished(_) = self.run.state {
            return Err(RequestRefused::RunFinished { status: self.run.status() });
        }
        if waiting >= INBOX_LIMIT {
            return Err(RequestRefused::InboxFull { limit: INBOX_LIMIT });
        }
        self.run.receive(message, self.at);
        self.run.consecutive_auto_decisions = 0;
        if let RunState::Idle { held } = &self.run.state {
            let live = held.as_ref().map(|(live, _)| live.clone());
            self.continue_or_finish(live);
            return Ok(ApplyOutcome::Changed);
        }
        match on_busy.unwrap_or(self.run.settings.on_busy) {
            OnBusy::Queue => {}
            OnBusy::Steer => self.steer(message),
            OnBusy::Supersede => self.supersede(message),
        }
        Ok(ApplyOutcome::Changed)
    }

    /// Without the ability, or without a running turn, the message waits for its own turn.
    fn steer(&mut self, message: &InboundMessage) {
        let RunState::Running(RunningPhase::Active(active)) = &self.run.state else { return };
        if !self.run.abilities.steer {
            return;
        }
        let attempt = active.live.attempt;
        self.request_effect(Effect::Steer {
            attempt,
            message: message.key.clone(),
            text: message.text.clone(),
        });
    }

    /// Replaces the running or next turn by the message (E9). A person's answer is never discarded: a message cannot
    /// overtake it.
    fn supersede(&mut self, message: &InboundMessage) {
        match &self.run.state {
            RunState::Queued { since, next } => {
                let (since, TurnTrigger::Message(replaced)) = (*since, next.trigger.clone()) else { return };
                self.move_to_front(message, Some(&replaced));
                self.run.state = RunState::Queued { since, next: NextTurn::from_message(message) };
            }
            RunState::Running(RunningPhase::Stopping(stopping)) => {
                let replaced = match stopping.reason {
                    StopReason::Superseded => self.run.next_message().map(|next| next.trigger),
                    StopReason::Interrupted | StopReason::Shutdown => None,
                };
                let mut stopping = stopping.clone();
                stopping.reason = StopReason::Superseded;
                self.run.state = RunState::Running(RunningPhase::Stopping(stopping));
                match replaced {
                    Some(TurnTrigger::Message(key)) => self.move_to_front(message, Some(&key)),
                    Some(TurnTrigger::Reply(_)) | None => self.move_to_front(message, None),
                }
                self.mark_superseded(message);
            }
            RunState::Running(RunningPhase::Active(active)) if self.run.is_sticky() => {
                let live = active.live.clone();
                self.move_to_front(message, None);
                self.mark_superseded(message);
                self.stop_turn(live, StopReason::Superseded, "a newer message");
            }
            RunState::WaitingUser(waiting) => {
                let held_process = waiting.held_process.clone();
                self.move_to_front(message, None);
                self.mark_superseded(message);
                self.run.waiting_gates.clear();
                self.close_questions(CloseReason::Superseded);
                match held_process {
                    HeldProcess::Turn { live, .. } if self.run.is_sticky() => {
                        self.stop_turn(live, StopReason::Superseded, "a newer message")
                    }
                    HeldProcess::Turn { live, .. } => self.end_process_and_replace(Some(live.attempt)),
                    HeldProcess::Session(live) => {
                        self.begin_turn(NextTurn::from_message(message), Some(live))
                    }
                    HeldProcess::None => self.queue(NextTurn::from_message(message)),
                }
            }
            // Only the lost process can continue the session. The message is sent first when the process is found.
            RunState::Running(RunningPhase::Recovering(_)) if self.run.is_sticky() => {
                self.move_to_front(message, None)
            }
            RunState::Running(
                RunningPhase::Probing
                | RunningPhase::Launching(_)
                | RunningPhase::Active(_)
                | RunningPhase::Recovering(_),
            ) => {
                let attempt = self.run.attempt();
                self.move_to_front(message, None);
                self.mark_superseded(message);
                self.end_process_and_replace(attempt);
            }
            RunState::Idle { .. } | RunState::Finished(_) => {}
        }
    }

    /// The session can be resumed, so the old process is ended before the new one starts.
    fn end_process_and_replace(&mut self, attempt: Option<Attempt>) {
        self.cancel_effects(|effect| matches!(effect, Effect::Probe { .. }));
        if let Some(attempt) = attempt {
            self.end_attempt(attempt);
        }
        self.replace_superseded(None);
    }

    /// Marks the running turn as replaced. Its output is not shown from now on.
    fn mark_superseded(&mut self, message: &InboundMessage) {
        let turn = self.turn();
        if turn.superseded.is_none() && !turn.execution_status.is_final() {
            turn.superseded = Some(TurnSupersession {
                by_message: message.key.clone(),
                by_turn: None,
                reason: String::from("a newer message took its place"),
            });
        }
        self.end_turn(ExecutionStatus::Superseded);
        self.suppress_turn();
    }

    /// Moves the newest message to the front of the inbox. The message that it replaces is superseded.
    fn move_to_front(&mut self, message: &InboundMessage, replaced: Option<&MessageKey>) {
        let at = self.at;
        for inbound in self.run.inbox.iter_mut().filter(|inbound| Some(&inbound.message.key) == replaced) {
            Arc::make_mut(inbound).set_status(InboundStatus::Superseded, at);
        }
        if let Some(index) = self.run.inbox.iter().position(|inbound| inbound.message.key == message.key) {
            let newest = self.run.inbox.remove(index);
            self.run.inbox.insert(0, newest);
        }
    }
}
