//! Assembles the daemon from its adapters: store, clock, engines, keepers, folders.

use std::{
    path::Path,
    sync::{Arc, Mutex},
};

use abide_api::metrics::DaemonMetrics;
use abide_daemon::{CrashGuard, Daemon, DaemonConfig, DaemonDeps, GuardPauses, RunService, SpaceLimit};
use abide_domain::time::Seconds;
use abide_ports::{store::Store, watch::CommitObserver};
use abide_store::{
    LossPolicy,
    registry::{self, OpenedStore, StoreOptions},
};
use abide_terminal::RuntimeHandle;
use anyhow::Context;

use crate::{
    catalogue::EngineCatalogue,
    clock::SystemClock,
    config::CliConfig,
    contents::ContentFiles,
    crash_guard,
    groups::GroupDecision,
    home, made,
    processes::{KeeperProcesses, StandbyPolicy},
    retention::RetentionTask,
    space::FileSystems,
    store,
    watched::{CommitNotifier, WriterSharing},
    workspace::LocalWorkspaces,
};

/// Assembles the daemon of this home and its retention task.
pub(super) async fn daemon(
    config: &CliConfig,
    home: &Path,
    loss: LossPolicy,
    metrics: &DaemonMetrics,
    watchers: Vec<Arc<dyn CommitObserver>>,
) -> anyhow::Result<(Daemon, RetentionTask)> {
    let opening = StoreOptions { home: Some(home.to_owned()), loss, only_looks: false };
    let OpenedStore { store, notes } =
        registry::open_with(&config.store, opening).await.map_err(store::refused)?;
    for note in notes {
        tracing::warn!(note, "store opened");
    }
    // A commit to a database server may have an unknown outcome, so the server counts the runs.
    let writers =
        if config.store.starts_with("sqlite:") { WriterSharing::Alone } else { WriterSharing::Shared };
    let watched = CommitNotifier::open(store, writers, watchers).await.context("cannot read the store")?;
    let store: Arc<dyn Store> = Arc::new(watched);
    let clock = Arc::new(SystemClock);
    let slots = usize::try_from(config.slots.max_running).unwrap_or(usize::MAX);
    let desk =
        RunService::open(store.clone(), clock.clone(), slots).await.context("cannot read the store")?;
    let own = std::env::current_exe().context("cannot find this program")?;
    let GroupDecision { groups, unavailable, warning } = home::groups(config)?;
    match (&groups, &unavailable) {
        (Some(groups), _) => tracing::info!(base = %groups.base.display(), "control groups are used"),
        (None, reason) => tracing::info!(reason, "no control groups: processes are found by their parents"),
    }
    if let Some(warning) = &warning {
        tracing::warn!("{warning}");
    }
    let world = DaemonDeps {
        desk: Arc::new(desk),
        store,
        clock,
        catalogue: Arc::new(EngineCatalogue::new(&config.engines(), &own, config.isolation())),
        processes: Arc::new(KeeperProcesses {
            directory: home.join("keepers"),
            launcher: home::launcher_with(groups.clone())?,
            env: home::environment_of_children(),
            isolator: Some(home::isolator(home)?.with_unapplied_limits(warning)),
            retention: RETENTION,
            children: Mutex::default(),
            readiness: StandbyPolicy::One(Arc::default()),
        }),
        workspaces: Arc::new(LocalWorkspaces),
        private: home.join("runs").to_string_lossy().into_owned(),
        recovery_max: Seconds(config.recovery.max_sec),
        contents: Arc::new(ContentFiles { home: home.to_owned() }),
        space: SpaceLimit {
            space: Some(Arc::new(FileSystems)),
            min_free_bytes: config.limits.min_free_bytes,
            home: home.to_string_lossy().into_owned(),
        },
    };
    let habits = DaemonConfig {
        stall_after: Seconds(config.stall_after_sec),
        slots,
        workspaces: home.join("workspaces").to_string_lossy().into_owned(),
    };
    made::adopt(home).context("cannot note which directories are Abide's")?;
    let (record, remains) = crash_guard::open(home)?;
    let record = Arc::new(record);
    let guard = CrashGuard::open(record.clone(), remains, world.clock.clone(), guard_pauses());
    record.clear();
    let metrics = metrics.clone();
    let keeping = RetentionTask {
        home: home.to_owned(),
        store: world.store.clone(),
        clock: world.clock.clone(),
        processes: world.processes.clone(),
        settings: config.retention.clone(),
        removed: Box::new(move |what| metrics.removed(what)),
        looked_at: Mutex::default(),
        last_tried: Mutex::default(),
        guard: guard.clone(),
        groups,
    };
    Ok((Daemon::guarded(world, habits, guard), keeping))
}

/// Maximum bytes of each stream in the result of a command. The daemon serves many clients, and escaped JSON can be six
/// times as large. The rest is read with `exec.output`.
const RESULT_BYTES: u64 = 1 << 20;

pub(super) fn terminals(config: &CliConfig) -> anyhow::Result<RuntimeHandle> {
    let mut terminal = home::terminal(config, false)?;
    terminal.limits.result_bytes = RESULT_BYTES;
    RuntimeHandle::start(terminal).context("cannot start the terminal runtime")
}

/// Times for which the crash guard sets operations aside; shortened for crash tests.
#[cfg(feature = "failpoints")]
fn guard_pauses() -> GuardPauses {
    match home::variable("SIEGE_GUARD_PAUSE_MS").and_then(|text| text.parse().ok()) {
        Some(milliseconds) => {
            let pause = std::time::Duration::from_millis(milliseconds);
            GuardPauses { first: pause, last: pause }
        }
        None => GuardPauses::default(),
    }
}

#[cfg(not(feature = "failpoints"))]
fn guard_pauses() -> GuardPauses {
    GuardPauses::default()
}

/// Maximum bytes of unread output of a process. Beyond it the process blocks, also while no daemon runs.
const RETENTION: u64 = 1 << 30;
