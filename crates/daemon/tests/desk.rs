//! The desk takes each thing once, whoever sends it and however often.

use std::sync::Arc;

use abide_daemon::{Desk, DeskError, Outcome};
use abide_domain::{
    deadline::DeadlineKind,
    engine::{Abilities, Handle, HandleType, Profile, ProfileKind},
    event::{Aftermath, Ending, Event, Idempotency, NewRun},
    id::{InteractionId, RunId},
    inbound::{Message, MessageKey},
    interaction::{Kind, Policy, Question},
    process::{Attempt, Exit, Position, Process},
    refused::Refused,
    reply::{Answerer, Reply},
    run::{Run, Status},
    settings::{ExecutionMode, OnBusy, Settings, Unanswered},
    time::Seconds,
};
use abide_ports::{
    clock::Clock,
    store::{Journal, Runs, Seq},
};
use abide_store::memory::MemoryStore;
use abide_testkit::clock::FakeClock;

/// A desk on a store of its own.
struct Office {
    desk: Desk,
    store: Arc<MemoryStore>,
    clock: Arc<FakeClock>,
}

impl Office {
    async fn open(slots: usize) -> Self {
        let (store, clock) = (Arc::new(MemoryStore::new()), Arc::new(FakeClock::new()));
        let desk = Desk::open(store.clone(), clock.clone(), slots).await.expect("it opens");
        Self { desk, store, clock }
    }

    /// The same store, another daemon.
    async fn reopen(&self, slots: usize) -> Self {
        let (store, clock) = (self.store.clone(), self.clock.clone());
        let desk = Desk::open(store.clone(), clock.clone(), slots).await.expect("it opens");
        Self { desk, store, clock }
    }

    fn new_run(&self, key: &str, fingerprint: &str) -> NewRun {
        let run_id = RunId(self.clock.stamp().fresh);
        let idempotency = Some(Idempotency { key: key.into(), fingerprint: fingerprint.into() });
        NewRun { run_id, settings: settings(), message: message(&run_id.to_string()), idempotency }
    }

    async fn create(&self, key: &str) -> RunId {
        match self.desk.create(self.new_run(key, "f")).await {
            Ok(Outcome::Changed(run)) => run.run_id,
            other => panic!("a new run was expected, not {other:?}"),
        }
    }

    async fn run(&self, id: RunId) -> Run {
        self.store.run(id).await.expect("memory can be read").expect("the run exists")
    }

    async fn take(&self, run: RunId, event: Event) -> Run {
        match self.desk.take(run, event).await {
            Ok(Outcome::Changed(run)) => *run,
            other => panic!("a change was expected, not {other:?}"),
        }
    }

    /// A run that asked a question.
    async fn asking(&self) -> (RunId, InteractionId) {
        let run = self.create("asking").await;
        let profile = Profile {
            kind: ProfileKind::Resumable,
            reason: "so it is".into(),
            session_timeout_sec: Seconds(60),
        };
        self.take(run, Event::ProfileResolved { profile, abilities: Abilities::default(), handle: None })
            .await;
        let process = Process { keeper: "k".into(), pid: 1, start_time: 1, boot_id: "b".into() };
        let attempt = Attempt(1);
        self.take(run, Event::AttemptStarted { attempt, process }).await;
        let handle = Handle {
            engine: "any".into(),
            handle_type: HandleType::SessionId,
            handle_value: "s".into(),
            created_at_turn: 1,
        };
        self.take(run, Event::HandleAnnounced { attempt, position: Position(1), handle }).await;
        let question = Question {
            kind: Kind::OpenText,
            prompt: "which?".into(),
            options: vec![],
            ui_hints: None,
            default_decision_policy: Policy::EngineJudgement,
        };
        let turn_id = self.run(run).await.turns[0].turn_id;
        let ending = Ending::Asked { text: String::new(), question };
        let aftermath = Aftermath::Exited(Exit::Code(0));
        let asked = Event::TurnEnded { attempt, turn_id, position: Position(2), ending, aftermath };
        let waiting = self.take(run, asked).await;
        (run, waiting.pending_interaction_id().expect("it waits"))
    }
}

fn settings() -> Settings {
    Settings {
        engine: "any".into(),
        workspace: "w".into(),
        execution_mode: ExecutionMode::Interactive,
        conversation_ref: None,
        unanswered: Unanswered::AutoDecide,
        session_timeout_sec: Seconds(60),
        turn_timeout_sec: None,
        on_busy: OnBusy::Queue,
        model: None,
        sandbox: None,
        skill: None,
        labels: Default::default(),
    }
}

fn message(id: &str) -> Message {
    Message { key: MessageKey { channel: "api".into(), message_id: id.into() }, text: "do it".into() }
}

fn reply(interaction_id: InteractionId, text: &str, key: Option<&str>) -> Reply {
    let by = Answerer::Person("ada".into());
    Reply { interaction_id, text: text.into(), by, idempotency_key: key.map(Into::into) }
}

