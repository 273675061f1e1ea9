//! [`RunService`] accepts each request once, independent of its sender and of repetitions.

use std::sync::Arc;

use abide_daemon::{RequestError, RequestOutcome, RunService};
use abide_domain::{
    deadline::DeadlineKind,
    effect::Effect,
    engine::{EngineInteractiveProfile, EngineSessionHandle, HandleType, ProfileKind, RunAbilities},
    event::{IdempotencyClaim, NewRun, ProcessAfterTurn, RunEvent, TurnOutcome},
    id::{InteractionId, RunId},
    inbound::{InboundMessage, MessageKey},
    interaction::{DecisionPolicy, InteractionKind, Question},
    policy::AutoDecideReason,
    process::{Attempt, ExitStatus, OutputPosition, ProcessBinding},
    refused::RequestRefused,
    reply::{InteractionReply, ReplyAuthor},
    run::{Run, RunStatus},
    settings::{ExecutionMode, OnBusy, RunSettings, UnansweredPolicy},
    time::Seconds,
};
use abide_ports::{
    clock::Clock,
    store::{Journal, JournalSeq, StoreQueries},
};
use abide_store::memory::{CrashPoint, MemoryStore};
use abide_testkit::clock::FakeClock;

/// A service with its own store.
struct RunServiceFixture {
    desk: RunService,
    store: Arc<MemoryStore>,
    clock: Arc<FakeClock>,
}

impl RunServiceFixture {
    async fn open(slots: usize) -> Self {
        let (store, clock) = (Arc::new(MemoryStore::new()), Arc::new(FakeClock::new()));
        let desk = RunService::open(store.clone(), clock.clone(), slots).await.expect("it opens");
        Self { desk, store, clock }
    }

    /// A new service on the same store.
    async fn reopen(&self, slots: usize) -> Self {
        let (store, clock) = (self.store.clone(), self.clock.clone());
        let desk = RunService::open(store.clone(), clock.clone(), slots).await.expect("it opens");
        Self { desk, store, clock }
    }

    fn new_run(&self, key: &str, fingerprint: &str) -> NewRun {
        let run_id = RunId(self.clock.stamp().id_seed);
        let idempotency = Some(IdempotencyClaim { key: key.into(), fingerprint: fingerprint.into() });
        NewRun {
            run_id,
            settings: settings(),
            message: message(&run_id.to_string()),
            idempotency,
            rules: abide_domain::run::CURRENT_RULES_VERSION,
        }
    }

    async fn create(&self, key: &str) -> RunId {
        match self.desk.create(self.new_run(key, "f")).await {
            Ok(RequestOutcome::Changed(run)) => run.run_id,
            other => panic!("a new run was expected, not {other:?}"),
        }
    }

    async fn run(&self, id: RunId) -> Run {
        self.store.run(id).await.expect("memory can be read").expect("the run exists")
    }

    async fn take(&self, run: RunId, event: RunEvent) -> Run {
        match self.desk.take(run, event).await {
            Ok(RequestOutcome::Changed(run)) => Arc::unwrap_or_clone(run),
            other => panic!("a change was expected, not {other:?}"),
        }
    }

    /// A run with a running turn, and the events of its process until the exit: session, question, end.
    async fn at_work(&self) -> (RunId, [RunEvent; 3]) {
        let (run, attempt) = (self.create("asking").await, Attempt(1));
        self.take(run, resolved()).await;
        let process = ProcessBinding { keeper: "k".into(), pid: 1, start_time: 1, boot_id: "b".into() };
        self.take(run, RunEvent::AttemptStarted { attempt, process }).await;
        let handle = EngineSessionHandle {
            engine: "any".into(),
            handle_type: HandleType::SessionId,
            handle_value: "s".into(),
            created_at_turn: 1,
        };
        let question = Question {
            kind: InteractionKind::OpenText,
            prompt: "which?".into(),
            options: vec![],
            ui_hints: None,
            default_decision_policy: DecisionPolicy::EngineJudgement,
            context: None,
            hidden: None,
        };
        let turn_id = self.run(run).await.turns[0].turn_id;
        let ending = TurnOutcome::Asked { text: String::new(), question };
        let said = [
            RunEvent::HandleAnnounced { attempt, position: OutputPosition(1), handle },
            RunEvent::TurnEnded {
                attempt,
                turn_id,
                position: OutputPosition(2),
                outcome: ending,
                process_after: ProcessAfterTurn::Alive,
            },
            RunEvent::ProcessExited { attempt, exit: ExitStatus::Code(0) },
        ];
        (run, said)
    }

