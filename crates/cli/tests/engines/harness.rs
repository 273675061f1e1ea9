//! The harness of the engine tests: a home, an engine, a model, and the daemon.
//!
//! Each wait is for an event and has a timeout, so that a hang becomes a failure with a message.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use abide_daemon::Daemon;
use abide_domain::{
    id::RunId,
    inbound::{InboundMessage, MessageKey},
    interaction::Interaction,
    reply::{InteractionReply, ReplyAuthor},
    run::{Run, RunStatus},
    settings::{ExecutionMode, OnBusy, RunSettings},
    turn::Turn,
};
use abide_engines::catalogue::{EngineCatalogue, EngineConfig};
use abide_host::{clock::SystemClock, isolation::ProgramIsolator, processes::KeeperProcesses};
use abide_ports::{
    clock::Clock,
    engine::IsolationMode,
    processes::Processes as _,
    store::{PageRequest, Store},
};
use abide_store::memory::MemoryStore;
use abide_testkit::{
    model::{ModelScript, ModelServer},
    wait,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::{
    dressing::{API_KEY, write_config},
    in_process::{self, ChosenPorts, new_run},
    program_ports::{binary, keeper_processes, local_workspaces, terminate_all},
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
    daemon: Daemon,
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
        // Engines run isolated from the keepers' directories.
        let isolator = ProgramIsolator::new(&home.path().join("keepers"), &binary(), "/usr/bin:/bin");
        let processes = Arc::new(keeper_processes(home.path(), Some(isolator)));
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let configured = BTreeMap::from([(engine.to_owned(), config)]);
        let ports = ChosenPorts {
            store: store.clone(),
            catalogue: Arc::new(EngineCatalogue::new(&configured, &binary(), IsolationMode::Auto)),
            processes: processes.clone(),
            workspaces: Arc::new(local_workspaces(home.path().join("abide"))),
            private_dir: home.path().join("runs").to_string_lossy().into_owned(),
        };
        let daemon = runtime.block_on(in_process::open_daemon(ports, 4));
        Some(Self { engine: engine.to_owned(), model, workspace, home, store, daemon, processes, runtime })
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
        let workspace = self.workspace.to_string_lossy();
        let mut new = new_run(run_id, &self.engine, &workspace, prompt);
        new.settings.execution_mode = mode;
        alter(&mut new.settings);
        self.runtime.block_on(async { self.daemon.create(new).await.expect("the run is taken") });
        run_id
    }

    /// Sends a message to a run.
    pub(crate) fn send_message(&self, run: RunId, text: &str) {
        self.runtime.block_on(async {
            self.daemon.message(run, message(text), None).await.expect("the message is taken");
        });
    }

    /// Sends a message to a run whose turn is running.
    pub(crate) fn send_while_busy(&self, run: RunId, text: &str, on_busy: OnBusy) {
        self.runtime.block_on(async {
            self.daemon.message(run, message(text), Some(on_busy)).await.expect("the message is taken");
        });
    }

    /// Interrupts the running turn.
    pub(crate) fn interrupt(&self, run: RunId) {
        self.runtime.block_on(async {
            self.daemon.interrupt(run, "tester").await.expect("the request is accepted");
        });
    }

    /// Replies to the open question of a run.
    pub(crate) fn reply(&self, run: RunId, text: &str) {
        let question = self.question(run);
        let interaction_id = question.interaction_id;
        let by = ReplyAuthor::Person("tester".to_owned());
        let reply = InteractionReply { interaction_id, text: text.to_owned(), by, idempotency_key: None };
        self.runtime.block_on(async {
            let asked = self.daemon.question(interaction_id).await.expect("memory can be read");
            self.daemon.reply(reply, asked.expect("it is there")).await.expect("the reply is taken");
        });
    }

    /// Cancels a run.
    pub(crate) fn cancel(&self, run: RunId) {
        self.runtime.block_on(async {
            self.daemon.cancel(run, "tester").await.expect("the request is accepted");
        });
    }

    /// Waits until a run has this status and no pending effects.
    pub(crate) fn wait_for_status(&self, run: RunId, status: RunStatus) -> Run {
        self.wait_until(run, &format!("{status:?}"), |run| {
            run.status() == status && run.pending_effects.is_empty()
        })
    }

    /// Waits until `wanted` returns true for a run. Panics if the run has ended otherwise.
    pub(crate) fn wait_until(&self, run: RunId, label: &str, condition: impl Fn(&Run) -> bool) -> Run {
        self.runtime.block_on(async {
            let mut changes = self.daemon.changes();
            let mut last = None;
            let waiting = async {
                loop {
                    changes.mark_unchanged();
                    let state =
                        self.store.run(run).await.expect("memory can be read").expect("the run is there");
                    if condition(&state) {
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
                    changes.changed().await.expect("the daemon lives");
                }
            };
            match tokio::time::timeout(WAIT_TIMEOUT, waiting).await {
                Ok(Ok(state)) => state,
                Ok(Err(state)) => panic!("{} never comes to {label}: {state:#?}", self.engine),
                Err(_) => panic!("{} does not come to {label}: {last:#?}", self.engine),
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
        let minute = || SystemClock.stamp().at.0.div_euclid(60_000_000);
        let start = minute();
        wait::until("the next minute", || minute() != start);
    }

    /// Returns the names of the kept processes.
    pub(crate) fn process_names(&self) -> Vec<String> {
        self.processes.names()
    }
}

impl Drop for ProgramTestDaemon {
    fn drop(&mut self) {
        terminate_all(&*self.processes, &self.processes.names());
    }
}

fn message(text: &str) -> InboundMessage {
    let message_id = SystemClock.stamp().id_seed.to_string();
    InboundMessage { key: MessageKey { channel: "test".to_owned(), message_id }, text: text.to_owned() }
}
