//! The parts of a daemon with a fake engine, and clients that reply at once.

use std::{path::Path, sync::Arc, time::Duration};

use abide_daemon::Daemon;
use abide_domain::{
    event::NewRun,
    id::RunId,
    process::ExitStatus,
    reply::{InteractionReply, ReplyAuthor},
    run::{Run, RunStatus},
};
use abide_host::clock::SystemClock;
use abide_observe::observed_store::ObservedStore;
use abide_ports::{clock::Clock, processes::ProcessOutput, store::Store};
use abide_testkit::fake_engine::{FakeCatalogue, FakeLaunch, FakeProcesses, NoopWorkspaces};

use crate::{
    counted::CountingStore,
    in_process::{self, ChosenPorts},
    now,
};

#[derive(Clone)]
pub(crate) struct CycleBenchDaemon {
    pub(crate) store: Arc<ObservedStore<CountingStore>>,
    daemon: Daemon,
}

impl CycleBenchDaemon {
    /// Creates the parts of a daemon with this number of slots.
    pub(crate) async fn build(folder: &Path, slots: usize) -> Self {
        let url = format!("sqlite:{}/abide.db", folder.display());
        let inner = abide_store::registry::open(&url).await.expect("the store opens");
        let store = Arc::new(CountingStore::new(inner));
        let daemon = in_process::open_daemon(fake_engine_ports(store.clone()), slots).await;
        Self { store, daemon }
    }

    /// Returns the commits of one cycle, each as the lengths of its rows. A cycle before it has the engine examined.
    pub(crate) async fn shape(&self) -> Vec<Vec<usize>> {
        self.cycle().await;
        self.store.0.counts.reset();
        self.store.0.counts.record_rows();
        self.cycle().await;
        self.store.0.counts.shape()
    }

    /// Returns the number of cycles per second with this number of clients.
    pub(crate) async fn cycles(&self, clients: usize, round: Duration) -> f64 {
        let start = now();
        let mut tasks = Vec::new();
        for _ in 0..clients {
            let daemon = self.clone();
            tasks.push(tokio::spawn(async move {
                let mut count = 0u64;
                while start.elapsed() < round {
                    daemon.cycle().await;
                    count += 1;
                }
                count
            }));
        }
        let mut count = 0;
        for task in tasks {
            count += task.await.expect("the cycles are done");
        }
        count as f64 / start.elapsed().as_secs_f64()
    }

    async fn cycle(&self) {
        let run_id = RunId(SystemClock.stamp().id_seed);
        let mut updates = self.store.0.watch(run_id);
        self.daemon.create(new_run(run_id)).await.expect("it is created");
        let waiting: Arc<Run> = updates.recv().await.expect("it asks");
        let interaction_id = waiting.pending_interaction_id().expect("it asks");
        let by = ReplyAuthor::Person("ada".to_owned());
        let text = "the second of them, please".to_owned();
        let reply = InteractionReply { interaction_id, text, by, idempotency_key: None };
        let question = waiting.interactions.iter().find(|question| question.interaction_id == interaction_id);
        self.daemon.reply(reply, question.expect("the run has its question")).await.expect("it is taken");
        let finished = updates.recv().await.expect("it finishes");
        assert_eq!(finished.status(), RunStatus::Succeeded);
    }
}

/// This store, with the fake engine.
pub(crate) fn fake_engine_ports(store: Arc<dyn Store>) -> ChosenPorts {
    ChosenPorts {
        store,
        catalogue: Arc::new(FakeCatalogue),
        processes: Arc::new(FakeProcesses::new(ask_once_script)),
        workspaces: Arc::new(NoopWorkspaces),
        private_dir: "private".to_owned(),
    }
}

/// Asks in a new session, and finishes in a resumed one.
fn ask_once_script(launch: FakeLaunch<'_>) -> Vec<ProcessOutput> {
    let last = if launch.session.is_empty() {
        "ask Which of the two places shall the new test go to?"
    } else {
        "done The test is written and passes."
    };
    let output = format!("session 01890a5d-ac96-774b-bcce-b302099a8057\n{last}\n");
    vec![ProcessOutput::Stdout(output.into_bytes()), ProcessOutput::Exited(ExitStatus::Code(0))]
}

pub(crate) fn new_run(run_id: RunId) -> NewRun {
    let prompt = "write a test for the store, then open a request";
    let mut new = in_process::new_run(run_id, "actor", "src/project", prompt);
    new.settings.sandbox = Some("workspace-write".to_owned());
    new
}
