//! The harness that feeds events to the domain.

use abide_domain::{
    deadline::{Deadline, DeadlineKind},
    delivery::DeliveryFailure,
    effect::{Effect, EffectNumber},
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
    told: u128,
    spoken: u64,
    news: ApplyOutcome,
    /// The names of all requested effects.
    pub(crate) ordered: Vec<&'static str>,
    /// Every event that followed another one in its commit.
    pub(crate) happened: Vec<RunEvent>,
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
}

pub(crate) const RESUMABLE: StorySettings = StorySettings {
    kind: ProfileKind::Resumable,
    mode: ExecutionMode::Interactive,
    unanswered: UnansweredPolicy::Strict,
    abilities: RunAbilities { steer: false, recover: false },
    conversation: false,
    turn_timeout: None,
    announces: true,
};
pub(crate) const STICKY: StorySettings = StorySettings { kind: ProfileKind::StickyProcess, ..RESUMABLE };
pub(crate) const TIMEOUT: u32 = 600;

impl RunStory {
    /// A run that was created and has no slot yet.
    pub(crate) fn created(about: StorySettings) -> Self {
        let mut story = Self {
            run: None,
            now: 0,
            told: 0,
            spoken: 0,
            news: ApplyOutcome::Changed,
            ordered: Vec::new(),
            happened: Vec::new(),
        };
        let settings = RunSettings {
            engine: "any".into(),
            workspace: "/tmp/w".into(),
            execution_mode: about.mode,
            conversation_ref: about.conversation.then(|| "chat-1".into()),
            unanswered: about.unanswered,
            session_timeout_sec: Seconds(TIMEOUT),
            turn_timeout_sec: about.turn_timeout.map(Seconds),
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
            rules: abide_domain::run::RULES,
        };
        story.tell(RunEvent::RunCreated(Box::new(new)));
        story
    }

    /// A run whose first process was requested.
    pub(crate) fn launching(about: StorySettings) -> Self {
        let mut story = Self::created(about);
        story.tell(RunEvent::Admitted);
        let reason = "because".into();
        let profile =
            EngineInteractiveProfile { kind: about.kind, reason, session_timeout_sec: Seconds(TIMEOUT) };
        story.tell(RunEvent::ProfileResolved {
            profile,
            abilities: about.abilities,
            handle: None,
            command: None,
        });
        story
    }

    /// A run whose first turn runs in process 1 and has announced its session.
    pub(crate) fn working(about: StorySettings) -> Self {
        let mut story = Self::launching(about);
        story.started(1);
        if about.announces {
            story.announces(1, "session-1");
        }
        story
    }

    /// A run that waits for the answer to the question that ended its first turn.
    pub(crate) fn asking(about: StorySettings, policy: DecisionPolicy) -> Self {
        let mut story = Self::working(about);
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

    pub(crate) fn owed(&self) -> Vec<&'static str> {
        self.run().owed.iter().map(|owed| owed.effect.name()).collect()
    }

    pub(crate) fn effect(&self, name: &str) -> Effect {
        self.run().owed.iter().find(|owed| owed.effect.name() == name).expect("it is owed").effect.clone()
    }

    // Events.

    pub(crate) fn attempt(&mut self, event: RunEvent) -> Result<(), RequestRefused> {
        self.told += 100;
        self.now += 1_000_000;
        let stamp = EventStamp { at: Timestamp(self.now), fresh: IdSeed(self.told) };
        let step: RunStep = run::apply(self.run.as_ref(), &stamp, &event)?;
        self.ordered.extend(step.effects.iter().map(|owed| owed.effect.name()));
        self.news = step.news;
        self.run = Some(step.run);
        if let Some(event) = step.then {
            self.happened.push(event.clone());
            // In the same commit, so at the same time.
            self.now -= 1_000_000;
            self.attempt(event)?;
        }
        Ok(())
    }

    pub(crate) fn tell(&mut self, event: RunEvent) -> &mut Self {
        let name = event.name();
        self.attempt(event).unwrap_or_else(|refused| panic!("{name} was refused: {refused}"));
        self
    }

    /// Applies an event that must change nothing.
    pub(crate) fn tell_in_vain(&mut self, event: RunEvent) {
        let before = self.run().clone();
        let name = event.name();
        self.tell(event);
        assert_eq!((self.news, self.run()), (ApplyOutcome::Absorbed, &before), "{name} is no news");
    }

