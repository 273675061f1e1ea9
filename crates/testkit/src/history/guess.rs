//! What might happen to a run next, judging by what it does. A bad guess is refused or absorbed and costs nothing.

use abide_domain::{
    delivery::Certainty,
    effect::Effect,
    engine::{Abilities, Profile, ProfileKind},
    event::{Aftermath, Ending, Event, Retry},
    id::{Fresh, RunId, TurnId},
    interaction::Purpose,
    process::{Attempt, Exit, Position},
    reply::{Answerer, Reply},
    run::{Run, RunState, Working},
    time::Seconds,
};

use super::Author;

impl Author {
    /// An event that fits the run's state more often than not.
    pub(super) fn guess(&mut self, run_id: RunId) -> Event {
        let run = self.runs[&run_id].clone();
        if self.dice.chance(25)
            && let Some(owed) = run.owed.first()
        {
            return self.settling(owed.number, &owed.effect, &run);
        }
        match self.dice.below(100) {
            0..6 => return Event::MessageArrived { message: self.message(), on_busy: self.maybe_busy() },
            6..8 => return Event::CancelRequested { by: self.text() },
            8..10 => return Event::InterruptRequested { by: self.text() },
            10..13 => return Event::ConversationSpoke,
            13 => return Event::ShutdownRequested,
            14..18 => return self.deadline(&run),
            18..20 => {
                if let Some(live) = run.live() {
                    return Event::ContactLost { attempt: live.attempt, within: None };
                }
            }
            _ => {}
        }
        match &run.state {
            RunState::Queued { .. } => Event::Admitted,
            RunState::Running(Working::Probing) => self.probed(),
            RunState::Running(Working::Launching(launching)) => self.launched(launching.attempt, &run),
            RunState::Running(Working::Active(active)) => {
                if let (true, Some(handle)) = (active.live.must_confirm, &run.handle) {
                    let (attempt, position) = (active.live.attempt, Position(active.live.heard.0 + 1));
                    return Event::HandleAnnounced { attempt, position, handle: handle.clone() };
                }
                self.said((active.live.attempt, latest_turn(&run)), active.live.heard)
            }
            RunState::Running(Working::Stopping(stopping)) => {
                let (attempt, heard) = (stopping.live.attempt, stopping.live.heard);
                let ending = Ending::Interrupted;
                Event::TurnEnded {
                    attempt,
                    turn_id: latest_turn(&run),
                    position: Position(heard.0 + 1),
                    ending,
                    aftermath: self.aftermath(),
                }
            }
            RunState::Running(Working::Recovering(recovering)) => {
                self.recovered((recovering.attempt, latest_turn(&run)))
            }
            RunState::WaitingUser(waiting) => {
                let by = Answerer::Person(self.text());
                let idempotency_key = self.dice.chance(50).then(|| self.text());
                let text = self.answer(&run);
                let reply = Reply { interaction_id: waiting.interaction_id, text, by, idempotency_key };
                Event::ReplyArrived { reply }
            }
            RunState::Idle { .. } => {
                Event::MessageArrived { message: self.message(), on_busy: self.maybe_busy() }
            }
            RunState::Finished(_) => Event::ConversationSpoke,
        }
    }

    /// One of the suggested answers, or anything else.
    fn answer(&mut self, run: &Run) -> String {
        let open = run.interactions.iter().find(|question| question.is_open());
        let suggested: Vec<_> =
            open.into_iter().flat_map(|it| &it.question.options).map(|option| option.label.clone()).collect();
        let text = if suggested.is_empty() || self.dice.chance(50) {
            self.text()
        } else {
            self.dice.pick(&suggested)
        };
        // An approval takes only a yes or a no.
        match open.is_some_and(|question| question.is_approval()) {
            true if text.len() % 2 == 0 => "yes".to_owned(),
            true => format!("no, {text}"),
            false => text,
        }
    }

    fn maybe_busy(&mut self) -> Option<abide_domain::settings::OnBusy> {
        self.dice.chance(60).then(|| self.on_busy())
    }

