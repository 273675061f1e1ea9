//! The parts of a daemon in this process: a run service and an effect executor on given ports. Tests and benchmarks that
//! need other ports than those of the real daemon share it; others start the real daemon with `abide_testkit::daemon`.

use std::{collections::BTreeMap, sync::Arc};

use abide_daemon::{DaemonDeps, EffectExecutor, RequestError, RunService, SpaceLimit};
use abide_domain::{
    event::NewRun,
    id::RunId,
    inbound::{InboundMessage, MessageKey},
    run::CURRENT_RULES_VERSION,
    settings::{DEFAULT_SESSION_TIMEOUT, ExecutionMode, OnBusy, RunSettings, UnansweredPolicy},
    time::Seconds,
};
use abide_host::clock::SystemClock;
use abide_ports::{catalogue::EngineLookup, processes::Processes, store::Store, workspace::Workspaces};
use abide_testkit::fake_engine::ContentsInMemory;

/// The ports that the users of this module choose.
pub(crate) struct ChosenPorts {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) catalogue: Arc<dyn EngineLookup>,
    pub(crate) processes: Arc<dyn Processes>,
    pub(crate) workspaces: Arc<dyn Workspaces>,
    /// The directory for private files of runs.
    pub(crate) private_dir: String,
}

#[derive(Clone)]
pub(crate) struct InProcessDaemon {
    pub(crate) run_service: Arc<RunService>,
    pub(crate) executor: EffectExecutor,
}

impl InProcessDaemon {
    /// Assembles the parts. Called in the runtime that executes the effects.
    pub(crate) async fn assemble(ports: ChosenPorts, slots: usize) -> Self {
        let ChosenPorts { store, catalogue, processes, workspaces, private_dir } = ports;
        let clock = Arc::new(SystemClock);
        let run_service = RunService::open(store.clone(), clock.clone(), slots).await;
        let run_service = Arc::new(run_service.expect("the store can be read"));
        let executor = EffectExecutor::new(DaemonDeps {
            desk: run_service.clone(),
            store,
            clock,
            catalogue,
            processes,
            workspaces,
            private: private_dir,
            recovery_max: Seconds(300),
            contents: Arc::<ContentsInMemory>::default(),
            space: SpaceLimit::none(),
        });
        Self { run_service, executor }
    }

    /// Creates a run and executes its first effects.
    pub(crate) async fn create(&self, new: NewRun) -> Result<(), RequestError> {
        let outcome = self.run_service.create(new).await?;
        self.executor.follow_up(&outcome).await;
        Ok(())
    }
}

/// A run with default settings. The id of its first message is derived from the run's.
pub(crate) fn new_run(run_id: RunId, engine: &str, workspace: &str, prompt: &str) -> NewRun {
    let key = MessageKey { channel: "test".to_owned(), message_id: run_id.to_string() };
    NewRun {
        run_id,
        settings: RunSettings {
            engine: engine.to_owned(),
            workspace: workspace.to_owned(),
            execution_mode: ExecutionMode::Interactive,
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
        },
        message: InboundMessage { key, text: prompt.to_owned() },
        idempotency: None,
        rules: CURRENT_RULES_VERSION,
    }
}
