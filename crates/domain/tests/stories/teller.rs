//! The one place that knows how to tell a story to the domain.

use abide_domain::{
    deadline::{Deadline, DeadlineKind},
    delivery::Certainty,
    effect::{Effect, EffectNumber},
    engine::{Abilities, Handle, HandleType, Profile, ProfileKind},
    event::{Aftermath, Ending, Event, NewRun, Retry},
    failure::{Failure, FailureCode},
    id::{Fresh, InteractionId, RunId, TurnId},
    inbound::{Message, MessageKey},
    interaction::{Choice, Interaction, Kind, Policy, Purpose, Question},
    process::{Attempt, Exit, Position, Process},
    refused::Refused,
    reply::{Answerer, Reply},
    run::{self, News, Run, Step},
    settings::{ExecutionMode, OnBusy, Settings, Unanswered},
    time::{Seconds, Stamp, Timestamp},
};

/// A run and everything needed to go on with its story.
pub(crate) struct Story {
    run: Option<Run>,
    now: i64,
    told: u128,
    spoken: u64,
    news: News,
    /// Everything ever ordered, by name.
    pub(crate) ordered: Vec<&'static str>,
    /// Every event that followed another in its commit.
    pub(crate) happened: Vec<Event>,
}

/// What kind of run a story is about.
#[derive(Clone, Copy)]
pub(crate) struct About {
    pub(crate) kind: ProfileKind,
    pub(crate) mode: ExecutionMode,
    pub(crate) unanswered: Unanswered,
    pub(crate) abilities: Abilities,
    pub(crate) conversation: bool,
    pub(crate) turn_timeout: Option<u32>,
    pub(crate) announces: bool,
}

pub(crate) const RESUMABLE: About = About {
    kind: ProfileKind::Resumable,
    mode: ExecutionMode::Interactive,
    unanswered: Unanswered::Strict,
    abilities: Abilities { steer: false, recover: false },
    conversation: false,
    turn_timeout: None,
    announces: true,
};
pub(crate) const STICKY: About = About { kind: ProfileKind::StickyProcess, ..RESUMABLE };
pub(crate) const TIMEOUT: u32 = 600;