#[tokio::test]
async fn the_same_request_makes_one_run_also_after_a_restart() {
    let office = Office::open(1).await;
    let run = office.create("k").await;
    for office in [&office, &office.reopen(1).await] {
        let again = office.desk.create(office.new_run("k", "f")).await.expect("it is answered");
        assert_eq!(again, Outcome::Repeated(run));
        let mistake = office.desk.create(office.new_run("k", "another")).await;
        assert!(matches!(mistake, Err(DeskError::KeyReused { run_id, .. }) if run_id == run), "{mistake:?}");
    }
}

#[tokio::test]
async fn e13_the_same_message_is_taken_once_for_ever() {
    let office = Office::open(1).await;
    let run = office.create("k").await;
    office.desk.message(run, message("m"), None).await.expect("it is taken");
    let again =
        office.desk.message(run, message("m"), Some(OnBusy::Supersede)).await.expect("it is answered");
    assert_eq!(again, Outcome::Repeated(run));
    office.take(run, Event::CancelRequested { by: "ada".into() }).await;
    let late = office.desk.message(run, message("m"), None).await.expect("it is answered, not refused");
    assert_eq!(late, Outcome::Repeated(run));
}

#[tokio::test]
async fn a_free_slot_is_granted_in_the_commit_that_asks_for_it_and_the_queue_is_fair() {
    let office = Office::open(1).await;
    let (first, second, third) =
        (office.create("1").await, office.create("2").await, office.create("3").await);
    let statuses = [office.run(first).await.status(), office.run(second).await.status()];
    assert_eq!(statuses, [Status::Running, Status::Queued]);
    assert_eq!(office.desk.occupancy(), (1, 2));
    let places = [first, second, third].map(|run| office.desk.queue_position(run));
    assert_eq!(places, [None, Some(1), Some(2)]);
    office.take(first, Event::CancelRequested { by: "ada".into() }).await;
    assert_eq!(office.desk.admit().await.expect("it admits").len(), 1);
    assert_eq!(office.run(second).await.status(), Status::Running);
    assert_eq!(office.run(third).await.status(), Status::Queued);
    let reopened = office.reopen(1).await.desk;
    assert_eq!(reopened.occupancy(), (1, 1), "a restart counts the same");
    assert_eq!(reopened.queue_position(third), Some(1));
}

#[tokio::test]
async fn d6_a_reply_is_taken_once_and_told_apart_from_a_late_one() {
    let office = Office::open(1).await;
    let (run, question) = office.asking().await;
    let first = office.desk.reply(reply(question, "red", Some("k"))).await.expect("it is taken");
    assert!(matches!(first, Outcome::Changed(_)));
    let again = office.desk.reply(reply(question, "red", Some("k"))).await.expect("it is answered");
    assert_eq!(again, Outcome::Repeated(run));
    let refused = |result| match result {
        Err(DeskError::Refused(refused)) => refused,
        other => panic!("a refusal was expected, not {other:?}"),
    };
    let conflict = refused(office.desk.reply(reply(question, "blue", Some("k"))).await);
    assert_eq!(conflict, Refused::IdempotencyConflict { interaction_id: question });
    let stale = refused(office.desk.reply(reply(question, "red", None)).await);
    assert_eq!(stale, Refused::StaleInteraction { interaction_id: question });
    assert_eq!(office.run(run).await.turn_index, 2, "one reply, one turn");
}

#[tokio::test]
async fn a_deadline_survives_a_restart_and_rings_once() {
    let office = Office::open(1).await;
    let (run, question) = office.asking().await;
    let office = office.reopen(1).await;
    let now = || office.clock.now();
    assert_eq!(office.desk.ring(now(), 9).await.expect("nothing is due"), 0);
    office.clock.advance(61_000_000);
    assert_eq!(office.desk.ring(now(), 9).await.expect("one is due"), 1);
    assert_eq!(office.run(run).await.auto_decision_count, 1);
    let late =
        office.desk.take(run, Event::DeadlinePassed { deadline: DeadlineKind::Answer(question) }).await;
    assert_eq!(late.expect("it is absorbed"), Outcome::Absorbed);
}

#[tokio::test]
async fn two_desks_on_one_store_lose_nothing_to_each_other() {
    let office = Office::open(4).await;
    let run = office.create("k").await;
    let other = office.reopen(4).await;
    for number in 0..20 {
        let desk = if number % 2 == 0 { &office.desk } else { &other.desk };
        desk.message(run, message(&format!("m{number}")), None).await.expect("it is taken");
    }
    let entries = office.store.entries_of(run, Seq(0), 100).await.expect("memory can be read");
    let messages = entries.iter().filter(|entry| entry.event.name() == "MessageArrived").count();
    assert_eq!((messages, office.run(run).await.revision), (20, entries.len() as u64));
}