    /// A run that asked a question.
    async fn asking(&self) -> (RunId, InteractionId) {
        let (run, said) = self.at_work().await;
        let Ok(RequestOutcome::Changed(waiting)) = self.desk.take_all(run, &said).await else {
            panic!("a change was expected");
        };
        (run, waiting.pending_interaction_id().expect("it waits"))
    }

    async fn journal(&self, run: RunId) -> Vec<&'static str> {
        let entries = self.store.entries_of(run, JournalSeq(0), 100).await.expect("memory can be read");
        entries.iter().map(|entry| entry.event.name()).collect()
    }
}

fn resolved() -> RunEvent {
    let profile = EngineInteractiveProfile {
        kind: ProfileKind::Resumable,
        reason: "so it is".into(),
        session_timeout_sec: Seconds(60),
    };
    RunEvent::ProfileResolved { profile, abilities: RunAbilities::default(), handle: None, command: None }
}

fn settings() -> RunSettings {
    RunSettings {
        engine: "any".into(),
        workspace: "w".into(),
        execution_mode: ExecutionMode::Interactive,
        conversation_ref: None,
        unanswered: UnansweredPolicy::AutoDecide,
        session_timeout_sec: Seconds(60),
        turn_timeout_sec: None,
        on_busy: OnBusy::Queue,
        model: None,
        sandbox: None,
        isolation: None,
        skill: None,
        labels: Default::default(),
    }
}

fn message(id: &str) -> InboundMessage {
    InboundMessage { key: MessageKey { channel: "api".into(), message_id: id.into() }, text: "do it".into() }
}

fn reply(interaction_id: InteractionId, text: &str, key: Option<&str>) -> InteractionReply {
    let by = ReplyAuthor::Person("ada".into());
    InteractionReply { interaction_id, text: text.into(), by, idempotency_key: key.map(Into::into) }
}

#[tokio::test]
async fn the_same_request_makes_one_run_also_after_a_restart() {
    let fixture = RunServiceFixture::open(1).await;
    let run = fixture.create("k").await;
    for fixture in [&fixture, &fixture.reopen(1).await] {
        let again = fixture.desk.create(fixture.new_run("k", "f")).await.expect("it is answered");
        assert_eq!(again, RequestOutcome::Repeated(run));
        let mistake = fixture.desk.create(fixture.new_run("k", "another")).await;
        assert!(
            matches!(mistake, Err(RequestError::KeyReused { run_id, .. }) if run_id == run),
            "{mistake:?}"
        );
    }
}

#[tokio::test]
async fn e13_the_same_message_is_taken_once_for_ever() {
    let fixture = RunServiceFixture::open(1).await;
    let run = fixture.create("k").await;
    fixture.desk.message(run, message("m"), None).await.expect("it is taken");
    let again =
        fixture.desk.message(run, message("m"), Some(OnBusy::Supersede)).await.expect("it is answered");
    assert_eq!(again, RequestOutcome::Repeated(run));
    fixture.take(run, RunEvent::CancelRequested { by: "ada".into() }).await;
    let late = fixture.desk.message(run, message("m"), None).await.expect("it is answered, not refused");
    assert_eq!(late, RequestOutcome::Repeated(run));
}

