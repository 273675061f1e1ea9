//! The dispatcher accepts each request once, independent of its sender and of repetitions.

use std::{
    cell::RefCell,
    collections::VecDeque,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker},
};

use abide_daemon::{
    CrashGuard, Daemon, DaemonAction, DaemonConfig, DaemonDeps, DaemonInput, DaemonParts, EffectExecutor,
    RequestError, RequestOutcome, RunAction, RunInput, SpaceLimit,
};
use abide_domain::{
    deadline::DeadlineKind,
    engine::{EngineInteractiveProfile, EngineSessionHandle, HandleType, ProfileKind, RunAbilities},
    event::{IdempotencyClaim, NewRun, ProcessAfterTurn, RunEvent, TurnOutcome},
    id::{InteractionId, RunId},
    inbound::{InboundMessage, MessageKey},
    interaction::{DecisionPolicy, InteractionKind, Question},
    policy::AutoDecideReason,
    process::{Attempt, ExitStatus, OutputPosition, ProcessBinding},
    refused::RequestRefused,
    reply::{InteractionReply, ReplyAuthor},
    run::{self, Run, RunStatus},
    settings::{ExecutionMode, OnBusy, RunSettings, UnansweredPolicy},
    time::Seconds,
};
use abide_ports::{
    clock::Clock,
    store::{Journal, JournalSeq, StoreQueries},
};
use abide_store::memory::{CrashPoint, MemoryStore};
use abide_testkit::{
    clock::FakeClock,
    fake_engine::{ContentsInMemory, FakeCatalogue, FakeProcesses, NoopWorkspaces},
};
use tokio::sync::oneshot;

/// A daemon without an event loop. Commits and reads are performed at once, and no effect is.
struct DispatcherFixture {
    parts: RefCell<DaemonParts>,
    store: Arc<MemoryStore>,
    clock: Arc<FakeClock>,
}

impl DispatcherFixture {
    fn open(slots: usize) -> Self {
        Self::on(Arc::new(MemoryStore::new()), Arc::new(FakeClock::new()), slots)
    }

    /// A new daemon on the same store.
    fn reopen(&self, slots: usize) -> Self {
        Self::on(self.store.clone(), self.clock.clone(), slots)
    }

    fn on(store: Arc<MemoryStore>, clock: Arc<FakeClock>, slots: usize) -> Self {
        let deps = DaemonDeps {
            store: store.clone(),
            clock: clock.clone(),
            catalogue: Arc::new(FakeCatalogue),
            processes: Arc::new(FakeProcesses::new(|_| vec![])),
            workspaces: Arc::new(NoopWorkspaces),
            private: "private".to_owned(),
            recovery_max: Seconds(300),
            contents: Arc::<ContentsInMemory>::default(),
            space: SpaceLimit::none(),
        };
        let config = DaemonConfig { stall_after: Seconds(60), slots, workspaces: "w".into() };
        let guard = CrashGuard::none(clock.clone());
        let parts = now(Daemon::parts(deps, config, guard, run::apply)).expect("memory can be read");
        Self { parts: RefCell::new(parts), store, clock }
    }

    fn daemon(&self) -> Daemon {
        self.parts.borrow().daemon.clone()
    }

    /// The response to a request.
    fn ask<T>(&self, request: impl Future<Output = T>) -> T {
        let mut request = pin!(request);
        for _ in 0..10 {
            if let Some(response) = poll(request.as_mut()) {
                return response;
            }
            self.perform();
        }
        panic!("there is no response")
    }

    /// Passes the waiting inputs to the dispatcher, and performs what follows.
    fn perform(&self) {
        let parts = &mut *self.parts.borrow_mut();
        while let Ok(input) = parts.inputs.try_recv() {
            self.handle(parts, input);
        }
    }

