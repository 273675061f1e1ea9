//! Assembles the daemon from its adapters: store, clock, engines, keepers, folders.

use std::{path::Path, sync::Arc};

use abide_daemon::{CrashGuard, Daemon, DaemonConfig, DaemonDeps, GuardPauses, SpaceLimit};
use abide_domain::{run, time::Seconds};
use abide_engines::{
    asking::patch::{ARTIFACTS_FOLDER, skill_patch},
    catalogue::EngineCatalogue,
};
use abide_host::{
    clock::SystemClock,
    content_files::ContentFiles,
    control_groups::GroupDecision,
    crash_record, created_dirs,
    disk_space::FileSystems,
    home_folders::HomeFolder,
    processes::{KeeperProcesses, StandbyPolicy, TrackedKeepers},
    retention::{RetentionDeps, RetentionTask},
    store_folders,
    workspace::LocalWorkspaces,
};
use abide_observe::{
    commit_notifier::{CommitNotifier, WriterSharing},
    metrics::DaemonMetrics,
};
use abide_ports::{observer::CommitObserver, store::Store};
use abide_store::{
    LossPolicy,
    registry::{self, OpenedStore, StoreOptions},
};
use abide_terminal::RuntimeHandle;
use anyhow::Context;

use crate::{config::CliConfig, home, store};

/// The daemon of a home with the parts that run beside it.
pub(super) struct AssembledDaemon {
    pub(super) daemon: Daemon,
    pub(super) store: Arc<dyn Store>,
    pub(super) retention: RetentionTask,
    pub(super) guard: CrashGuard,
}

/// Assembles the daemon of this home.
pub(super) async fn assemble_daemon(
    config: &CliConfig,
    home: &Path,
    loss: LossPolicy,
    metrics: &DaemonMetrics,
    observers: Vec<Arc<dyn CommitObserver>>,
) -> anyhow::Result<AssembledDaemon> {
    let opening = StoreOptions { home: Some(home.to_owned()), loss, read_only: false };
    let OpenedStore { store, notes } =
        registry::open_with(&config.store, opening).await.map_err(store::open_error)?;
    for note in notes {
        tracing::warn!(note, "store opened");
    }
    // A commit to a database server may have an unknown outcome, so the server counts the runs.
    let writers =
        if config.store.starts_with("sqlite:") { WriterSharing::Exclusive } else { WriterSharing::Shared };
    let observed = CommitNotifier::open(store, writers, observers).await.context("cannot read the store")?;
    let store: Arc<dyn Store> = Arc::new(observed);
    let clock = Arc::new(SystemClock);
    let slots = usize::try_from(config.slots.max_running).unwrap_or(usize::MAX);
    let program = std::env::current_exe().context("cannot find this program")?;
    let GroupDecision { groups, unavailable, warning } = home::control_groups(config)?;
    match (&groups, &unavailable) {
        (Some(groups), _) => tracing::info!(base = %groups.base.display(), "control groups are used"),
        (None, reason) => tracing::info!(reason, "no control groups; processes are tracked by their parents"),
    }
    if let Some(warning) = &warning {
        tracing::warn!("{warning}");
    }
    let store_folders = home::store_folders(home, config);
    store_folders::record(home, &store_folders).context("cannot record the folder of the database")?;
    let deps = DaemonDeps {
        store,
        clock,
        catalogue: Arc::new(EngineCatalogue::new(&config.engine_configs(), &program, config.isolation())),
        processes: Arc::new(KeeperProcesses {
            directory: HomeFolder::Keepers.path(home),
            launcher: home::launcher_with(groups.clone())?,
            env: home::child_environment(),
            isolator: Some(home::isolator(home, store_folders.clone())?.with_unenforced_limits(warning)),
            retained_output_bytes: RETAINED_OUTPUT_BYTES,
            keepers: TrackedKeepers::default(),
            standby: StandbyPolicy::One(Arc::default()),
        }),
        workspaces: Arc::new(LocalWorkspaces {
            home: home.to_owned(),
            store_folders,
            artifacts_folder: ARTIFACTS_FOLDER,
            skill_patch,
        }),
        private: HomeFolder::Runs.path(home).to_string_lossy().into_owned(),
        recovery_max: Seconds(config.recovery.max_sec),
        contents: Arc::new(ContentFiles { home: home.to_owned() }),
        space: SpaceLimit {
            space: Some(Arc::new(FileSystems)),
            min_free_bytes: config.limits.min_free_bytes,
            home: home.to_string_lossy().into_owned(),
        },
    };
    let daemon_config = DaemonConfig {
        stall_after: Seconds(config.stall_after_sec),
        slots,
        workspaces: HomeFolder::Workspaces.path(home).to_string_lossy().into_owned(),
    };
    created_dirs::write_missing_notes(home).context("cannot record which directories belong to Abide")?;
    let (record, log_contents) = crash_record::open(home)?;
    let record = Arc::new(record);
    let guard = CrashGuard::open(record.clone(), log_contents, deps.clock.clone(), guard_pauses());
    record.clear();
    let metrics = metrics.clone();
    let retention = RetentionDeps {
        home: home.to_owned(),
        store: deps.store.clone(),
        clock: deps.clock.clone(),
        processes: deps.processes.clone(),
        periods: config.retention.periods(),
        on_removed: Box::new(move |item| metrics.count_removed(item.name())),
        guard: Arc::new(guard.clone()),
        groups,
    };
    let store = deps.store.clone();
    let daemon = Daemon::guarded(deps, daemon_config, guard.clone(), run::apply)
        .await
        .context("cannot read the store")?;
    Ok(AssembledDaemon { daemon, store, retention: RetentionTask::new(retention), guard })
}

/// Maximum bytes of each stream in the result of a command. The daemon serves many clients, and escaped JSON can be six
/// times as large. The rest is read with `exec.output`.
const MAX_RESULT_BYTES: u64 = 1 << 20;

pub(super) fn start_terminal_runtime(config: &CliConfig) -> anyhow::Result<RuntimeHandle> {
    let mut terminal = home::terminal_config(config, false)?;
    terminal.limits.max_result_bytes = MAX_RESULT_BYTES;
    RuntimeHandle::start(terminal).context("cannot start the terminal runtime")
}

/// Times for which the crash guard quarantines operations; shortened for crash tests.
#[cfg(feature = "failpoints")]
fn guard_pauses() -> GuardPauses {
    match home::variable("ABIDE_TEST_GUARD_PAUSE_MS").and_then(|text| text.parse().ok()) {
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
const RETAINED_OUTPUT_BYTES: u64 = 1 << 30;
