//! Guesses the next event of a run from its state. The domain refuses or ignores an event that does not fit.

use abide_domain::{
    delivery::DeliveryFailure,
    effect::Effect,
    engine::{EngineInteractiveProfile, ProfileKind, RunAbilities},
    event::{LaunchRetry, ProcessAfterTurn, RunEvent, TurnOutcome},
    id::{IdSeed, RunId, TurnId},
    interaction::GatePurpose,
    process::{Attempt, ExitStatus, OutputPosition},
    reply::{InteractionReply, ReplyAuthor},
    run::{Run, RunState, RunningPhase},
    time::Seconds,
};

use super::HistoryGenerator;

impl HistoryGenerator {
    /// Returns an event that usually fits the run's state.
    pub(super) fn propose_event(&mut self, run_id: RunId) -> RunEvent {
        let run = self.runs[&run_id].clone();
        if self.rng.chance(25)
            && let Some(owed) = run.pending_effects.first()
        {
            return self.settle_event(owed.number, &owed.effect, &run);
        }
        match self.rng.below(100) {
            0..6 => return RunEvent::MessageArrived { message: self.message(), on_busy: self.maybe_busy() },
            6..8 => return RunEvent::CancelRequested { by: self.text() },
            8..10 => return RunEvent::InterruptRequested { by: self.text() },
            10..13 => return RunEvent::ConversationActive,
            13 => return RunEvent::ShutdownRequested,
            14..18 => return self.deadline_event(&run),
            18..20 => {
                if let Some(live) = run.live() {
                    return RunEvent::ContactLost { attempt: live.attempt, search_timeout_sec: None };
                }
            }
            _ => {}
        }
        match &run.state {
            RunState::Queued { .. } => RunEvent::Admitted,
            RunState::Running(RunningPhase::Probing) => self.probe_event(),
            RunState::Running(RunningPhase::Launching(launching)) => {
                self.launch_event(launching.attempt, &run)
            }
            RunState::Running(RunningPhase::Active(active)) => {
                if let (true, Some(handle)) = (active.live.must_confirm_session, &run.handle) {
                    let (attempt, position) =
                        (active.live.attempt, OutputPosition(active.live.processed_position.0 + 1));
                    return RunEvent::HandleAnnounced { attempt, position, handle: handle.clone() };
                }
                self.output_event((active.live.attempt, latest_turn(&run)), active.live.processed_position)
            }
            RunState::Running(RunningPhase::Stopping(stopping)) => {
                let (attempt, position) = (stopping.live.attempt, stopping.live.processed_position);
                let ending = TurnOutcome::Interrupted;
                RunEvent::TurnEnded {
                    attempt,
                    turn_id: latest_turn(&run),
                    position: OutputPosition(position.0 + 1),
                    outcome: ending,
                    process_after: self.process_after_turn(),
                }
            }
            RunState::Running(RunningPhase::Recovering(recovering)) => {
                self.recovery_event((recovering.attempt, latest_turn(&run)))
            }
            RunState::WaitingUser(waiting) => {
                let by = ReplyAuthor::Person(self.text());
                let idempotency_key = self.rng.chance(50).then(|| self.text());
                let text = self.answer(&run);
                let reply =
                    InteractionReply { interaction_id: waiting.interaction_id, text, by, idempotency_key };
                RunEvent::ReplyArrived { reply }
            }
            RunState::Idle { .. } => {
                RunEvent::MessageArrived { message: self.message(), on_busy: self.maybe_busy() }
            }
            RunState::Finished(_) => RunEvent::ConversationActive,
        }
    }

    /// Returns one of the suggested answers, or another text.
    fn answer(&mut self, run: &Run) -> String {
        let open = run.interactions.iter().find(|question| question.is_open());
        let suggested: Vec<_> =
            open.into_iter().flat_map(|it| &it.question.options).map(|option| option.label.clone()).collect();
        let text = if suggested.is_empty() || self.rng.chance(50) {
            self.text()
        } else {
            self.rng.choose_nonempty(&suggested)
        };
        // An approval accepts only yes or no.
        match open.is_some_and(|question| question.is_approval()) {
            true if text.len() % 2 == 0 => "yes".to_owned(),
            true => format!("no, {text}"),
            false => text,
        }
    }

    fn maybe_busy(&mut self) -> Option<abide_domain::settings::OnBusy> {
        self.rng.chance(60).then(|| self.on_busy())
    }

