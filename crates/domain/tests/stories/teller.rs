//! The harness that feeds events to the domain.

use abide_domain::{
    deadline::{Deadline, DeadlineKind},
    delivery::DeliveryFailure,
    effect::{Effect, EffectNumber, LaunchSession},
    engine::{EngineInteractiveProfile, EngineSessionHandle, HandleType, ProfileKind, RunAbilities},
    event::{LaunchRetry, NewRun, ProcessAfterTurn, RunEvent, TurnOutcome},
    failure::{FailureCode, RunFailure},
    id::{IdSeed, InteractionId, RunId, TurnId},
    inbound::{InboundMessage, MessageKey},
    interaction::{DecisionPolicy, GatePurpose, Interaction, InteractionKind, InteractionOption, Question},
    process::{Attempt, ExitStatus, OutputPosition, ProcessBinding},
    refused::RequestRefused,
    reply::{InteractionReply, ReplyAuthor},
    run::{self, ApplyOutcome, Run, RunStep},
    settings::{ExecutionMode, OnBusy, RunSettings, UnansweredPolicy},
    time::{EventStamp, Seconds, Timestamp},
};

/// A run with the clock and position for its next events.
pub(crate) struct RunStory {
    run: Option<Run>,
    now: i64,
    last_seed: u128,
    last_position: u64,
    last_outcome: ApplyOutcome,
    /// The names of all requested effects.
    pub(crate) requested_effects: Vec<&'static str>,
    /// Every event that followed another one in its commit.
    pub(crate) follow_up_events: Vec<RunEvent>,
}

/// The settings of a story's run.
#[derive(Clone, Copy)]
pub(crate) struct StorySettings {
    pub(crate) kind: ProfileKind,
    pub(crate) mode: ExecutionMode,
    pub(crate) unanswered: UnansweredPolicy,
    pub(crate) abilities: RunAbilities,
    pub(crate) conversation: bool,
    pub(crate) turn_timeout: Option<u32>,
    pub(crate) announces: bool,
    pub(crate) rules: u32,
}

pub(crate) const RESUMABLE: StorySettings = StorySettings {
    kind: ProfileKind::Resumable,
    mode: ExecutionMode::Interactive,
    unanswered: UnansweredPolicy::Strict,
    abilities: RunAbilities { steer: false, recover: false },
    conversation: false,
    turn_timeout: None,
    announces: true,
    rules: abide_domain::run::CURRENT_RULES_VERSION,
};
pub(crate) const STICKY: StorySettings = StorySettings { kind: ProfileKind::StickyProcess, ..RESUMABLE };
pub(crate) const SESSION_TIMEOUT_SEC: u32 = 600;

impl RunStory {
    /// A run that was created and has no slot yet.
    pub(crate) fn created(story_settings: StorySettings) -> Self {
        let mut story = Self {
            run: None,
            now: 0,
            last_seed: 0,
            last_position: 0,
            last_outcome: ApplyOutcome::Changed,
            requested_effects: Vec::new(),
            follow_up_events: Vec::new(),
        };
        let settings = RunSettings {
            engine: "any".into(),
            workspace: "/tmp/w".into(),
            execution_mode: story_settings.mode,
            conversation_ref: story_settings.conversation.then(|| "chat-1".into()),
            unanswered: story_settings.unanswered,
            session_timeout_sec: Seconds(SESSION_TIMEOUT_SEC),
            turn_timeout_sec: story_settings.turn_timeout.map(Seconds),
            on_busy: OnBusy::Queue,
            model: None,
            sandbox: None,
            isolation: None,
            skill: None,
            labels: Default::default(),
        };
        let run_id = RunId(IdSeed(1));
        let new = NewRun {
            run_id,
            settings,
            message: message("m1", "task"),
            idempotency: None,
            rules: story_settings.rules,
        };
        story.apply(RunEvent::RunCreated(Box::new(new)));
        story
    }

    /// A run whose first process was requested.
    pub(crate) fn launching(story_settings: StorySettings) -> Self {
        let mut story = Self::created(story_settings);
        story.apply(RunEvent::Admitted);
        let reason = "because".into();
        let profile = EngineInteractiveProfile {
            kind: story_settings.kind,
            reason,
            session_timeout_sec: Seconds(SESSION_TIMEOUT_SEC),
        };
        story.apply(RunEvent::ProfileResolved {
            profile,
            abilities: story_settings.abilities,
            handle: None,
            command: None,
        });
        story
    }

    /// A run whose first turn runs in process 1 and has announced its session.
    pub(crate) fn working(story_settings: StorySettings) -> Self {
        let mut story = Self::launching(story_settings);
        story.started(1);
        if story_settings.announces {
            story.announces(1, "session-1");
        }
        story
    }