#[tokio::test]
async fn a_free_slot_is_granted_in_the_commit_that_asks_for_it_and_the_queue_is_fair() {
    let fixture = RunServiceFixture::open(1).await;
    let (first, second, third) =
        (fixture.create("1").await, fixture.create("2").await, fixture.create("3").await);
    let statuses = [fixture.run(first).await.status(), fixture.run(second).await.status()];
    assert_eq!(statuses, [RunStatus::Running, RunStatus::Queued]);
    assert_eq!(fixture.desk.occupancy(), (1, 2));
    let places = [first, second, third].map(|run| fixture.desk.queue_position(run));
    assert_eq!(places, [None, Some(1), Some(2)]);
    fixture.take(first, RunEvent::CancelRequested { by: "ada".into() }).await;
    assert_eq!(fixture.desk.admit().await.expect("it admits").len(), 1);
    assert_eq!(fixture.run(second).await.status(), RunStatus::Running);
    assert_eq!(fixture.run(third).await.status(), RunStatus::Queued);
    let reopened = fixture.reopen(1).await.desk;
    assert_eq!(reopened.occupancy(), (1, 1), "a restart counts the same");
    assert_eq!(reopened.queue_position(third), Some(1));
}

#[tokio::test]
async fn d6_a_reply_is_taken_once_and_told_apart_from_a_late_one() {
    let fixture = RunServiceFixture::open(1).await;
    let (run, question) = fixture.asking().await;
    let first = fixture.desk.reply(reply(question, "red", Some("k"))).await.expect("it is taken");
    assert!(matches!(first, RequestOutcome::Changed(_)));
    let again = fixture.desk.reply(reply(question, "red", Some("k"))).await.expect("it is answered");
    assert_eq!(again, RequestOutcome::Repeated(run));
    let refused = |result| match result {
        Err(RequestError::Refused(refused)) => refused,
        other => panic!("a refusal was expected, not {other:?}"),
    };
    let conflict = refused(fixture.desk.reply(reply(question, "blue", Some("k"))).await);
    assert_eq!(conflict, RequestRefused::IdempotencyConflict { interaction_id: question });
    let stale = refused(fixture.desk.reply(reply(question, "red", None)).await);
    assert_eq!(stale, RequestRefused::StaleInteraction { interaction_id: question });
    assert_eq!(fixture.run(run).await.turn_index, 2, "one reply, one turn");
}

#[tokio::test]
async fn a_deadline_that_passed_before_is_no_news() {
    let fixture = RunServiceFixture::open(1).await;
    let (run, question) = fixture.asking().await;
    let fixture = fixture.reopen(1).await;
    fixture.clock.advance(61_000_000);
    let passed =
        || fixture.desk.take(run, RunEvent::DeadlinePassed { deadline: DeadlineKind::Answer(question) });
    assert!(matches!(passed().await.expect("it is due"), RequestOutcome::Changed(_)));
    assert_eq!(passed().await.expect("it is absorbed"), RequestOutcome::Absorbed);
    assert_eq!(fixture.run(run).await.auto_decision_count, 1);
}

#[tokio::test]
async fn d6_an_automatic_reply_is_in_the_journal_with_its_policy() {
    let fixture = RunServiceFixture::open(1).await;
    let (run, question) = fixture.asking().await;
    fixture.clock.advance(61_000_000);
    let deadline = DeadlineKind::Answer(question);
    fixture.desk.take(run, RunEvent::DeadlinePassed { deadline }).await.expect("it is due");
    let entries = fixture.store.entries_of(run, JournalSeq(0), 100).await.expect("memory can be read");
    let replies: Vec<&InteractionReply> = entries
        .iter()
        .filter_map(
            |entry| if let RunEvent::ReplyArrived { reply } = &entry.event { Some(reply) } else { None },
        )
        .collect();
    let [reply] = replies[..] else { panic!("{replies:?}") };
    assert_eq!(reply.interaction_id, question);
    let policy = entries.iter().find_map(|entry| {
        let RunEvent::TurnEnded { outcome: TurnOutcome::Asked { question, .. }, .. } = &entry.event else {
            return None;
        };
        Some(question.default_decision_policy)
    });
    let by = ReplyAuthor::Policy { reason: AutoDecideReason::UserNoReply, policy: policy.expect("it asked") };
    assert_eq!(reply.by, by);
}