impl Story {
    /// A run that was created and has no slot yet.
    pub(crate) fn created(about: About) -> Self {
        let mut story = Self {
            run: None,
            now: 0,
            told: 0,
            spoken: 0,
            news: News::Changed,
            ordered: Vec::new(),
            happened: Vec::new(),
        };
        let settings = Settings {
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
        let run_id = RunId(Fresh(1));
        let new = NewRun {
            run_id,
            settings,
            message: message("m1", "task"),
            idempotency: None,
            rules: abide_domain::run::RULES,
        };
        story.tell(Event::RunCreated(Box::new(new)));
        story
    }

    /// A run whose first process is ordered.
    pub(crate) fn launching(about: About) -> Self {
        let mut story = Self::created(about);
        story.tell(Event::Admitted);
        let reason = "because".into();
        let profile = Profile { kind: about.kind, reason, session_timeout_sec: Seconds(TIMEOUT) };
        story.tell(Event::ProfileResolved {
            profile,
            abilities: about.abilities,
            handle: None,
            command: None,
        });
        story
    }

    /// A run whose first turn works in process 1 and has named its session.
    pub(crate) fn working(about: About) -> Self {
        let mut story = Self::launching(about);
        story.started(1);
        if about.announces {
            story.announces(1, "session-1");
        }
        story
    }

    /// A run that waits for the answer to the question with which its first turn ended.
    pub(crate) fn asking(about: About, policy: Policy) -> Self {
        let mut story = Self::working(about);
        story.asks(1, question(Kind::ChooseOne, policy));
        story
    }

    pub(crate) fn run(&self) -> &Run {
        self.run.as_ref().expect("every story begins with a run")
    }

    /// When the last event happened.
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

    // Telling.

    pub(crate) fn attempt(&mut self, event: Event) -> Result<(), Refused> {
        self.told += 100;
        self.now += 1_000_000;
        let stamp = Stamp { at: Timestamp(self.now), fresh: Fresh(self.told) };
        let step: Step = run::apply(self.run.as_ref(), &stamp, &event)?;
        self.ordered.extend(step.effects.iter().map(|owed| owed.effect.name()));
        self.news = step.news;
        self.run = Some(step.run);
        if let Some(event) = step.then {
            self.happened.push(event.clone());
            // In the same commit, so at the same moment.
            self.now -= 1_000_000;
            self.attempt(event)?;
        }
        Ok(())
    }

    pub(crate) fn tell(&mut self, event: Event) -> &mut Self {
        let name = event.name();
        self.attempt(event).unwrap_or_else(|refused| panic!("{name} was refused: {refused}"));
        self
    }

    /// Tells something that must change nothing.
    pub(crate) fn tell_in_vain(&mut self, event: Event) {
        let before = self.run().clone();
        let name = event.name();
        self.tell(event);
        assert_eq!((self.news, self.run()), (News::Absorbed, &before), "{name} is no news");
    }

    pub(crate) fn refuses(&mut self, event: Event) -> Refused {
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
        self.tell(Event::HandleAnnounced { attempt: Attempt(attempt), position, handle: handle(session) })
    }

    pub(crate) fn asks(&mut self, attempt: u32, question: Question) -> &mut Self {
        let ending = Ending::Asked { text: "thinking".into(), question };
        self.ends(attempt, ending)
    }

    pub(crate) fn completes(&mut self, attempt: u32, text: &str) -> &mut Self {
        self.ends(attempt, Ending::Completed { text: text.into() })
    }

    /// Ends the turn the way that the run's profile means: a sticky process lives on.
    pub(crate) fn ends(&mut self, attempt: u32, ending: Ending) -> &mut Self {
        let sticky = self.run().profile.as_ref().expect("it is resolved").kind == ProfileKind::StickyProcess;
        let aftermath = if sticky { Aftermath::Alive } else { Aftermath::Exited(Exit::Code(0)) };
        let (turn_id, position) = (self.turn(), self.position());
        self.tell(Event::TurnEnded { attempt: Attempt(attempt), turn_id, position, ending, aftermath })
    }

    pub(crate) fn raises(&mut self, attempt: u32, gate: &str, purpose: Purpose) -> &mut Self {
        let (attempt, turn_id, position) = (Attempt(attempt), self.turn(), self.position());
        let (gate, question) = (gate.into(), question(Kind::Confirm, Policy::EngineJudgement));
        self.tell(Event::GateRaised { attempt, turn_id, position, gate, purpose, question })
    }

    pub(crate) fn exits(&mut self, attempt: u32, exit: Exit) -> &mut Self {
        self.tell(Event::ProcessExited { attempt: Attempt(attempt), exit })
    }

    pub(crate) fn replies(&mut self, text: &str) -> &mut Self {
        let reply = reply(self.question().interaction_id, text, None);
        self.tell(Event::ReplyArrived { reply })
    }

    pub(crate) fn says(&mut self, id: &str, on_busy: OnBusy) -> &mut Self {
        self.tell(Event::MessageArrived { message: message(id, id), on_busy: Some(on_busy) })
    }

    pub(crate) fn admitted(&mut self) -> &mut Self {
        self.tell(Event::Admitted)
    }

    pub(crate) fn fails_to_launch(&mut self, attempt: u32, code: FailureCode, retry: Retry) -> &mut Self {
        let failure = Failure::new(code, "no");
        self.tell(Event::LaunchFailed { attempt: Attempt(attempt), failure, retry })
    }

    /// Carries out an order that nothing else reports.
    pub(crate) fn performs(&mut self, name: &str) -> &mut Self {
        let effect = self.number(name);
        self.tell(Event::EffectPerformed { effect })
    }

    pub(crate) fn number(&self, name: &str) -> EffectNumber {
        self.run().owed.iter().find(|owed| owed.effect.name() == name).expect("it is owed").number
    }

    /// Lets so many seconds pass in which nothing happens.
    pub(crate) fn passes(&mut self, seconds: u32) -> &mut Self {
        self.now += i64::from(seconds) * 1_000_000;
        self
    }

    /// Lets the run's deadline pass.
    pub(crate) fn deadline_passes(&mut self) -> &mut Self {
        let Deadline { at, kind } = self.run().deadline().expect("the run waits for a point in time");
        self.now = at.0;
        self.tell(Event::DeadlinePassed { deadline: kind })
    }

    pub(crate) fn waits_until(&self) -> Option<DeadlineKind> {
        self.run().deadline().map(|deadline| deadline.kind)
    }

    /// The result of the first pending delivery.
    pub(crate) fn delivery(&mut self, outcome: Result<(), Certainty>) -> &mut Self {
        let Effect::Deliver { delivery_id } = self.effect("Deliver") else { unreachable!() };
        self.tell(match outcome {
            Ok(()) => Event::DeliveryConfirmed { delivery_id },
            Err(certainty) => Event::DeliveryFailed { delivery_id, certainty },
        })
    }

    /// The latest turn.
    pub(crate) fn turn(&self) -> TurnId {
        self.run().turns.last().expect("a turn has begun").turn_id
    }

    pub(crate) fn position(&mut self) -> Position {
        self.spoken += 1;
        Position(self.spoken)
    }
}

pub(crate) fn started(attempt: u32) -> Event {
    Event::AttemptStarted { attempt: Attempt(attempt), process: process(attempt) }
}

pub(crate) fn process(attempt: u32) -> Process {
    Process { keeper: format!("k{attempt}"), pid: 100 + attempt, start_time: 7, boot_id: "b".into() }
}

pub(crate) fn handle(session: &str) -> Handle {
    Handle {
        engine: "any".into(),
        handle_type: HandleType::SessionId,
        handle_value: session.into(),
        created_at_turn: 1,
    }
}

pub(crate) fn message(id: &str, text: &str) -> Message {
    let key = MessageKey { channel: "api".into(), message_id: id.into() };
    Message { key, text: text.into() }
}

pub(crate) fn question(kind: Kind, policy: Policy) -> Question {
    Question {
        kind,
        prompt: "which?".into(),
        options: vec![
            Choice { label: "red".into(), safe: false },
            Choice { label: "green".into(), safe: true },
        ],
        ui_hints: None,
        default_decision_policy: policy,
        context: None,
        hidden: None,
    }
}

pub(crate) fn reply(interaction_id: InteractionId, text: &str, key: Option<&str>) -> Reply {
    let by = Answerer::Person("ada".into());
    Reply { interaction_id, text: text.into(), by, idempotency_key: key.map(Into::into) }
}