    /// A run that waits for the answer to the question that ended its first turn.
    pub(crate) fn asking(story_settings: StorySettings, policy: DecisionPolicy) -> Self {
        let mut story = Self::working(story_settings);
        story.asks(1, question(InteractionKind::ChooseOne, policy));
        story
    }

    pub(crate) fn run(&self) -> &Run {
        self.run.as_ref().expect("every story begins with a run")
    }

    /// The time of the last event.
    pub(crate) fn now(&self) -> Timestamp {
        Timestamp(self.now)
    }

    pub(crate) fn detail(&self) -> String {
        self.run().state.detail()
    }

    pub(crate) fn failure(&self) -> Option<FailureCode> {
        self.run().error().map(|failure| failure.code)
    }

    /// The open question.
    pub(crate) fn question(&self) -> &Interaction {
        let open: Vec<_> = self.run().interactions.iter().filter(|it| it.is_open()).collect();
        assert_eq!(open.len(), 1, "a waiting run has exactly one question that can be answered");
        open[0]
    }

    pub(crate) fn pending_effects(&self) -> Vec<&'static str> {
        self.run().pending_effects.iter().map(|owed| owed.effect.name()).collect()
    }

    pub(crate) fn effect(&self, name: &str) -> Effect {
        self.run()
            .pending_effects
            .iter()
            .find(|owed| owed.effect.name() == name)
            .expect("it is owed")
            .effect
            .clone()
    }

    /// The attempt that is to be launched, with its session and prompt.
    pub(crate) fn pending_launch(&self) -> (Attempt, LaunchSession, String) {
        let Effect::Launch { attempt } = self.effect("Launch") else { unreachable!() };
        let turn = self.run().turns.last().expect("it has a turn");
        let record = turn.attempts.iter().find(|record| record.attempt == attempt).expect("it is recorded");
        (attempt, record.session.clone().expect("it has a session"), turn.prompt.clone())
    }

    // Events.

    pub(crate) fn try_apply(&mut self, event: RunEvent) -> Result<(), RequestRefused> {
        self.last_seed += 100;
        self.now += 1_000_000;
        let stamp = EventStamp { at: Timestamp(self.now), id_seed: IdSeed(self.last_seed) };
        let step: RunStep = run::apply(self.run.as_ref(), &stamp, &event)?;
        self.requested_effects.extend(step.effects.iter().map(|owed| owed.effect.name()));
        self.last_outcome = step.outcome;
        self.run = Some(step.run);
        if let Some(event) = step.follow_up {
            self.follow_up_events.push(event.clone());
            // In the same commit, so at the same time.
            self.now -= 1_000_000;
            self.try_apply(event)?;
        }
        Ok(())
    }

    pub(crate) fn apply(&mut self, event: RunEvent) -> &mut Self {
        let name = event.name();
        self.try_apply(event).unwrap_or_else(|refused| panic!("{name} was refused: {refused}"));
        self
    }

    /// Applies an event that must change nothing.
    pub(crate) fn apply_ignored(&mut self, event: RunEvent) {
        let before = self.run().clone();
        let name = event.name();
        self.apply(event);
        assert_eq!((self.last_outcome, self.run()), (ApplyOutcome::Ignored, &before), "{name} is no news");
    }

    pub(crate) fn expect_refusal(&mut self, event: RunEvent) -> RequestRefused {
        let before = self.run().clone();
        let refused = self.try_apply(event).expect_err("it must be refused");
        assert_eq!(self.run(), &before);
        refused
    }

    pub(crate) fn started(&mut self, attempt: u32) -> &mut Self {
        self.last_position = 0;
        self.apply(started(attempt))
    }

    pub(crate) fn announces(&mut self, attempt: u32, session: &str) -> &mut Self {
        let position = self.next_position();
        self.apply(RunEvent::HandleAnnounced { attempt: Attempt(attempt), position, handle: handle(session) })
    }

    pub(crate) fn asks(&mut self, attempt: u32, question: Question) -> &mut Self {
        let ending = TurnOutcome::Asked { text: "thinking".into(), question };
        self.ends(attempt, ending)
    }

    pub(crate) fn completes(&mut self, attempt: u32, text: &str) -> &mut Self {
        self.ends(attempt, TurnOutcome::Completed { text: text.into() })
    }

    /// Ends the turn as the run's profile requires: a sticky process stays alive.
    pub(crate) fn ends(&mut self, attempt: u32, ending: TurnOutcome) -> &mut Self {
        let sticky = self.run().profile.as_ref().expect("it is resolved").kind == ProfileKind::StickyProcess;
        let aftermath =
            if sticky { ProcessAfterTurn::Alive } else { ProcessAfterTurn::Exited(ExitStatus::Code(0)) };
        let (turn_id, position) = (self.turn(), self.next_position());
        self.apply(RunEvent::TurnEnded {
            attempt: Attempt(attempt),
            turn_id,
            position,
            outcome: ending,
            process_after: aftermath,
        })
    }

    pub(crate) fn raise_gate(&mut self, attempt: u32, gate: &str, purpose: GatePurpose) -> &mut Self {
        let (attempt, turn_id, position) = (Attempt(attempt), self.turn(), self.next_position());
        let (gate, question) =
            (gate.into(), question(InteractionKind::Confirm, DecisionPolicy::EngineJudgement));
        self.apply(RunEvent::GateRaised { attempt, turn_id, position, gate, purpose, question })
    }

    pub(crate) fn exits(&mut self, attempt: u32, exit: ExitStatus) -> &mut Self {
        self.apply(RunEvent::ProcessExited { attempt: Attempt(attempt), exit })
    }

    pub(crate) fn replies(&mut self, text: &str) -> &mut Self {
        let reply = reply(self.question().interaction_id, text, None);
        self.apply(RunEvent::ReplyArrived { reply })
    }

    pub(crate) fn send_message(&mut self, id: &str, on_busy: OnBusy) -> &mut Self {
        self.apply(RunEvent::MessageArrived { message: message(id, id), on_busy: Some(on_busy) })
    }

    pub(crate) fn admitted(&mut self) -> &mut Self {
        self.apply(RunEvent::Admitted)
    }

    pub(crate) fn fails_to_launch(
        &mut self,
        attempt: u32,
        code: FailureCode,
        retry: LaunchRetry,
    ) -> &mut Self {
        let failure = RunFailure::new(code, "no");
        self.apply(RunEvent::LaunchFailed { attempt: Attempt(attempt), failure, retry })
    }

    /// Reports an effect that no other event settles.
    pub(crate) fn performs(&mut self, name: &str) -> &mut Self {
        let effect = self.effect_number(name);
        self.apply(RunEvent::EffectPerformed { effect })
    }

    pub(crate) fn effect_number(&self, name: &str) -> EffectNumber {
        self.run().pending_effects.iter().find(|owed| owed.effect.name() == name).expect("it is owed").number
    }

    /// Advances the clock without an event.
    pub(crate) fn advance_clock(&mut self, seconds: u32) -> &mut Self {
        self.now += i64::from(seconds) * 1_000_000;
        self
    }

    /// Lets the run's deadline pass.
    pub(crate) fn expire_deadline(&mut self) -> &mut Self {
        let Deadline { at, kind } = self.run().deadline().expect("the run waits for a point in time");
        self.now = at.0;
        self.apply(RunEvent::DeadlinePassed { deadline: kind })
    }

    pub(crate) fn deadline_kind(&self) -> Option<DeadlineKind> {
        self.run().deadline().map(|deadline| deadline.kind)
    }

    /// Reports the result of the first pending delivery.
    pub(crate) fn report_delivery(&mut self, outcome: Result<(), DeliveryFailure>) -> &mut Self {
        let Effect::Deliver { delivery_id } = self.effect("Deliver") else { unreachable!() };
        self.apply(match outcome {
            Ok(()) => RunEvent::DeliveryConfirmed { delivery_id },
            Err(certainty) => RunEvent::DeliveryFailed { delivery_id, certainty },
        })
    }

    /// The latest turn.
    pub(crate) fn turn(&self) -> TurnId {
        self.run().turns.last().expect("a turn has begun").turn_id
    }

    pub(crate) fn next_position(&mut self) -> OutputPosition {
        self.last_position += 1;
        OutputPosition(self.last_position)
    }
}