    fn settle_event(
        &mut self,
        number: abide_domain::effect::EffectNumber,
        effect: &Effect,
        run: &Run,
    ) -> RunEvent {
        match effect {
            Effect::Deliver { delivery_id } if self.rng.chance(60) => {
                RunEvent::DeliveryConfirmed { delivery_id: *delivery_id }
            }
            Effect::Deliver { delivery_id } => {
                let certainty =
                    self.rng.choose_nonempty(&[DeliveryFailure::Failed, DeliveryFailure::Unknown]);
                RunEvent::DeliveryFailed { delivery_id: *delivery_id, certainty }
            }
            Effect::Terminate { attempt } => {
                RunEvent::ProcessExited { attempt: *attempt, exit: ExitStatus::Code(143) }
            }
            Effect::Probe { .. } => self.probe_event(),
            Effect::Launch { attempt } => self.launch_event(*attempt, run),
            Effect::Recover { attempt, turn_id } => self.recovery_event((*attempt, *turn_id)),
            Effect::SendPrompt { .. }
            | Effect::Answer { .. }
            | Effect::Steer { .. }
            | Effect::Interrupt { .. } => {
                debug_assert!(!run.pending_effects.is_empty());
                if self.rng.chance(10) {
                    return RunEvent::EffectObsolete { effect: number };
                }
                RunEvent::EffectPerformed { effect: number }
            }
        }
    }

    fn probe_event(&mut self) -> RunEvent {
        if self.rng.chance(5) {
            return RunEvent::EngineUnusable { failure: self.failure() };
        }
        let kind = self.rng.choose_nonempty(&[ProfileKind::Resumable, ProfileKind::StickyProcess]);
        let profile =
            EngineInteractiveProfile { kind, reason: self.text(), session_timeout_sec: Seconds(900) };
        let abilities = RunAbilities { steer: self.rng.chance(50), recover: self.rng.chance(50) };
        let handle = self.rng.chance(50).then(|| self.handle());
        RunEvent::ProfileResolved { profile, abilities, handle, command: None }
    }

    /// A launch that failed once is likely to fail again.
    fn launch_event(&mut self, attempt: Attempt, run: &Run) -> RunEvent {
        let tries = run.turns.last().map_or(0, |turn| turn.attempts.len());
        if self.rng.chance(if tries > 1 { 50 } else { 10 }) {
            let retry = self.rng.choose_nonempty(&[LaunchRetry::Later, LaunchRetry::Never]);
            return RunEvent::LaunchFailed { attempt, failure: self.failure(), retry };
        }
        RunEvent::AttemptStarted { attempt, process: self.process() }
    }

    fn output_event(
        &mut self,
        (attempt, turn_id): (Attempt, TurnId),
        output_position: OutputPosition,
    ) -> RunEvent {
        let position = OutputPosition(output_position.0 + 1 + self.rng.below(3) as u64);
        match self.rng.below(12) {
            0..3 => RunEvent::Progressed { attempt, position, text: self.text() },
            3..5 => RunEvent::HandleAnnounced { attempt, position, handle: self.handle() },
            5 | 6 => {
                let purpose = self.rng.choose_nonempty(&[GatePurpose::Approval, GatePurpose::Input]);
                let gate = format!("gate {}", self.rng.below(4));
                RunEvent::GateRaised { attempt, turn_id, position, gate, purpose, question: self.question() }
            }
            7 => RunEvent::ContactLost { attempt, search_timeout_sec: None },
            8 if self.rng.chance(30) => {
                let exit = self.rng.choose_nonempty(&[ExitStatus::Code(1), ExitStatus::Unknown]);
                RunEvent::ProcessExited { attempt, exit }
            }
            _ => {
                let (ending, aftermath) = (self.turn_outcome(), self.process_after_turn());
                RunEvent::TurnEnded { attempt, turn_id, position, outcome: ending, process_after: aftermath }
            }
        }
    }

    fn turn_outcome(&mut self) -> TurnOutcome {
        match self.rng.below(8) {
            0..3 => TurnOutcome::Completed { text: self.text() },
            3..7 => TurnOutcome::Asked { text: self.text(), question: self.question() },
            _ => TurnOutcome::Failed { failure: self.failure() },
        }
    }

    fn process_after_turn(&mut self) -> ProcessAfterTurn {
        if self.rng.chance(60) {
            ProcessAfterTurn::Alive
        } else {
            ProcessAfterTurn::Exited(ExitStatus::Code(0))
        }
    }

    fn recovery_event(&mut self, (attempt, turn_id): (Attempt, TurnId)) -> RunEvent {
        match self.rng.below(3) {
            0 => RunEvent::ContactRestored { attempt, process: self.process() },
            1 => RunEvent::RecoveryFailed { attempt, reason: self.text() },
            _ => {
                let (position, aftermath) = (OutputPosition(1_000_000), self.process_after_turn());
                RunEvent::TurnEnded {
                    attempt,
                    turn_id,
                    position,
                    outcome: self.turn_outcome(),
                    process_after: aftermath,
                }
            }
        }
    }

    /// Advances the clock to the run's deadline.
    fn deadline_event(&mut self, run: &Run) -> RunEvent {
        let Some(deadline) = run.deadline() else { return RunEvent::ConversationActive };
        self.now = self.now.max(deadline.at.0);
        RunEvent::DeadlinePassed { deadline: deadline.kind }
    }
}

/// Returns the current turn. Before the first turn any id will do.
fn latest_turn(run: &Run) -> TurnId {
    run.turns.last().map_or(TurnId(IdSeed(0)), |turn| turn.turn_id)
}
