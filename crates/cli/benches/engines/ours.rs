//! The same turn through Abide: keeper and daemon, on a ledger in SQLite.
//!
//! Our time is computed from the times in the journal, the keeper's exit record and the calls to the keepers. The
//! difference of two long times would be dominated by the noise of the program.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use abide_daemon::Daemon;
use abide_domain::{
    engine::ProfileKind,
    event::RunEvent,
    id::RunId,
    run::{Run, RunStatus},
};
use abide_engines::catalogue::{EngineCatalogue, EngineConfig};
use abide_host::clock::SystemClock;
use abide_ports::{
    catalogue::{EngineLookup, InstalledEngine},
    clock::Clock,
    engine::IsolationMode,
    processes::Processes as _,
    store::{JournalEntry, JournalSeq, Store},
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::{
    in_process::{self, ChosenPorts, new_run},
    program_ports::{binary, keeper_processes, local_workspaces, program_env, terminate_all},
    watched::{OutputTimeKind, ProcessTimes, TimedProcesses},
};

/// The prompt for the agent.
pub(crate) const PROMPT: &str = "stone 1 of the wall";

/// The timeout of a turn; longer than any turn of any engine on a busy machine.
const TURN_TIMEOUT: Duration = Duration::from_secs(240);
const MAX_JOURNAL_ENTRIES: usize = 10_000;

/// The parts of a daemon, for one engine.
pub(crate) struct BenchDaemon {
    engine: String,
    home: PathBuf,
    pub(crate) entry: InstalledEngine,
    pub(crate) env: Vec<(String, String)>,
    store: Arc<dyn Store>,
    daemon: Daemon,
    processes: Arc<TimedProcesses>,
    runtime: Runtime,
    _ledger: TempDir,
}

/// The times of a turn through Abide, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DaemonTurnTimes {
    pub(crate) kind: ProfileKind,
    /// From the run's creation until its first turn was ordered: its program is examined.
    pub(crate) probe: f64,
    /// From the order until the session's id was read.
    pub(crate) to_handle: f64,
    /// From the order until the keeper was called.
    pub(crate) until_keeper_call: f64,
    /// From there until the keeper was about to start the program. The start itself is also part of the bare program's
    /// time.
    pub(crate) until_spawn: f64,
    /// From there until the program ran, had its input and was registered. The program works meanwhile, so this is not
    /// part of our time.
    pub(crate) until_registered: f64,
    /// From reading the session's id until it was committed. The program works meanwhile and does not wait for it, so
    /// this is not part of our time either.
    pub(crate) until_handle_committed: f64,
    /// From the process's exit until the exit was read; 0 if its output ended the turn.
    pub(crate) until_exit_read: f64,
    /// From there until the end of the turn was committed.
    pub(crate) until_end_committed: f64,
}

impl DaemonTurnTimes {
    /// Returns the sum of our times.
    pub(crate) fn own(&self) -> f64 {
        self.until_keeper_call + self.until_spawn + self.after()
    }

    /// Returns our time after the program's end.
    pub(crate) fn after(&self) -> f64 {
        self.until_exit_read + self.until_end_committed
    }
}

