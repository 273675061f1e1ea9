//! Fixture: a daemon per test, with a memory store, a fake clock, no slots, and an HTTP interface on a free port.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use abide_api::{
    access::{AccessRegistry, NoStorage},
    http::{HttpConfig as Bounds, HttpService, StopMode, serve},
};
use abide_daemon::{Daemon, DaemonConfig, DaemonDeps, SpaceLimit};
use abide_domain::{
    engine::{EngineInteractiveProfile, EngineSessionHandle, HandleType, ProfileKind, RunAbilities as Can},
    event::{NewRun, ProcessAfterTurn, RunEvent, TurnOutcome},
    id::{InteractionId, RunId},
    inbound::{InboundMessage, MessageKey},
    interaction::{DecisionPolicy, InteractionKind, InteractionOption, Question},
    process::{Attempt, ExitStatus, OutputPosition, ProcessBinding},
    settings::{ExecutionMode, OnBusy, RunSettings, UnansweredPolicy},
    time::{Seconds, Timestamp},
};
use abide_observe::metrics::DaemonMetrics;
use abide_ports::{
    catalogue::{EngineLookup, InstalledEngine},
    clock::Clock,
    engine::{
        AbilitySet, Engine, EngineHealth, EngineInstallation, LaunchContext, ProbeCommand, ProbeResult,
        ProcessInterpreter, ProcessSignal, ProcessSpec, UnsupportedOperation,
    },
    processes::{
        OutputFollower, OutputOffsets, ProcessLookup, ProcessUnreachable, Processes, StartError,
        StartRequest, StdinWrite,
    },
    space::DiskSpace,
    store::StoreQueries,
    workspace::{WorkspaceError, WorkspacePreparation, Workspaces},
};
use abide_store::memory::MemoryStore;
use abide_terminal::{KeeperLauncher, TerminalConfig, TerminalLimits};
use abide_testkit::{clock::FakeClock, journal_writer::write_event};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};

use crate::client::{TestEventReader, TestRequest, TestResponse};

pub(crate) const TOKEN: &str = "a-token";
/// A directory of this name is refused as a workspace and as a skill.
pub(crate) const FORBIDDEN: &str = "forbidden";

pub(crate) struct HttpFixture {
    pub(crate) address: SocketAddr,
    pub(crate) temp_dir: tempfile::TempDir,
    daemon: Daemon,
    store: Arc<MemoryStore>,
    clock: Arc<FakeClock>,
    stop: watch::Sender<StopMode>,
    server_task: JoinHandle<std::io::Result<()>>,
}

impl HttpFixture {
    pub(crate) async fn open() -> Self {
        Self::with_config(|_| {}).await
    }

    pub(crate) async fn with_config(change: impl FnOnce(&mut Bounds)) -> Self {
        let mut bounds = Bounds::with_defaults("artifacts");
        change(&mut bounds);
        Self::start(Arc::new(MemoryStore::new()), Arc::new(FakeClock::new()), bounds, SpaceLimit::none())
            .await
            .reconciled()
            .await
    }

    /// A daemon that reads the free disk space from here.
    pub(crate) async fn with_disk_space(space: Arc<dyn DiskSpace>) -> Self {
        let bounds = Bounds::with_defaults("artifacts");
        let limit = SpaceLimit { space: Some(space), min_free_bytes: 1, home: "/".to_owned() };
        Self::start(Arc::new(MemoryStore::new()), Arc::new(FakeClock::new()), bounds, limit)
            .await
            .reconciled()
            .await
    }

    /// A daemon that has not yet completed recovery.
    pub(crate) async fn starting() -> Self {
        let bounds = Bounds::with_defaults("artifacts");
        Self::start(Arc::new(MemoryStore::new()), Arc::new(FakeClock::new()), bounds, SpaceLimit::none())
            .await
    }

    /// Completes recovery.
    pub(crate) async fn reconciled(self) -> Self {
        self.daemon.reconcile().await.expect("there is nothing to take up");
        self
    }

    /// Starts another daemon on the same store.
    pub(crate) async fn reopen(self) -> Self {
        let (store, clock) = (self.store.clone(), self.clock.clone());
        self.close().await;
        let bounds = Bounds::with_defaults("artifacts");
        Self::start(store, clock, bounds, SpaceLimit::none()).await.reconciled().await
    }