    fn settling(&mut self, number: abide_domain::effect::EffectNumber, effect: &Effect, run: &Run) -> Event {
        match effect {
            Effect::Deliver { delivery_id } if self.dice.chance(60) => {
                Event::DeliveryConfirmed { delivery_id: *delivery_id }
            }
            Effect::Deliver { delivery_id } => {
                let certainty = self.dice.pick(&[Certainty::Failed, Certainty::Unknown]);
                Event::DeliveryFailed { delivery_id: *delivery_id, certainty }
            }
            Effect::Terminate { attempt } => {
                Event::ProcessExited { attempt: *attempt, exit: Exit::Code(143) }
            }
            Effect::Probe { .. } => self.probed(),
            Effect::Launch { attempt, .. } => self.launched(*attempt, run),
            Effect::Recover { attempt, turn_id } => self.recovered((*attempt, *turn_id)),
            Effect::Say { .. } | Effect::Answer { .. } | Effect::Steer { .. } | Effect::Interrupt { .. } => {
                debug_assert!(!run.owed.is_empty());
                if self.dice.chance(10) {
                    return Event::EffectMissed { effect: number };
                }
                Event::EffectPerformed { effect: number }
            }
        }
    }

    fn probed(&mut self) -> Event {
        if self.dice.chance(5) {
            return Event::EngineUnusable { failure: self.failure() };
        }
        let kind = self.dice.pick(&[ProfileKind::Resumable, ProfileKind::StickyProcess]);
        let profile = Profile { kind, reason: self.text(), session_timeout_sec: Seconds(900) };
        let abilities = Abilities { steer: self.dice.chance(50), recover: self.dice.chance(50) };
        let handle = self.dice.chance(50).then(|| self.handle());
        Event::ProfileResolved { profile, abilities, handle, command: None }
    }

    /// What failed to start once is likely to fail again.
    fn launched(&mut self, attempt: Attempt, run: &Run) -> Event {
        let tries = run.turns.last().map_or(0, |turn| turn.attempts.len());
        if self.dice.chance(if tries > 1 { 50 } else { 10 }) {
            let retry = self.dice.pick(&[Retry::Later, Retry::Never]);
            return Event::LaunchFailed { attempt, failure: self.failure(), retry };
        }
        Event::AttemptStarted { attempt, process: self.process() }
    }

    fn said(&mut self, (attempt, turn_id): (Attempt, TurnId), heard: Position) -> Event {
        let position = Position(heard.0 + 1 + self.dice.below(3) as u64);
        match self.dice.below(12) {
            0..3 => Event::Progressed { attempt, position, text: self.text() },
            3..5 => Event::HandleAnnounced { attempt, position, handle: self.handle() },
            5 | 6 => {
                let purpose = self.dice.pick(&[Purpose::Approval, Purpose::Input]);
                let gate = format!("gate {}", self.dice.below(4));
                Event::GateRaised { attempt, turn_id, position, gate, purpose, question: self.question() }
            }
            7 => Event::ContactLost { attempt, within: None },
            8 if self.dice.chance(30) => {
                let exit = self.dice.pick(&[Exit::Code(1), Exit::Unseen]);
                Event::ProcessExited { attempt, exit }
            }
            _ => {
                let (ending, aftermath) = (self.ending(), self.aftermath());
                Event::TurnEnded { attempt, turn_id, position, ending, aftermath }
            }
        }
    }

    fn ending(&mut self) -> Ending {
        match self.dice.below(8) {
            0..3 => Ending::Completed { text: self.text() },
            3..7 => Ending::Asked { text: self.text(), question: self.question() },
            _ => Ending::Failed { failure: self.failure() },
        }
    }

    fn aftermath(&mut self) -> Aftermath {
        if self.dice.chance(60) { Aftermath::Alive } else { Aftermath::Exited(Exit::Code(0)) }
    }

    fn recovered(&mut self, (attempt, turn_id): (Attempt, TurnId)) -> Event {
        match self.dice.below(3) {
            0 => Event::ContactRestored { attempt, process: self.process() },
            1 => Event::RecoveryFailed { attempt, reason: self.text() },
            _ => {
                let (position, aftermath) = (Position(1_000_000), self.aftermath());
                Event::TurnEnded { attempt, turn_id, position, ending: self.ending(), aftermath }
            }
        }
    }

    /// The deadline passes, and time with it.
    fn deadline(&mut self, run: &Run) -> Event {
        let Some(deadline) = run.deadline() else { return Event::ConversationSpoke };
        self.now = self.now.max(deadline.at.0);
        Event::DeadlinePassed { deadline: deadline.kind }
    }
}

/// The turn at work; any other name will do before the first.
fn latest_turn(run: &Run) -> TurnId {
    run.turns.last().map_or(TurnId(Fresh(0)), |turn| turn.turn_id)
}