impl BenchDaemon {
    pub(crate) fn build(engine: &str, home: &Path, config: EngineConfig) -> Result<Self, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let processes = Arc::new(TimedProcesses::new(keeper_processes(home, None)));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(|error| text(&error))?;
        // Next to the build, because the temporary folder may be a tmpfs.
        let ledger = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).map_err(|error| text(&error))?;
        let configured = BTreeMap::from([(engine.to_owned(), config)]);
        let catalogue = Arc::new(EngineCatalogue::new(&configured, &binary(), IsolationMode::Off));
        let entry = catalogue.engine(engine).ok_or("unknown engine")?;
        let url = format!("sqlite:{}", ledger.path().join("abide.db").display());
        let store = runtime.block_on(abide_store::registry::open(&url)).map_err(|error| text(&error))?;
        let ports = ChosenPorts {
            store: store.clone(),
            catalogue,
            processes: processes.clone(),
            workspaces: Arc::new(local_workspaces(home.to_owned())),
            private_dir: home.join("runs").to_string_lossy().into_owned(),
        };
        let daemon = runtime.block_on(in_process::open_daemon(ports, 4));
        let (engine, home) = (engine.to_owned(), home.to_owned());
        Ok(Self {
            engine,
            home,
            entry,
            env: program_env(),
            store,
            daemon,
            processes,
            runtime,
            _ledger: ledger,
        })
    }

    /// Runs one turn, up to the end of its process.
    pub(crate) fn turn(&self) -> Result<DaemonTurnTimes, String> {
        let run_id = RunId(SystemClock.stamp().id_seed);
        let (run, journal) = self.runtime.block_on(async {
            let mut changes = self.daemon.changes();
            // On a thread of the runtime, as requests are handled in the daemon.
            let daemon = self.daemon.clone();
            let new = new_run(run_id, &self.engine, &self.home.join("workspace").to_string_lossy(), PROMPT);
            let created = tokio::spawn(async move { daemon.create(new).await });
            created.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
            let run = tokio::time::timeout(TURN_TIMEOUT, self.wait_for_end(run_id, &mut changes))
                .await
                .map_err(|_| "the turn does not come to an end".to_owned())??;
            let journal = self.store.entries_of(run_id, JournalSeq(0), MAX_JOURNAL_ENTRIES).await;
            Ok::<_, String>((run, journal.map_err(|error| error.to_string())?))
        })?;
        if run.status() != RunStatus::Succeeded {
            return Err(format!("the run came to {:?}: {:?}", run.status(), run.error()));
        }
        let kind = run.profile.as_ref().map(|profile| profile.kind).ok_or("it was never examined")?;
        let seen =
            self.processes.take_times(&format!("{run_id}-1")).ok_or("nothing was held for the turn")?;
        split_turn_time(kind, &journal, &seen).ok_or_else(|| format!("no times in {journal:?} and {seen:?}"))
    }

    /// Waits until a run has ended and none of its processes is kept.
    async fn wait_for_end(
        &self,
        run_id: RunId,
        changes: &mut tokio::sync::watch::Receiver<u64>,
    ) -> Result<Run, String> {
        loop {
            changes.mark_unchanged();
            let run = self.store.run(run_id).await.map_err(|error| error.to_string())?;
            let run = run.ok_or("the run is not there")?;
            // A question does not end the run, and there is no person to answer it.
            let over = match run.status() {
                RunStatus::Succeeded | RunStatus::Failed | RunStatus::Canceled | RunStatus::WaitingUser => {
                    true
                }
                RunStatus::Queued | RunStatus::Running | RunStatus::Idle => false,
            };
            if over && run.pending_effects.is_empty() && self.processes.names().is_empty() {
                return Ok(run);
            }
            changes.changed().await.map_err(|error| error.to_string())?;
        }
    }
}

impl Drop for BenchDaemon {
    fn drop(&mut self) {
        terminate_all(&*self.processes, &self.processes.names());
    }
}

/// Splits the time of a turn, using the journal and the observed calls.
fn split_turn_time(
    kind: ProfileKind,
    journal: &[JournalEntry],
    seen: &ProcessTimes,
) -> Option<DaemonTurnTimes> {
    let when = |matches_event: fn(&RunEvent) -> bool| {
        journal.iter().find(|entry| matches_event(&entry.event)).map(|entry| entry.stamp.at.0)
    };
    let created = when(|event| matches!(event, RunEvent::RunCreated(_)))?;
    let ordered = when(|event| matches!(event, RunEvent::ProfileResolved { .. }))?;
    let ended = when(|event| matches!(event, RunEvent::TurnEnded { .. }))?;
    // A time is taken before its commit, and output is requested only after the output before it was committed.
    let committed = |stamp: i64| {
        let read_times = seen.reads.iter().map(|piece| piece.called);
        let exited_at = when(|event| matches!(event, RunEvent::ProcessExited { .. }));
        read_times.chain(exited_at).chain([seen.end_called]).filter(|at| *at > stamp).min()
    };
    let heard_before = |stamp: i64| {
        let before =
            seen.reads.iter().filter(|piece| piece.kind != OutputTimeKind::Other && piece.returned <= stamp);
        before.max_by_key(|piece| piece.returned)
    };
    let spawned = seen.spawned?;
    let first_words =
        seen.reads.iter().find(|piece| piece.kind == OutputTimeKind::Stdout).map(|piece| piece.returned)?;
    // A session id that we chose ourselves is not announced; the first output is used instead.
    let announced = when(|event| matches!(event, RunEvent::HandleAnnounced { .. })).unwrap_or(first_words);
    let (named_heard, named) = (heard_before(announced)?.returned, committed(announced)?);
    let end = heard_before(ended)?;
    // Some programs report the end of their turn; for others it is their exit.
    let (end_heard, last) = match end.kind {
        OutputTimeKind::Exited => (end.returned, seen.exited?),
        OutputTimeKind::Stdout | OutputTimeKind::Other => (end.returned, end.returned),
    };
    Some(DaemonTurnTimes {
        kind,
        probe: (ordered - created) as f64,
        to_handle: (named_heard - ordered) as f64,
        until_keeper_call: (seen.start_called - ordered) as f64,
        until_spawn: (spawned - seen.start_called) as f64,
        until_registered: (seen.start_returned - spawned) as f64,
        until_handle_committed: (named - named_heard) as f64,
        until_exit_read: (end_heard - last) as f64,
        until_end_committed: (committed(ended)? - end_heard) as f64,
    })
}