    fn handle(&self, parts: &mut DaemonParts, input: DaemonInput) {
        let mut actions: VecDeque<DaemonAction> = parts.dispatcher.handle(input).into();
        while let Some(action) = actions.pop_front() {
            if let Some(result) = self.result_of(&parts.executor, action) {
                actions.extend(parts.dispatcher.handle(result));
            }
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "effects are not performed")]
    fn result_of(&self, executor: &EffectExecutor, action: DaemonAction) -> Option<DaemonInput> {
        let DaemonAction::Run { run, actor, action } = action else { return None };
        let input = match action {
            RunAction::Load => {
                let loaded = now(self.store.run(run)).expect("memory can be read").map(Arc::new);
                let survey = executor.survey(loaded.as_ref().map(|run| &*run.settings));
                RunInput::Loaded(Ok((loaded, survey)))
            }
            RunAction::Survey(settings) => RunInput::Surveyed(executor.survey(Some(&settings))),
            RunAction::Commit(commit) => RunInput::Committed(now(self.store.commit(commit)).map(|_| ())),
            RunAction::Reply { reply, result } => {
                reply.send(result).ok();
                return None;
            }
            _ => return None,
        };
        Some(DaemonInput::Run { run, actor: Some(actor), input })
    }

    fn try_take(&self, run: RunId, event: RunEvent) -> Result<RequestOutcome, RequestError> {
        let (reply, response) = oneshot::channel();
        let input =
            DaemonInput::Run { run, actor: None, input: RunInput::Request { event, reply, run: None } };
        self.handle(&mut self.parts.borrow_mut(), input);
        now(response).expect("it is answered")
    }

    fn take(&self, run: RunId, event: RunEvent) -> Run {
        match self.try_take(run, event) {
            Ok(RequestOutcome::Changed(run)) => Arc::unwrap_or_clone(run),
            other => panic!("a change was expected, not {other:?}"),
        }
    }

    /// Takes several events, which arrive while the run is being loaded.
    fn take_together(&self, run: RunId, events: &[RunEvent]) -> Vec<Result<RequestOutcome, RequestError>> {
        let parts = &mut *self.parts.borrow_mut();
        let (mut actions, mut responses) = (vec![], vec![]);
        for event in events.iter().cloned() {
            let (reply, response) = oneshot::channel();
            let input = RunInput::Request { event, reply, run: None };
            actions.extend(parts.dispatcher.handle(DaemonInput::Run { run, actor: None, input }));
            responses.push(response);
        }
        for action in actions {
            if let Some(result) = self.result_of(&parts.executor, action) {
                self.handle(parts, result);
            }
        }
        responses.into_iter().map(|response| now(response).expect("it is answered")).collect()
    }

    fn new_run(&self, key: &str, fingerprint: &str) -> NewRun {
        let run_id = RunId(self.clock.stamp().id_seed);
        let idempotency = Some(IdempotencyClaim { key: key.into(), fingerprint: fingerprint.into() });
        NewRun {
            run_id,
            settings: settings(&format!("w/{run_id}")),
            message: message(&run_id.to_string()),
            idempotency,
            rules: abide_domain::run::CURRENT_RULES_VERSION,
        }
    }

    fn create(&self, key: &str) -> RunId {
        match self.ask(self.daemon().create(self.new_run(key, "f"))) {
            Ok(RequestOutcome::Changed(run)) => run.run_id,
            other => panic!("a new run was expected, not {other:?}"),
        }
    }

    fn send(&self, run: RunId, id: &str, on_busy: Option<OnBusy>) -> Result<RequestOutcome, RequestError> {
        self.ask(self.daemon().message(run, message(id), on_busy))
    }

    fn reply(&self, reply: InteractionReply) -> Result<RequestOutcome, RequestError> {
        let daemon = self.daemon();
        let asked = now(daemon.question(reply.interaction_id)).expect("memory can be read");
        self.ask(daemon.reply(reply, asked.expect("it was asked")))
    }

    fn occupancy(&self) -> (usize, usize) {
        self.daemon().occupancy()
    }

    fn run(&self, id: RunId) -> Run {
        now(self.store.run(id)).expect("memory can be read").expect("the run exists")
    }