pub(crate) fn started(attempt: u32) -> RunEvent {
    RunEvent::AttemptStarted { attempt: Attempt(attempt), process: process(attempt) }
}

pub(crate) fn process(attempt: u32) -> ProcessBinding {
    ProcessBinding { keeper: format!("k{attempt}"), pid: 100 + attempt, start_time: 7, boot_id: "b".into() }
}

pub(crate) fn handle(session: &str) -> EngineSessionHandle {
    EngineSessionHandle {
        engine: "any".into(),
        handle_type: HandleType::SessionId,
        handle_value: session.into(),
        created_at_turn: 1,
    }
}

pub(crate) fn message(id: &str, text: &str) -> InboundMessage {
    let key = MessageKey { channel: "api".into(), message_id: id.into() };
    InboundMessage { key, text: text.into() }
}

pub(crate) fn question(kind: InteractionKind, policy: DecisionPolicy) -> Question {
    Question {
        kind,
        prompt: "which?".into(),
        options: vec![
            InteractionOption { label: "red".into(), safe: false },
            InteractionOption { label: "green".into(), safe: true },
        ],
        ui_hints: None,
        default_decision_policy: policy,
        context: None,
        hidden: None,
    }
}

pub(crate) fn reply(interaction_id: InteractionId, text: &str, key: Option<&str>) -> InteractionReply {
    let by = ReplyAuthor::Person("ada".into());
    InteractionReply { interaction_id, text: text.into(), by, idempotency_key: key.map(Into::into) }
}