    pub(crate) fn refuses(&mut self, event: RunEvent) -> RequestRefused {
        let before = self.run().clone();
        let refused = self.attempt(event).expect_err("it must be refused");
        assert_eq!(self.run(), &before);
        refused
    }

    pub(crate) fn started(&mut self, attempt: u32) -> &mut Self {
        self.spoken = 0;
        self.tell(started(attempt))
    }

    pub(crate) fn announces(&mut self, attempt: u32, session: &str) -> &mut Self {
        let position = self.position();
        self.tell(RunEvent::HandleAnnounced { attempt: Attempt(attempt), position, handle: handle(session) })
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
        let (turn_id, position) = (self.turn(), self.position());
        self.tell(RunEvent::TurnEnded { attempt: Attempt(attempt), turn_id, position, ending, aftermath })
    }

    pub(crate) fn raises(&mut self, attempt: u32, gate: &str, purpose: GatePurpose) -> &mut Self {
        let (attempt, turn_id, position) = (Attempt(attempt), self.turn(), self.position());
        let (gate, question) =
            (gate.into(), question(InteractionKind::Confirm, DecisionPolicy::EngineJudgement));
        self.tell(RunEvent::GateRaised { attempt, turn_id, position, gate, purpose, question })
    }

    pub(crate) fn exits(&mut self, attempt: u32, exit: ExitStatus) -> &mut Self {
        self.tell(RunEvent::ProcessExited { attempt: Attempt(attempt), exit })
    }

    pub(crate) fn replies(&mut self, text: &str) -> &mut Self {
        let reply = reply(self.question().interaction_id, text, None);
        self.tell(RunEvent::ReplyArrived { reply })
    }

    pub(crate) fn says(&mut self, id: &str, on_busy: OnBusy) -> &mut Self {
        self.tell(RunEvent::MessageArrived { message: message(id, id), on_busy: Some(on_busy) })
    }

    pub(crate) fn admitted(&mut self) -> &mut Self {
        self.tell(RunEvent::Admitted)
    }

    pub(crate) fn fails_to_launch(
        &mut self,
        attempt: u32,
        code: FailureCode,
        retry: LaunchRetry,
    ) -> &mut Self {
        let failure = RunFailure::new(code, "no");
        self.tell(RunEvent::LaunchFailed { attempt: Attempt(attempt), failure, retry })
    }

    /// Reports an effect that no other event settles.
    pub(crate) fn performs(&mut self, name: &str) -> &mut Self {
        let effect = self.number(name);
        self.tell(RunEvent::EffectPerformed { effect })
    }

    pub(crate) fn number(&self, name: &str) -> EffectNumber {
        self.run().owed.iter().find(|owed| owed.effect.name() == name).expect("it is owed").number
    }

    /// Advances the clock without an event.
    pub(crate) fn passes(&mut self, seconds: u32) -> &mut Self {
        self.now += i64::from(seconds) * 1_000_000;
        self
    }

    /// Lets the run's deadline pass.
    pub(crate) fn deadline_passes(&mut self) -> &mut Self {
        let Deadline { at, kind } = self.run().deadline().expect("the run waits for a point in time");
        self.now = at.0;
        self.tell(RunEvent::DeadlinePassed { deadline: kind })
    }

    pub(crate) fn waits_until(&self) -> Option<DeadlineKind> {
        self.run().deadline().map(|deadline| deadline.kind)
    }

    /// Reports the result of the first pending delivery.
    pub(crate) fn delivery(&mut self, outcome: Result<(), DeliveryFailure>) -> &mut Self {
        let Effect::Deliver { delivery_id } = self.effect("Deliver") else { unreachable!() };
        self.tell(match outcome {
            Ok(()) => RunEvent::DeliveryConfirmed { delivery_id },
            Err(certainty) => RunEvent::DeliveryFailed { delivery_id, certainty },
        })
    }

    /// The latest turn.
    pub(crate) fn turn(&self) -> TurnId {
        self.run().turns.last().expect("a turn has begun").turn_id
    }

    pub(crate) fn position(&mut self) -> OutputPosition {
        self.spoken += 1;
        OutputPosition(self.spoken)
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