    /// A run with a running turn, and the events of its process until the exit: session, question, end.
    fn at_work(&self) -> (RunId, [RunEvent; 3]) {
        let (run, attempt) = (self.create("asking"), Attempt(1));
        self.take(run, resolved());
        let process = ProcessBinding { keeper: "k".into(), pid: 1, start_time: 1, boot_id: "b".into() };
        self.take(run, RunEvent::AttemptStarted { attempt, process });
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
        let turn_id = self.run(run).turns[0].turn_id;
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
    fn asking(&self) -> (RunId, InteractionId) {
        let (run, said) = self.at_work();
        for event in said {
            self.take(run, event);
        }
        let waiting = self.run(run);
        (run, waiting.pending_interaction_id().expect("it waits"))
    }

    fn journal(&self, run: RunId) -> Vec<&'static str> {
        let entries = now(self.store.entries_of(run, JournalSeq(0), 100)).expect("memory can be read");
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

fn settings(workspace: &str) -> RunSettings {
    RunSettings {
        engine: "actor".into(),
        workspace: workspace.to_owned(),
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

#[test]
fn the_same_request_makes_one_run_also_after_a_restart() {
    let fixture = DispatcherFixture::open(1);
    let run = fixture.create("k");
    for fixture in [&fixture, &fixture.reopen(1)] {
        let again = fixture.ask(fixture.daemon().create(fixture.new_run("k", "f"))).expect("it is answered");
        assert_eq!(again, RequestOutcome::Repeated(run));
        let mistake = fixture.ask(fixture.daemon().create(fixture.new_run("k", "another")));
        assert!(
            matches!(mistake, Err(RequestError::KeyReused { run_id, .. }) if run_id == run),
            "{mistake:?}"
        );
    }
}

#[test]
fn e13_the_same_message_is_taken_once_for_ever() {
    let fixture = DispatcherFixture::open(1);
    let run = fixture.create("k");
    fixture.send(run, "m", None).expect("it is taken");
    let again = fixture.send(run, "m", Some(OnBusy::Supersede)).expect("it is answered");
    assert_eq!(again, RequestOutcome::Repeated(run));
    fixture.take(run, RunEvent::CancelRequested { by: "ada".into() });
    let late = fixture.send(run, "m", None).expect("it is answered, not refused");
    assert_eq!(late, RequestOutcome::Repeated(run));
}

#[test]
fn a_message_that_comes_twice_at_once_is_taken_once_and_spoils_no_other() {
    let fixture = DispatcherFixture::open(1);
    let run = fixture.create("k");
    let event = |id| RunEvent::MessageArrived { message: message(id), on_busy: None };
    let outcomes = fixture.reopen(1).take_together(run, &[event("a"), event("a"), event("b")]);
    let is_changed =
        |outcome: &Result<RequestOutcome, RequestError>| matches!(outcome, Ok(RequestOutcome::Changed(_)));
    assert_eq!(outcomes.iter().map(is_changed).collect::<Vec<_>>(), [true, false, true], "{outcomes:?}");
    let taken = fixture.journal(run).into_iter().filter(|name| *name == "MessageArrived").count();
    assert_eq!(taken, 2);
}

#[test]
fn a_free_slot_is_granted_in_the_commit_that_asks_for_it_and_the_queue_is_fair() {
    let fixture = DispatcherFixture::open(1);
    let (first, second, third) = (fixture.create("1"), fixture.create("2"), fixture.create("3"));
    let statuses = [fixture.run(first).status(), fixture.run(second).status()];
    assert_eq!(statuses, [RunStatus::Running, RunStatus::Queued]);
    assert_eq!(fixture.occupancy(), (1, 2));
    let places = [first, second, third].map(|run| fixture.daemon().queue_position(run));
    assert_eq!(places, [None, Some(1), Some(2)]);
    fixture.take(first, RunEvent::CancelRequested { by: "ada".into() });
    assert_eq!(fixture.run(second).status(), RunStatus::Running);
    assert_eq!(fixture.run(third).status(), RunStatus::Queued);
    let reopened = fixture.reopen(1);
    assert_eq!(reopened.occupancy(), (1, 1), "a restart counts the same");
    assert_eq!(reopened.daemon().queue_position(third), Some(1));
}

#[test]
fn d6_a_reply_is_taken_once_and_told_apart_from_a_late_one() {
    let fixture = DispatcherFixture::open(1);
    let (run, question) = fixture.asking();
    let first = fixture.reply(reply(question, "red", Some("k"))).expect("it is taken");
    assert!(matches!(first, RequestOutcome::Changed(_)));
    let again = fixture.reply(reply(question, "red", Some("k"))).expect("it is answered");
    assert_eq!(again, RequestOutcome::Repeated(run));
    let refused = |result| match result {
        Err(RequestError::Refused(refused)) => refused,
        other => panic!("a refusal was expected, not {other:?}"),
    };
    let conflict = refused(fixture.reply(reply(question, "blue", Some("k"))));
    assert_eq!(conflict, RequestRefused::IdempotencyConflict { interaction_id: question });
    let stale = refused(fixture.reply(reply(question, "red", None)));
    assert_eq!(stale, RequestRefused::StaleInteraction { interaction_id: question });
    assert_eq!(fixture.run(run).turn_index, 2, "one reply, one turn");
}

#[test]
fn a_deadline_that_passed_before_is_no_news() {
    let fixture = DispatcherFixture::open(1);
    let (run, question) = fixture.asking();
    let fixture = fixture.reopen(1);
    fixture.clock.advance(61_000_000);
    let passed =
        || fixture.try_take(run, RunEvent::DeadlinePassed { deadline: DeadlineKind::Answer(question) });
    assert!(matches!(passed().expect("it is due"), RequestOutcome::Changed(_)));
    assert_eq!(passed().expect("it is absorbed"), RequestOutcome::Absorbed);
    assert_eq!(fixture.run(run).auto_decision_count, 1);
}

#[test]
fn d6_an_automatic_reply_is_in_the_journal_with_its_policy() {
    let fixture = DispatcherFixture::open(1);
    let (run, question) = fixture.asking();
    fixture.clock.advance(61_000_000);
    fixture.take(run, RunEvent::DeadlinePassed { deadline: DeadlineKind::Answer(question) });
    let entries = now(fixture.store.entries_of(run, JournalSeq(0), 100)).expect("memory can be read");
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
#[test]
fn a_run_of_an_older_release_adopts_the_present_rules_with_its_next_event() {
    let fixture = DispatcherFixture::open(4);
    let mut new = fixture.new_run("old", "f");
    new.rules = 0;
    let run = new.run_id;
    fixture.ask(fixture.daemon().create(new)).expect("it is created");
    let refused = reply(InteractionId(fixture.clock.stamp().id_seed), "no", None);
    fixture.try_take(run, RunEvent::ReplyArrived { reply: refused }).expect_err("nothing was asked");
    assert_eq!(fixture.run(run).rules, 0, "a refused request changes nothing");
    fixture.send(run, "m2", None).expect("it is taken");
    assert_eq!(fixture.run(run).rules, run::CURRENT_RULES_VERSION);
    assert_eq!(fixture.journal(run), ["RunCreated", "Admitted", "RulesAdopted", "MessageArrived"]);
    let entries = now(fixture.store.entries_of(run, JournalSeq(0), 100)).expect("memory can be read");
    let tables = abide_ports::store::RunTables::derive(&entries).expect("the journal adds up");
    assert_eq!(tables.run.as_ref(), Some(&fixture.run(run)));
}

#[test]
fn two_daemons_on_one_store_lose_nothing_to_each_other() {
    let fixture = DispatcherFixture::open(4);
    let run = fixture.create("k");
    let other = fixture.reopen(4);
    for number in 0..20 {
        let sender = if number % 2 == 0 { &fixture } else { &other };
        sender.send(run, &format!("m{number}"), None).expect("it is taken");
    }
    let names = fixture.journal(run);
    let messages = names.iter().filter(|name| **name == "MessageArrived").count();
    assert_eq!((messages, fixture.run(run).revision), (20, names.len() as u64));
}

#[test]
fn several_events_are_committed_together_or_not_at_all() {
    for (point, written) in [(CrashPoint::BeforeWrite, false), (CrashPoint::AfterWrite, true)] {
        let fixture = DispatcherFixture::open(1);
        let (run, said) = fixture.at_work();
        let before = fixture.journal(run).len();
        let fixture = fixture.reopen(1);
        fixture.store.crash_at(point);
        let failed = fixture.take_together(run, &said);
        assert!(failed.iter().all(|outcome| matches!(outcome, Err(RequestError::Store(_)))), "{failed:?}");
        let all = ["HandleAnnounced", "TurnEnded", "ProcessExited"];
        assert_eq!(fixture.journal(run).split_off(before), if written { &all[..] } else { &[] });
        // The next daemon takes all events again, with the same result.
        let fixture = fixture.reopen(1);
        for event in said.iter().chain(&said) {
            fixture.try_take(run, event.clone()).expect("it is taken or absorbed");
        }
        assert_eq!(fixture.journal(run).split_off(before), all);
        assert!(fixture.run(run).pending_effects.is_empty(), "a process that has gone need not be ended");
        assert_eq!(fixture.occupancy(), (0, 0));
    }
}

#[test]
fn an_event_that_is_refused_or_late_does_not_spoil_those_that_come_with_it() {
    let fixture = DispatcherFixture::open(1);
    let (run, [handle, ended, exited]) = fixture.at_work();
    let before = fixture.journal(run).len();
    let outcomes =
        fixture.reopen(1).take_together(run, &[handle.clone(), RunEvent::Admitted, handle, ended, exited]);
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_err()).count(), 1, "{outcomes:?}");
    assert_eq!(fixture.run(run).status(), RunStatus::WaitingUser);
    assert_eq!(fixture.journal(run).split_off(before), ["HandleAnnounced", "TurnEnded", "ProcessExited"]);
}

#[test]
fn a_slot_that_a_run_gives_free_is_its_own_again_only_if_no_run_waits_longer() {
    let fixture = DispatcherFixture::open(1);
    let (first, [handle, ended, exited]) = fixture.at_work();
    let waits = fixture.create("waits");
    fixture.send(first, "m", None).expect("it is taken");
    let RunEvent::TurnEnded { attempt, turn_id, position, process_after, .. } = ended else {
        panic!("an end")
    };
    let outcome = TurnOutcome::Completed { text: "done".into() };
    let ended = RunEvent::TurnEnded { attempt, turn_id, position, outcome, process_after };
    // The message queues the run again, behind the one that has waited.
    for event in [handle, ended, exited] {
        fixture.take(first, event);
    }
    assert_eq!(fixture.run(first).status(), RunStatus::Queued);
    assert_eq!(fixture.run(waits).status(), RunStatus::Running);
    fixture.take(waits, RunEvent::CancelRequested { by: "ada".into() });
    assert_eq!(fixture.run(first).status(), RunStatus::Running);
}

#[test]
fn changes_of_another_daemon_are_seen_before_a_request_is_refused() {
    let fixture = DispatcherFixture::open(1);
    let (run, question) = fixture.asking();
    let other = fixture.reopen(1);
    other.reply(reply(question, "red", None)).expect("it is taken");
    let cancel = fixture.take(run, RunEvent::CancelRequested { by: "ada".into() });
    assert_eq!(cancel.turn_index, 2);
    let late = other.try_take(run, RunEvent::CancelRequested { by: "bob".into() });
    assert!(matches!(late, Err(RequestError::Refused(_))), "{late:?}");
}

#[test]
fn a_run_that_waits_or_has_finished_is_only_a_row() {
    let fixture = DispatcherFixture::open(1);
    let (run, _) = fixture.asking();
    let fixture = fixture.reopen(1);
    let active = || fixture.parts.borrow().dispatcher.active_runs().collect::<Vec<_>>();
    fixture.try_take(run, RunEvent::InterruptRequested { by: "ada".into() }).expect_err("no turn is running");
    assert_eq!(active(), [], "a waiting run");
    fixture.take(run, RunEvent::CancelRequested { by: "ada".into() });
    assert_eq!(active(), [], "a finished run");
}

fn poll<T>(future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// The result of a future that is ready.
fn now<T>(future: impl Future<Output = T>) -> T {
    poll(pin!(future)).expect("memory answers at once")
}