/// A run of the first release continues under the present rules, and its journal records the change.
#[tokio::test]
async fn a_run_of_an_older_release_adopts_the_present_rules_with_its_next_event() {
    let fixture = RunServiceFixture::open(4).await;
    let mut new = fixture.new_run("old", "f");
    new.rules = 0;
    let run = new.run_id;
    fixture.desk.create(new).await.expect("it is created");
    let refused = InteractionReply {
        interaction_id: InteractionId(fixture.clock.stamp().id_seed),
        text: "no".into(),
        by: ReplyAuthor::Person("ada".into()),
        idempotency_key: None,
    };
    fixture.desk.take(run, RunEvent::ReplyArrived { reply: refused }).await.expect_err("nothing was asked");
    assert_eq!(fixture.run(run).await.rules, 0, "a refused request changes nothing");
    fixture.desk.message(run, message("m2"), None).await.expect("it is taken");
    assert_eq!(fixture.run(run).await.rules, abide_domain::run::CURRENT_RULES_VERSION);
    let entries = fixture.store.entries_of(run, JournalSeq(0), 100).await.expect("memory can be read");
    let names: Vec<_> = entries.iter().map(|entry| entry.event.name()).collect();
    assert_eq!(names, ["RunCreated", "Admitted", "RulesAdopted", "MessageArrived"]);
    let tables = abide_ports::store::RunTables::derive(&entries).expect("the journal adds up");
    assert_eq!(tables.run.as_ref(), Some(&fixture.run(run).await));
}

#[tokio::test]
async fn two_desks_on_one_store_lose_nothing_to_each_other() {
    let fixture = RunServiceFixture::open(4).await;
    let run = fixture.create("k").await;
    let other = fixture.reopen(4).await;
    for number in 0..20 {
        let desk = if number % 2 == 0 { &fixture.desk } else { &other.desk };
        desk.message(run, message(&format!("m{number}")), None).await.expect("it is taken");
    }
    let entries = fixture.store.entries_of(run, JournalSeq(0), 100).await.expect("memory can be read");
    let messages = entries.iter().filter(|entry| entry.event.name() == "MessageArrived").count();
    assert_eq!((messages, fixture.run(run).await.revision), (20, entries.len() as u64));
}

#[tokio::test]
async fn several_events_are_committed_together_or_not_at_all() {
    for (point, written) in [(CrashPoint::BeforeWrite, false), (CrashPoint::AfterWrite, true)] {
        let fixture = RunServiceFixture::open(1).await;
        let (run, said) = fixture.at_work().await;
        let before = fixture.journal(run).await;
        fixture.store.crash_at(point);
        let crashed = fixture.desk.take_all(run, &said).await;
        assert!(matches!(crashed, Err(RequestError::Store(_))), "{crashed:?}");
        let news = fixture.journal(run).await.split_off(before.len());
        let all = ["HandleAnnounced", "TurnEnded", "ProcessExited"];
        assert_eq!(news, if written { &all[..] } else { &[] });
        // The next daemon reports all events again, one by one or in one batch, with the same result.
        let fixture = fixture.reopen(1).await;
        let again = fixture.desk.take_all(run, &said).await.expect("it is taken");
        assert_eq!(again == RequestOutcome::Absorbed, written);
        for event in said {
            assert_eq!(
                fixture.desk.take(run, event).await.expect("it is absorbed"),
                RequestOutcome::Absorbed
            );
        }
        assert_eq!(fixture.journal(run).await.split_off(before.len()), all);
        assert!(
            fixture.run(run).await.pending_effects.is_empty(),
            "a process that has gone need not be ended"
        );
        assert_eq!(fixture.desk.occupancy(), (0, 0));
    }
}

