//! The daemon on a memory store with fake engines: output is committed in batches, cached results are not probed
//! again, and a process gets input only after its earlier output is durable.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use abide_daemon::{CrashGuard, Daemon, DaemonConfig, DaemonDeps};
use abide_domain::{
    engine::{EngineInteractiveProfile, EngineSessionHandle, HandleType, ProfileKind, RunAbilities},
    event::{NewRun, RunEvent},
    id::RunId,
    inbound::{InboundMessage, MessageKey},
    process::{Attempt, ExitStatus},
    refused::RequestRefused,
    reply::{InteractionReply, ReplyAuthor},
    run::{self, Run, RunStatus, RunStep},
    settings::{ExecutionMode, OnBusy, RunSettings, UnansweredPolicy},
    time::{EventStamp, Seconds},
};
use abide_ports::{
    clock::Clock,
    engine::{EngineFact, IsolationMode, ProcessSpec, ProcessStdin},
    processes::{ProcessOutput, Processes, StartRequest},
    store::{Journal, JournalSeq, PageRequest, StoreQueries},
    workspace::{WorkspaceError, WorkspacePreparation, Workspaces},
};
use abide_store::memory::{CrashPoint, MemoryStore};
use abide_testkit::{
    clock::FakeClock,
    fake_engine::{FakeCatalogue, FakeLaunch, FakeProcesses, NoopWorkspaces},
    journal_writer::write_event,
};

/// A daemon, and the state that outlives it.
struct DaemonFixture {
    daemon: Daemon,
    store: Arc<MemoryStore>,
    clock: Arc<FakeClock>,
    actors: Arc<FakeProcesses>,
}

/// Exceeds the duration of any step on any machine.
const WAIT_TIMEOUT: Duration = Duration::from_secs(20);

impl DaemonFixture {
    async fn open(actors: FakeProcesses) -> Self {
        Self::on(Arc::new(MemoryStore::new()), Arc::new(FakeClock::new()), Arc::new(actors)).await
    }

    async fn on(store: Arc<MemoryStore>, clock: Arc<FakeClock>, actors: Arc<FakeProcesses>) -> Self {
        Self::under_rules(run::apply, Arc::new(NoopWorkspaces), store, clock, actors).await
    }

    async fn under_rules(
        rules: abide_daemon::TransitionRules,
        workspaces: Arc<dyn Workspaces>,
        store: Arc<MemoryStore>,
        clock: Arc<FakeClock>,
        actors: Arc<FakeProcesses>,
    ) -> Self {
        let deps = DaemonDeps {
            store: store.clone(),
            clock: clock.clone(),
            catalogue: Arc::new(FakeCatalogue),
            processes: actors.clone(),
            workspaces,
            private: "private".to_owned(),
            recovery_max: abide_domain::time::Seconds(300),
            contents: Arc::<abide_testkit::fake_engine::ContentsInMemory>::default(),
            space: abide_daemon::SpaceLimit::none(),
        };
        let config = DaemonConfig { stall_after: Seconds(60), slots: 4, workspaces: "w".into() };
        let guard = CrashGuard::none(clock.clone());
        let daemon = Daemon::guarded(deps, config, guard, rules).await.expect("it opens");
        Self { daemon, store, clock, actors }
    }

    async fn create(&self) -> RunId {
        self.create_run(new_run(RunId(self.clock.stamp().id_seed))).await
    }

    async fn create_run(&self, new: NewRun) -> RunId {
        let run_id = new.run_id;
        self.daemon.create(new).await.expect("it is created");
        run_id
    }

    async fn reply(&self, run: &Run) {
        let interaction_id = run.pending_interaction_id().expect("it asks");
        let asked = self.daemon.question(interaction_id).await.expect("memory can be read");
        let by = ReplyAuthor::Person("ada".into());
        let reply = InteractionReply { interaction_id, text: "this".into(), by, idempotency_key: None };
        self.daemon.reply(reply, asked.expect("it is there")).await.expect("it is taken");
    }

    /// Waits until a run has this status and no process or effect is left.
    async fn until(&self, run: RunId, status: RunStatus) -> Run {
        let settled = |run: &Run| run.status() == status && run.pending_effects.is_empty();
        self.when(run, |run| settled(run) && self.actors.names().is_empty()).await
    }

    /// Waits until a condition on a run is true.
    async fn when(&self, run: RunId, wanted: impl Fn(&Run) -> bool) -> Run {
        let mut changes = self.daemon.changes();
        let waits = async {
            loop {
                changes.mark_unchanged();
                let state = self.store.run(run).await.expect("memory can be read").expect("it is there");
                if wanted(&state) {
                    return state;
                }
                changes.changed().await.expect("the daemon lives");
            }
        };
        tokio::time::timeout(WAIT_TIMEOUT, waits).await.expect("it comes to that")
    }

