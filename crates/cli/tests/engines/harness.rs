//! The harness of the engine tests: a home, an engine, a model, and the daemon's desk and performer.
//!
//! Each wait is for an event and has a timeout, so that a hang becomes a failure with a message.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use abide_daemon::{DaemonDeps, EffectExecutor, RunService};
use abide_domain::{
    event::{NewRun, RunEvent},
    id::RunId,
    inbound::{InboundMessage, MessageKey},
    interaction::Interaction,
    reply::{InteractionReply, ReplyAuthor},
    run::{Run, RunStatus},
    settings::{DEFAULT_SESSION_TIMEOUT, ExecutionMode, OnBusy, RunSettings, UnansweredPolicy},
    turn::Turn,
};
use abide_engines::catalogue::{EngineCatalogue, EngineConfig};
use abide_host::{
    clock::SystemClock,
    isolation::ProgramIsolator,
    processes::{KeeperProcesses, StandbyPolicy, TrackedKeepers},
    workspace::LocalWorkspaces,
};
use abide_keeper::launch::KeeperLauncher;
use abide_ports::{
    clock::Clock,
    engine::IsolationMode,
    processes::Processes,
    store::{PageRequest, Store},
};
use abide_store::memory::MemoryStore;
use abide_testkit::model::{ModelScript, ModelServer};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::{
    dressing::{API_KEY, write_config},
    programs::installed,
};

/// The timeout of a wait; longer than any turn of any engine on a busy machine.
const WAIT_TIMEOUT: Duration = Duration::from_secs(240);

pub(crate) struct ProgramTestDaemon {
    pub(crate) engine: String,
    pub(crate) model: ModelServer,
    pub(crate) workspace: PathBuf,
    pub(crate) home: TempDir,
    store: Arc<dyn Store>,
    run_service: Arc<RunService>,
    executor: EffectExecutor,
    processes: Arc<KeeperProcesses>,
    runtime: Runtime,
}

impl ProgramTestDaemon {
    /// Creates a harness for that engine; `None`, with a message, if its program is not installed.
    pub(crate) fn new(engine: &str, script: ModelScript) -> Option<Self> {
        Self::with_config(engine, script, |_, _| {})
    }

