//! A daemon in this process, on given ports. Tests and benchmarks that need other ports than those of the real daemon
//! share it; others start the real daemon with `abide_testkit::daemon`.

use std::{collections::BTreeMap, sync::Arc};

use abide_daemon::{Daemon, DaemonConfig, DaemonDeps, SpaceLimit};
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

/// Opens a daemon on these ports. Called in the runtime that runs its event loop.
pub(crate) async fn open_daemon(ports: ChosenPorts, slots: usize) -> Daemon {
    let ChosenPorts { store, catalogue, processes, workspaces, private_dir } = ports;
    let deps = DaemonDeps {
        store,
        clock: Arc::new(SystemClock),
        catalogue,
        processes,
        workspaces,
        private: private_dir,
        recovery_max: Seconds(300),
        contents: Arc::<ContentsInMemory>::default(),
        space: SpaceLimit::none(),
    };
    let config = DaemonConfig { stall_after: Seconds(60), slots, workspaces: "workspaces".to_owned() };
    Daemon::open(deps, config).await.expect("the store can be read")
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