    async fn told(&self, run: RunId) -> Vec<&'static str> {
        let entries = self.store.entries_of(run, JournalSeq(0), 100).await.expect("memory can be read");
        entries.iter().map(|entry| entry.event.name()).collect()
    }
}

fn profile() -> EngineInteractiveProfile {
    EngineInteractiveProfile {
        kind: ProfileKind::Resumable,
        reason: "so it is".into(),
        session_timeout_sec: Seconds(60),
    }
}

fn new_run(run_id: RunId) -> NewRun {
    let settings = RunSettings {
        engine: "actor".into(),
        workspace: "w".into(),
        execution_mode: ExecutionMode::Interactive,
        conversation_ref: None,
        unanswered: UnansweredPolicy::Strict,
        session_timeout_sec: Seconds(60),
        turn_timeout_sec: None,
        on_busy: OnBusy::Queue,
        model: None,
        sandbox: None,
        isolation: None,
        skill: None,
        labels: Default::default(),
    };
    let key = MessageKey { channel: "api".into(), message_id: run_id.to_string() };
    let message = InboundMessage { key, text: "play".into() };
    NewRun { run_id, settings, message, idempotency: None, rules: abide_domain::run::CURRENT_RULES_VERSION }
}

fn line(text: &str) -> ProcessOutput {
    ProcessOutput::Stdout(format!("{text}\n").into_bytes())
}