#[tokio::test]
async fn an_event_that_is_refused_or_late_does_not_spoil_those_that_come_with_it() {
    let fixture = RunServiceFixture::open(1).await;
    let (run, [handle, ended, exited]) = fixture.at_work().await;
    let before = fixture.journal(run).await.len();
    let told = vec![handle.clone(), RunEvent::Admitted, handle, ended, exited];
    let outcome = fixture.desk.take_all(run, &told).await.expect("new facts are accepted");
    assert!(matches!(outcome, RequestOutcome::Changed(run) if run.status() == RunStatus::WaitingUser));
    assert_eq!(
        fixture.journal(run).await.split_off(before),
        ["HandleAnnounced", "TurnEnded", "ProcessExited"]
    );
    let refused = fixture.desk.take_all(run, &[RunEvent::Admitted, RunEvent::ConversationActive]).await;
    assert!(matches!(refused, Err(RequestError::Refused(RequestRefused::NotQueued { .. }))), "{refused:?}");
}

#[tokio::test]
async fn a_slot_that_a_run_gives_free_is_its_own_again_only_if_no_run_waits_longer() {
    let fixture = RunServiceFixture::open(1).await;
    let (first, said) = fixture.at_work().await;
    let waits = fixture.create("waits").await;
    fixture.desk.message(first, message("m"), None).await.expect("it is taken");
    let [handle, ended, exited] = said;
    let RunEvent::TurnEnded { attempt, turn_id, position, process_after: aftermath, .. } = ended else {
        panic!("an end")
    };
    let ending = TurnOutcome::Completed { text: "done".into() };
    let ended = RunEvent::TurnEnded { attempt, turn_id, position, outcome: ending, process_after: aftermath };
    // The message queues the run again, behind the one that has waited.
    fixture.desk.take_all(first, &[handle, ended, exited]).await.expect("it is taken");
    assert_eq!(fixture.run(first).await.status(), RunStatus::Queued);
    assert_eq!(fixture.desk.admit().await.expect("it admits"), [waits]);
    fixture.take(waits, RunEvent::CancelRequested { by: "ada".into() }).await;
    assert_eq!(fixture.desk.admit().await.expect("it admits"), [first]);
}

#[tokio::test]
async fn a_cached_result_is_committed_with_its_effect() {
    let fixture = RunServiceFixture::open(1).await;
    fixture.desk.set_cached_probes(Arc::new(|run| {
        let probes = run.pending_effects.iter().any(|owed| matches!(owed.effect, Effect::Probe { .. }));
        probes.then(resolved)
    }));
    let (first, second) = (fixture.create("1").await, fixture.create("2").await);
    assert_eq!(fixture.journal(first).await, ["RunCreated", "Admitted", "ProfileResolved"]);
    assert_eq!(fixture.journal(second).await, ["RunCreated"], "there is no slot for it");
    fixture.take(first, RunEvent::CancelRequested { by: "ada".into() }).await;
    fixture.desk.admit().await.expect("it admits");
    assert_eq!(fixture.journal(second).await, ["RunCreated", "Admitted", "ProfileResolved"]);
}

#[tokio::test]
async fn changes_of_another_desk_are_seen_before_a_request_is_refused() {
    let fixture = RunServiceFixture::open(1).await;
    let (run, question) = fixture.asking().await;
    let other = fixture.reopen(1).await;
    other.desk.reply(reply(question, "red", None)).await.expect("it is taken");
    // This service still has the question as open and the run as waiting in its cache.
    let cancel = fixture.take(run, RunEvent::CancelRequested { by: "ada".into() }).await;
    assert_eq!(cancel.turn_index, 2);
    let late = other.desk.take(run, RunEvent::CancelRequested { by: "bob".into() }).await;
    assert!(matches!(late, Err(RequestError::Refused(_))), "{late:?}");
}