    async fn start(
        store: Arc<MemoryStore>,
        clock: Arc<FakeClock>,
        bounds: Bounds,
        space: SpaceLimit,
    ) -> Self {
        let place = tempfile::tempdir().expect("there is room");
        let path = |name: &str| place.path().join(name).to_string_lossy().into_owned();
        let world = DaemonDeps {
            store: store.clone(),
            clock: clock.clone(),
            catalogue: Arc::new(NoopPorts),
            processes: Arc::new(NoopPorts),
            workspaces: Arc::new(NoopPorts),
            private: path("private"),
            recovery_max: abide_domain::time::Seconds(300),
            contents: Arc::<abide_testkit::fake_engine::ContentsInMemory>::default(),
            space,
        };
        let habits = DaemonConfig { stall_after: Seconds(600), slots: 0, workspaces: path("workspaces") };
        let daemon = Daemon::open(world, habits).await.expect("memory can be read");
        let terminals = abide_terminal::RuntimeHandle::start(TerminalConfig {
            keepers_dir: place.path().join("keepers"),
            launcher: KeeperLauncher { program: "/nowhere".into(), arguments: vec![], groups: None },
            env: vec![],
            cwd: "/".to_owned(),
            shell: "/bin/sh".to_owned(),
            detached: false,
            limits: TerminalLimits::default(),
        });
        let (stop, stopping) = watch::channel(StopMode::No);
        let service = HttpService {
            daemon: daemon.clone(),
            terminals: Arc::new(terminals.expect("threads can be started")),
            access: Arc::new(AccessRegistry::open(TOKEN, None, Box::new(NoStorage)).expect("it is new")),
            metrics: DaemonMetrics::default(),
            stop: stop.clone(),
            settings: bounds,
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
        let address = listener.local_addr().expect("it has an address");
        let served = tokio::spawn(serve(listener, None, service, async move {
            let mut stopping = stopping;
            // An error means that the sender is dropped.
            stopping.wait_for(|stop| *stop != StopMode::No).await.ok();
        }));
        Self { address, temp_dir: place, daemon, store, clock, stop, server_task: served }
    }

    /// Shuts down and waits until all connections are closed.
    pub(crate) async fn close(self) {
        self.stop.send_replace(StopMode::Keep);
        self.server_task.await.expect("it does not panic").expect("it ends well");
    }

    pub(crate) fn advance_clock(&self, seconds: i64) {
        self.clock.advance(seconds * 1_000_000);
    }

    /// Sends a request with the owner's token.
    pub(crate) async fn send(&self, request: TestRequest) -> TestResponse {
        request.token(TOKEN).send(self.address).await
    }

    pub(crate) async fn get(&self, path: &str) -> TestResponse {
        self.send(TestRequest::get(path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> TestResponse {
        self.send(TestRequest::post(path, &body)).await
    }

    pub(crate) async fn event_stream(&self, path: &str) -> TestEventReader {
        TestRequest::get(path).token(TOKEN).stream(self.address).await
    }

    /// Creates a run that stays queued, because there are no slots.
    pub(crate) async fn create_queued_run(&self, prompt: &str) -> String {
        let response = self.post("/v1/runs", json!({ "engine": "any", "prompt": prompt })).await;
        assert_eq!(response.status, 201, "{response:?}");
        response.json()["run_id"].as_str().expect("it has a name").to_owned()
    }

    /// Creates a run with an open question.
    pub(crate) async fn create_asking_run(&self) -> (RunId, InteractionId) {
        self.create_run_asking_kind(InteractionKind::ChooseOne).await
    }

    /// Creates a run with an open question of this kind.
    pub(crate) async fn create_run_asking_kind(&self, kind: InteractionKind) -> (RunId, InteractionId) {
        self.create_run_asking_text(kind, "which?", "so far").await
    }

    /// Creates a run with an open question of this kind and text, after some output.
    pub(crate) async fn create_run_asking_text(
        &self,
        kind: InteractionKind,
        prompt: &str,
        answer_text: &str,
    ) -> (RunId, InteractionId) {
        let run_id = RunId(self.clock.stamp().id_seed);
        let key = MessageKey { channel: "api".into(), message_id: run_id.to_string() };
        let message = InboundMessage { key, text: "do it".into() };
        let new = NewRun {
            run_id,
            settings: settings(),
            message,
            idempotency: None,
            rules: abide_domain::run::CURRENT_RULES_VERSION,
        };
        let take = async |event| write_event(&*self.store, &*self.clock, run_id, event).await;
        take(RunEvent::RunCreated(Box::new(new))).await;
        take(RunEvent::Admitted).await;
        let profile = EngineInteractiveProfile {
            kind: ProfileKind::Resumable,
            reason: "so it is".into(),
            session_timeout_sec: Seconds(60),
        };
        take(RunEvent::ProfileResolved { profile, abilities: Can::default(), handle: None, command: None })
            .await;
        let process = ProcessBinding { keeper: "k".into(), pid: 1, start_time: 1, boot_id: "b".into() };
        let attempt = Attempt(1);
        take(RunEvent::AttemptStarted { attempt, process }).await;
        let handle = EngineSessionHandle {
            engine: "any".into(),
            handle_type: HandleType::SessionId,
            handle_value: "s3cret-session".into(),
            created_at_turn: 1,
        };
        take(RunEvent::HandleAnnounced { attempt, position: OutputPosition(1), handle }).await;
        let question = Question {
            kind,
            prompt: prompt.into(),
            options: vec![InteractionOption { label: "this".into(), safe: true }],
            ui_hints: Some("{\"columns\":2}".into()),
            default_decision_policy: DecisionPolicy::SafeDefault,
            context: None,
            hidden: None,
        };
        let turn_id =
            self.store.run(run_id).await.expect("it can be read").expect("it is there").turns[0].turn_id;
        let ending = TurnOutcome::Asked { text: answer_text.into(), question };
        let aftermath = ProcessAfterTurn::Exited(ExitStatus::Code(0));
        let turn_end = RunEvent::TurnEnded {
            attempt,
            turn_id,
            position: OutputPosition(2),
            outcome: ending,
            process_after: aftermath,
        };
        let waiting = take(turn_end).await;
        (run_id, waiting.pending_interaction_id().expect("it waits"))
    }
}

fn settings() -> RunSettings {
    RunSettings {
        engine: "any".into(),
        workspace: "/w".into(),
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
    }
}

/// Ports without any behaviour.
#[derive(Debug)]
struct NoopPorts;

impl EngineLookup for NoopPorts {
    fn engine(&self, name: &str) -> Option<InstalledEngine> {
        (name == "any").then(|| InstalledEngine {
            engine: Arc::new(Self),
            installation: EngineInstallation::for_program("any"),
            binary_placeholder: None,
        })
    }

    fn names(&self) -> Vec<String> {
        vec!["any".to_owned()]
    }
}

impl Engine for NoopPorts {
    fn name(&self) -> &str {
        "any"
    }

    fn abilities(&self) -> AbilitySet {
        AbilitySet::NONE
    }

    fn installation(&self) -> EngineInstallation {
        EngineInstallation::for_program("any")
    }

    fn probe_commands(&self, _: &EngineInstallation) -> Vec<ProbeCommand> {
        vec![]
    }

    fn assess_health(&self, _: &[ProbeResult]) -> EngineHealth {
        EngineHealth::unchecked()
    }

    fn new_session_handle(&self, _: &str) -> Option<EngineSessionHandle> {
        None
    }

    fn launch(&self, _: &LaunchContext<'_>) -> Result<ProcessSpec, UnsupportedOperation> {
        panic!("there are no slots")
    }

    fn interpreter(&self, _: &LaunchContext<'_>) -> Box<dyn ProcessInterpreter> {
        panic!("there are no slots")
    }

    fn skills_folder(&self) -> &str {
        "skills"
    }
}

impl Processes for NoopPorts {
    fn start(&self, name: &str, _: &StartRequest<'_>) -> Result<ProcessBinding, StartError> {
        Err(StartError::SystemError(name.to_owned()))
    }

    fn find(&self, _: &str) -> ProcessLookup {
        ProcessLookup::NotStarted
    }

    fn last_output_at(&self, _: &str) -> Option<Timestamp> {
        None
    }

    fn follow(&self, name: &str, _: OutputOffsets) -> Result<Box<dyn OutputFollower>, ProcessUnreachable> {
        Err(ProcessUnreachable { reason: name.to_owned() })
    }

    fn write(&self, name: &str, _: &StdinWrite<'_>) -> Result<(), ProcessUnreachable> {
        Err(ProcessUnreachable { reason: name.to_owned() })
    }

    fn signal(&self, name: &str, _: ProcessSignal) -> Result<(), ProcessUnreachable> {
        Err(ProcessUnreachable { reason: name.to_owned() })
    }

    fn terminate(&self, _: &str) -> Result<abide_domain::process::ExitStatus, ProcessUnreachable> {
        Ok(abide_domain::process::ExitStatus::Unknown)
    }

    fn names(&self) -> Vec<String> {
        vec![]
    }
}

impl Workspaces for NoopPorts {
    fn check(&self, workspace: &str) -> Result<(), WorkspaceError> {
        match workspace.ends_with(FORBIDDEN) {
            true => Err(WorkspaceError(format!("{workspace} is forbidden"))),
            false => Ok(()),
        }
    }

    fn check_skill(&self, _: &str, skill: &str) -> Result<(), WorkspaceError> {
        self.check(skill)
    }

    fn prepare(&self, _: &WorkspacePreparation<'_>) -> Result<(), WorkspaceError> {
        Ok(())
    }
}

/// Polls until the condition holds. Each poll is a request, so no delay is needed between two of them.
pub(crate) async fn poll_until<F: Future<Output = bool>>(condition: &str, holds: impl Fn() -> F) {
    let polling = async {
        while !holds().await {
            tokio::task::yield_now().await;
        }
    };
    if tokio::time::timeout(Duration::from_secs(60), polling).await.is_err() {
        panic!("{condition} did not happen");
    }
}