/// Asks in a new session, and completes in a resumed one.
fn asks_once(part: FakeLaunch<'_>) -> Vec<ProcessOutput> {
    let last = if part.session.is_empty() { "ask which?" } else { "done" };
    vec![line("session s"), line(last), ProcessOutput::Exited(ExitStatus::Code(0))]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_is_examined_once_until_it_is_replaced() {
    let fixture = DaemonFixture::open(FakeProcesses::new(asks_once)).await;
    for (examined, replaced) in [(1, false), (1, false), (2, true), (2, false)] {
        if replaced {
            fixture.actors.replace_program();
        }
        let run = fixture.create().await;
        fixture.until(run, RunStatus::WaitingUser).await;
        assert_eq!(fixture.actors.check_count(), examined);
    }
}

/// Asks in a new session without exiting; completes in a resumed one.
fn asks_and_lingers(part: FakeLaunch<'_>) -> Vec<ProcessOutput> {
    match part.session.is_empty() {
        true => vec![line("session s"), line("ask which?")],
        false => vec![line("session s"), line("done"), ProcessOutput::Exited(ExitStatus::Code(0))],
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e6_an_answer_during_the_end_of_the_process_that_asked_leaves_no_attempt_without_its_end() {
    let fixture = DaemonFixture::open(FakeProcesses::new(asks_and_lingers)).await;
    for _ in 0..20 {
        let run = fixture.create().await;
        // Does not wait for pending effects: the process is still being ended when the answer arrives.
        let waiting = fixture.when(run, |run| run.status() == RunStatus::WaitingUser).await;
        fixture.reply(&waiting).await;
        fixture.until(run, RunStatus::Succeeded).await;
        let turns =
            fixture.store.turns_of(run, PageRequest::first(10)).await.expect("memory can be read").items;
        let ends: Vec<_> = turns.iter().flat_map(|turn| &turn.attempts).map(|it| it.exit).collect();
        assert_eq!(ends, [Some(ExitStatus::Code(143)), Some(ExitStatus::Code(0))]);
        assert!(turns.iter().flat_map(|turn| &turn.attempts).all(|it| it.ended_at.is_some()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_orderly_stop_waits_for_the_processes_that_are_being_ended() {
    let (let_go, held) = std::sync::mpsc::channel();
    let held = Mutex::new(held);
    let blocked = move || held.lock().unwrap().recv().expect("the test lets it go");
    let actors = Arc::new(FakeProcesses::new(asks_and_lingers).with_before_end(blocked));
    let fixture =
        DaemonFixture::on(Arc::new(MemoryStore::new()), Arc::new(FakeClock::new()), actors.clone()).await;
    // The probe of the engine is ended as well.
    let_go.send(()).expect("it waits");
    let run = fixture.create().await;
    fixture.when(run, |run| run.status() == RunStatus::WaitingUser).await;
    let mut stop = std::pin::pin!(fixture.daemon.stop());
    tokio::select! {
        biased;
        stopped = &mut stop => panic!("{stopped:?} with {:?} still there", actors.names()),
        () = tokio::time::sleep(Duration::from_millis(300)) => {}
    }
    // For the effect that ends the process, and for the reader's cleanup.
    for _ in 0..4 {
        let_go.send(()).expect("it waits");
    }
    stop.await.expect("it stops");
    assert_eq!(actors.names(), Vec::<String>::new());
}

/// Panics in every preparation.
struct PanickingWorkspaces;

impl Workspaces for PanickingWorkspaces {
    fn check(&self, _: &str) -> Result<(), WorkspaceError> {
        Ok(())
    }

    fn check_skill(&self, _: &str, _: &str) -> Result<(), WorkspaceError> {
        Ok(())
    }

    fn prepare(&self, _: &WorkspacePreparation<'_>) -> Result<(), WorkspaceError> {
        panic!("the floor gives way")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_launch_that_breaks_us_is_counted_and_put_to_a_person() {
    let (store, clock, actors) =
        (Arc::new(MemoryStore::new()), Arc::new(FakeClock::new()), Arc::new(FakeProcesses::new(asks_once)));
    let fixture =
        DaemonFixture::under_rules(run::apply, Arc::new(PanickingWorkspaces), store, clock, actors).await;
    let run = fixture.create().await;
    let mut changes = fixture.daemon.changes();
    let parked = async {
        while fixture.told(run).await.last() != Some(&"LaunchFailed")
            || fixture.store.run(run).await.expect("memory can be read").expect("it is there").status()
                != RunStatus::WaitingUser
        {
            fixture.clock.advance(60_000_000);
            changes.changed().await.expect("the daemon lives");
        }
    };
    tokio::time::timeout(WAIT_TIMEOUT, parked).await.expect("a person is asked");
    assert_eq!(fixture.told(run).await.iter().filter(|event| **event == "LaunchFailed").count(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cycle_of_two_turns_is_a_handful_of_commits() {
    let fixture = DaemonFixture::open(FakeProcesses::new(asks_once)).await;
    let first = fixture.create().await;
    fixture.until(first, RunStatus::WaitingUser).await;
    let run = fixture.create().await;
    let waiting = fixture.until(run, RunStatus::WaitingUser).await;
    fixture.reply(&waiting).await;
    fixture.until(run, RunStatus::Succeeded).await;
    let turn = ["AttemptStarted", "HandleAnnounced", "TurnEnded", "ProcessExited"];
    let begins = ["RunCreated", "Admitted", "ProfileResolved"];
    let continues = ["ReplyArrived", "Admitted"];
    assert_eq!(fixture.told(run).await, [&begins[..], &turn, &continues, &turn].concat());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn input_is_written_after_the_output_before_it_is_durable() {
    let store = Arc::new(MemoryStore::new());
    let seen: Arc<Mutex<Vec<(String, usize)>>> = Arc::default();
    let (watched, log) = (store.clone(), seen.clone());
    let plays = |_: FakeLaunch<'_>| {
        let together = "session s\nprogress one\nwrite first\nprogress two\nwrite second\ndone\n";
        vec![ProcessOutput::Stdout(together.into()), ProcessOutput::Exited(ExitStatus::Code(0))]
    };
    let watch = move |_: &str, bytes: &[u8]| {
        // The memory store answers at once, so no runtime is needed.
        let entries = futures_now(watched.entries(JournalSeq(0), 100)).expect("memory can be read");
        let progressed = entries.iter().filter(|entry| entry.event.name() == "Progressed").count();
        log.lock().unwrap().push((String::from_utf8_lossy(bytes).into_owned(), progressed));
    };
    let actors = Arc::new(FakeProcesses::with_write_observer(plays, watch));
    let fixture = DaemonFixture::on(store, Arc::new(FakeClock::new()), actors).await;
    let run = fixture.create().await;
    fixture.until(run, RunStatus::Succeeded).await;
    assert_eq!(*seen.lock().unwrap(), [("first\n".to_owned(), 2), ("second\n".to_owned(), 2)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interpreter_that_panics_loses_its_own_run_and_no_other() {
    let plays = |part: FakeLaunch<'_>| match part.prompt {
        "break" => vec![line("session s"), line("progress one"), line("break"), line("done never heard")],
        _ => vec![line("session s"), line("done"), ProcessOutput::Exited(ExitStatus::Code(0))],
    };
    let fixture = DaemonFixture::open(FakeProcesses::new(plays)).await;
    let broken = RunId(fixture.clock.stamp().id_seed);
    let mut new = new_run(broken);
    new.settings.execution_mode = ExecutionMode::Auto;
    new.message.text = "break".into();
    fixture.create_run(new).await;
    let lost = fixture.until(broken, RunStatus::Failed).await;
    let state = format!("{:?}", lost.state);
    assert!(state.contains("the reader of this engine failed"), "{state}");
    assert!(fixture.told(broken).await.contains(&"Progressed"), "earlier facts are kept");
    for _ in 0..3 {
        let run = fixture.create().await;
        fixture.until(run, RunStatus::Succeeded).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn news_that_comes_later_is_not_waited_for() {
    let fixture =
        DaemonFixture::open(FakeProcesses::new(|_| vec![line("session s"), line("progress one")])).await;
    let run = fixture.create().await;
    let mut changes = fixture.daemon.changes();
    let progressed = async {
        while !fixture.told(run).await.contains(&"Progressed") {
            changes.changed().await.expect("the daemon lives");
        }
    };
    tokio::time::timeout(WAIT_TIMEOUT, progressed).await.expect("it is committed while the actor is silent");
    let name = fixture.actors.names().remove(0);
    fixture.actors.push_output(&name, line("done"));
    fixture.actors.push_output(&name, ProcessOutput::Exited(ExitStatus::Code(0)));
    fixture.until(run, RunStatus::Succeeded).await;
}

/// Writes what a daemon would that probes the engine of a run and starts its process, and nothing more.
async fn started_by_hand(store: &MemoryStore, clock: &FakeClock, actors: &FakeProcesses, new: NewRun) {
    let run_id = new.run_id;
    let resolved = RunEvent::ProfileResolved {
        profile: profile(),
        abilities: RunAbilities::default(),
        handle: None,
        command: None,
    };
    for event in [RunEvent::RunCreated(Box::new(new)), RunEvent::Admitted, resolved] {
        write_event(store, clock, run_id, event).await;
    }
    let launch = ProcessSpec {
        argv: vec!["actor".into(), String::new(), "play".into()],
        env: vec![],
        removed_env: vec![],
        appended_env: vec![],
        files: vec![],
        stdin: ProcessStdin::KeptOpen(vec![]),
        not_before: None,
        surviving_keepers_dir: None,
    };
    let start = StartRequest {
        spec: &launch,
        workspace: "w",
        private_dir: "p",
        pass_env: &[],
        isolation: IsolationMode::Off,
    };
    let process = actors.start(&format!("{run_id}-1"), &start).expect("it starts");
    write_event(store, clock, run_id, RunEvent::AttemptStarted { attempt: Attempt(1), process }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_that_was_committed_in_part_is_neither_lost_nor_doubled() {
    for committed in 0..=2 {
        let (store, clock) = (Arc::new(MemoryStore::new()), Arc::new(FakeClock::new()));
        let plays = |_: FakeLaunch<'_>| {
            let said = "session s\nprogress one\nask which?\n";
            vec![ProcessOutput::Stdout(said.into()), ProcessOutput::Exited(ExitStatus::Code(0))]
        };
        let actors = Arc::new(FakeProcesses::new(plays));
        let run_id = RunId(clock.stamp().id_seed);
        started_by_hand(&store, &clock, &actors, new_run(run_id)).await;
        let attempt = Attempt(1);
        let handle = EngineSessionHandle {
            engine: "actor".into(),
            handle_type: HandleType::SessionId,
            handle_value: "s".into(),
            created_at_turn: 0,
        };
        let (named, progressed) = (EngineFact::position(10, 0), EngineFact::position(23, 0));
        let heard = [
            RunEvent::HandleAnnounced { attempt, position: named, handle },
            RunEvent::Progressed { attempt, position: progressed, text: "one".into() },
        ];
        for event in heard.into_iter().take(committed) {
            write_event(&*store, &*clock, run_id, event).await;
        }
        let next = DaemonFixture::on(store, clock, actors).await;
        next.daemon.reconcile().await.expect("it starts");
        let waiting = next.until(run_id, RunStatus::WaitingUser).await;
        assert!(waiting.pending_interaction_id().is_some());
        let told = ["HandleAnnounced", "Progressed", "TurnEnded", "ProcessExited"];
        assert_eq!(next.told(run_id).await.split_off(4), told, "nothing is lost and nothing is doubled");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn facts_are_committed_again_after_an_error_of_the_store() {
    for point in [CrashPoint::BeforeWrite, CrashPoint::AfterWrite] {
        let fixture = DaemonFixture::open(FakeProcesses::new(|_| vec![line("session s")])).await;
        let run = fixture.create().await;
        fixture.when(run, |run| run.handle_announced).await;
        fixture.store.crash_at(point);
        let name = fixture.actors.names().remove(0);
        fixture.actors.push_output(&name, line("ask which?"));
        fixture.actors.push_output(&name, ProcessOutput::Exited(ExitStatus::Code(0)));
        fixture.until(run, RunStatus::WaitingUser).await;
        let ends = fixture.told(run).await.iter().filter(|event| **event == "TurnEnded").count();
        assert_eq!(ends, 1, "{point:?}");
    }
}

/// The result of a future that is ready.
fn futures_now<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => panic!("memory answers at once"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_that_may_have_ended_without_a_reader_is_read_to_its_end_before_it_is_timed_out() {
    let (store, clock) = (Arc::new(MemoryStore::new()), Arc::new(FakeClock::new()));
    let actors = Arc::new(FakeProcesses::new(|_| vec![line("session s")]));
    let run = RunId(clock.stamp().id_seed);
    let mut new = new_run(run);
    new.settings.turn_timeout_sec = Some(Seconds(10));
    started_by_hand(&store, &clock, &actors, new).await;
    // The next daemon starts long after the deadline of the turn.
    clock.advance(60_000_000);
    let fixture = DaemonFixture::on(store, clock, actors).await;
    fixture.daemon.reconcile().await.expect("memory can be read");
    fixture.daemon.tick();
    let name = fixture.actors.names().remove(0);
    fixture.actors.push_output(&name, line("done"));
    fixture.actors.push_output(&name, ProcessOutput::Exited(ExitStatus::Code(0)));
    fixture.until(run, RunStatus::Succeeded).await;
}

/// A run that decides automatically one minute after its question.
fn unattended(run_id: RunId, name: &str) -> NewRun {
    let mut new = new_run(run_id);
    new.settings.unanswered = UnansweredPolicy::AutoDecide;
    new.settings.labels.insert("name".to_owned(), name.to_owned());
    new
}

impl DaemonFixture {
    async fn create_unattended(&self, name: &str) -> RunId {
        self.create_run(unattended(RunId(self.clock.stamp().id_seed), name)).await
    }

    async fn decisions(&self, run: RunId) -> u32 {
        self.store.run(run).await.expect("memory can be read").expect("it is there").auto_decision_count
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_survives_a_restart_and_passes_once() {
    let fixture = DaemonFixture::open(FakeProcesses::new(asks_once)).await;
    let run = fixture.create_unattended("any").await;
    fixture.until(run, RunStatus::WaitingUser).await;
    let DaemonFixture { store, clock, actors, .. } = fixture;
    let next = DaemonFixture::on(store, clock, actors).await;
    next.daemon.reconcile().await.expect("it starts");
    assert_eq!(next.decisions(run).await, 0, "nothing is due");
    next.clock.advance(61_000_000);
    next.daemon.tick();
    next.daemon.tick();
    next.until(run, RunStatus::Succeeded).await;
    assert_eq!(next.decisions(run).await, 1);
}

/// Rules under which the deadline of one run is refused, and that of another panics.
fn damaged(run: Option<&Run>, stamp: &EventStamp, event: &RunEvent) -> Result<RunStep, RequestRefused> {
    if let (Some(run), RunEvent::DeadlinePassed { .. }) = (run, event) {
        match run.settings.labels.get("name").map(String::as_str) {
            Some("refused") => return Err(RequestRefused::NoSuchRun),
            Some("broken") => panic!("a state that must not be"),
            _ => {}
        }
    }
    run::apply(run, stamp, event)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_cannot_be_changed_does_not_stop_the_deadlines_of_others() {
    let (store, clock) = (Arc::new(MemoryStore::new()), Arc::new(FakeClock::new()));
    let actors = Arc::new(FakeProcesses::new(asks_once));
    let fixture = DaemonFixture::under_rules(damaged, Arc::new(NoopWorkspaces), store, clock, actors).await;
    let mut runs = Vec::new();
    // The damaged runs are due first.
    for name in ["refused", "broken", "sound", "sound"] {
        let run = fixture.create_unattended(name).await;
        fixture.until(run, RunStatus::WaitingUser).await;
        fixture.clock.advance(1_000_000);
        runs.push(run);
    }
    fixture.clock.advance(61_000_000);
    fixture.daemon.tick();
    for run in &runs[2..] {
        fixture.until(*run, RunStatus::Succeeded).await;
        assert_eq!(fixture.decisions(*run).await, 1);
    }
    for run in &runs[..2] {
        assert_eq!(fixture.decisions(*run).await, 0);
    }
}