    /// Like [`ProgramTestDaemon::of`], with a change of the engine's configuration.
    pub(crate) fn with_config(
        engine: &str,
        script: ModelScript,
        alter: impl FnOnce(&mut EngineConfig, &Path),
    ) -> Option<Self> {
        let program = installed(engine)?;
        let home = tempfile::tempdir().expect("a home can be made");
        let model = ModelServer::start(script.require_key(API_KEY));
        let mut config = write_config(&program, home.path(), &model.url(""));
        alter(&mut config, home.path());
        let workspace = home.path().join("workspace");
        std::fs::create_dir(&workspace).expect("the home can be written");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime can be made");
        let binary = PathBuf::from(env!("CARGO_BIN_EXE_abide"));
        let processes = Arc::new(KeeperProcesses {
            directory: home.path().join("keepers"),
            launcher: KeeperLauncher {
                program: binary.clone(),
                arguments: vec!["__keeper".to_owned()],
                groups: None,
            },
            env: vec![
                ("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned()),
                ("LANG".to_owned(), "C.UTF-8".to_owned()),
                ("TERM".to_owned(), "dumb".to_owned()),
            ],
            // Engines run isolated from the keepers' directories.
            isolator: Some(ProgramIsolator::new(&home.path().join("keepers"), &binary, "/usr/bin:/bin")),
            retained_output_bytes: 1 << 30,
            keepers: TrackedKeepers::default(),
            standby: StandbyPolicy::One(Arc::default()),
        });
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let clock = Arc::new(SystemClock);
        let configured = BTreeMap::from([(engine.to_owned(), config)]);
        let (desk, performer) = runtime.block_on(async {
            let desk = RunService::open(store.clone(), clock.clone(), 4).await.expect("the desk opens");
            let desk = Arc::new(desk);
            let performer = EffectExecutor::new(DaemonDeps {
                desk: desk.clone(),
                store: store.clone(),
                clock,
                catalogue: Arc::new(EngineCatalogue::new(&configured, &binary, IsolationMode::Auto)),
                processes: processes.clone(),
                workspaces: Arc::new(LocalWorkspaces {
                    home: home.path().join("abide"),
                    store_folders: vec![],
                    artifacts_folder: abide_engines::asking::patch::ARTIFACTS_FOLDER,
                    skill_patch: abide_engines::asking::patch::skill_patch,
                }),
                private: home.path().join("runs").to_string_lossy().into_owned(),
                recovery_max: abide_domain::time::Seconds(300),
                contents: Arc::<abide_testkit::fake_engine::ContentsInMemory>::default(),
                space: abide_daemon::SpaceLimit::none(),
            });
            (desk, performer)
        });
        let engine = engine.to_owned();
        Some(Self {
            engine,
            model,
            workspace,
            home,
            store,
            run_service: desk,
            executor: performer,
            processes,
            runtime,
        })
    }

    /// Creates a run of this engine.
    pub(crate) fn start(&self, mode: ExecutionMode, prompt: &str) -> RunId {
        self.start_with(mode, prompt, |_| {})
    }

    /// Like [`ProgramTestDaemon::start`], with other settings.
    pub(crate) fn start_with(
        &self,
        mode: ExecutionMode,
        prompt: &str,
        alter: impl FnOnce(&mut RunSettings),
    ) -> RunId {
        let run_id = RunId(SystemClock.stamp().id_seed);
        let mut settings = RunSettings {
            engine: self.engine.clone(),
            workspace: self.workspace.to_string_lossy().into_owned(),
            execution_mode: mode,
            conversation_ref: None,
            unanswered: UnansweredPolicy::Strict,
            session_timeout_sec: DEFAULT_SESSION_TIMEOUT,
            turn_timeout_sec: None,
            on_busy: OnBusy::Queue,
            model: None,
            sandbox: None,
            isolation: None,
            skill: None,
            labels: BTreeMap::new(),
        };
        alter(&mut settings);
        let new = NewRun {
            run_id,
            settings,
            message: message(prompt),
            idempotency: None,
            rules: abide_domain::run::CURRENT_RULES_VERSION,
        };
        self.runtime.block_on(async {
            let outcome = self.run_service.create(new).await.expect("the run is taken");
            self.executor.follow_up(&outcome).await;
        });
        run_id
    }

    /// Sends a message to a run.
    pub(crate) fn send_message(&self, run: RunId, text: &str) {
        self.runtime.block_on(async {
            let outcome =
                self.run_service.message(run, message(text), None).await.expect("the message is taken");
            self.executor.follow_up(&outcome).await;
        });
    }

    /// Sends a message to a run whose turn is running.
    pub(crate) fn send_while_busy(&self, run: RunId, text: &str, on_busy: OnBusy) {
        self.runtime.block_on(async {
            let outcome = self.run_service.message(run, message(text), Some(on_busy)).await;
            self.executor.follow_up(&outcome.expect("the message is taken")).await;
        });
    }

    /// Interrupts the running turn.
    pub(crate) fn interrupt(&self, run: RunId) {
        self.runtime.block_on(async {
            let event = RunEvent::InterruptRequested { by: "tester".to_owned() };
            let outcome = self.run_service.take(run, event).await.expect("the request is accepted");
            self.executor.follow_up(&outcome).await;
        });
    }

    /// Replies to the open question of a run.
    pub(crate) fn reply(&self, run: RunId, text: &str) {
        let interaction_id = self.question(run).interaction_id;
        let by = ReplyAuthor::Person("tester".to_owned());
        let reply = InteractionReply { interaction_id, text: text.to_owned(), by, idempotency_key: None };
        self.runtime.block_on(async {
            let outcome = self.run_service.reply(reply).await.expect("the reply is taken");
            self.executor.follow_up(&outcome).await;
        });
    }

    /// Cancels a run.
    pub(crate) fn cancel(&self, run: RunId) {
        self.runtime.block_on(async {
            let event = RunEvent::CancelRequested { by: "tester".to_owned() };
            let outcome = self.run_service.take(run, event).await.expect("the request is accepted");
            self.executor.follow_up(&outcome).await;
        });
    }

    /// Waits until a run has this status and no pending effects.
    pub(crate) fn wait_for_status(&self, run: RunId, status: RunStatus) -> Run {
        self.wait_until(run, &format!("{status:?}"), |run| {
            run.status() == status && run.pending_effects.is_empty()
        })
    }

    /// Waits until `wanted` returns true for a run. Panics if the run has ended otherwise.
    pub(crate) fn wait_until(&self, run: RunId, what: &str, wanted: impl Fn(&Run) -> bool) -> Run {
        self.runtime.block_on(async {
            let mut changes = self.executor.changes();
            let mut last = None;
            let waiting = async {
                loop {
                    changes.mark_unchanged();
                    let state =
                        self.store.run(run).await.expect("memory can be read").expect("the run is there");
                    if wanted(&state) {
                        return Ok(state);
                    }
                    let over = matches!(
                        state.status(),
                        RunStatus::Succeeded | RunStatus::Failed | RunStatus::Canceled
                    );
                    if over && state.pending_effects.is_empty() && self.processes.names().is_empty() {
                        return Err(state);
                    }
                    last = Some(state);
                    changes.changed().await.expect("the performer lives");
                }
            };
            match tokio::time::timeout(WAIT_TIMEOUT, waiting).await {
                Ok(Ok(state)) => state,
                Ok(Err(state)) => panic!("{} never comes to {what}: {state:#?}", self.engine),
                Err(_) => panic!("{} does not come to {what}: {last:#?}", self.engine),
            }
        })
    }

    /// Returns the open question of a run.
    pub(crate) fn question(&self, run: RunId) -> Interaction {
        let open = self.runtime.block_on(self.store.open_interactions(PageRequest::first(100)));
        let open = open.expect("memory can be read").items;
        open.into_iter().find(|question| question.run_id == run).expect("the run has an open question")
    }

    /// Returns the number of open questions of all runs.
    pub(crate) fn open_questions(&self) -> usize {
        let open = self.runtime.block_on(self.store.open_interactions(PageRequest::first(100)));
        open.expect("memory can be read").items.len()
    }

    /// Returns the turns of a run in the ledger.
    pub(crate) fn turns(&self, run: RunId) -> Vec<Turn> {
        let turns = self.runtime.block_on(self.store.turns_of(run, PageRequest::first(100)));
        turns.expect("memory can be read").items
    }

    /// Waits for the next minute of the clock: some programs use the minute in file names.
    pub(crate) fn wait_for_next_minute(&self) {
        let now = SystemClock.stamp().at.0;
        let left = 60_000_000 - now.rem_euclid(60_000_000) + 500_000;
        let left = Duration::from_micros(left.unsigned_abs());
        self.runtime.block_on(async { tokio::time::sleep(left).await });
    }

    /// Returns the names of the kept processes.
    pub(crate) fn process_names(&self) -> Vec<String> {
        self.processes.names()
    }
}

impl Drop for ProgramTestDaemon {
    fn drop(&mut self) {
        for name in self.processes.names() {
            // Best effort: the temporary home is deleted next.
            self.processes.terminate(&name).ok();
        }
    }
}

fn message(text: &str) -> InboundMessage {
    let message_id = SystemClock.stamp().id_seed.to_string();
    InboundMessage { key: MessageKey { channel: "test".to_owned(), message_id }, text: text.to_owned() }
}
