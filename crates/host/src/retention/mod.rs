//! Retention: deletes the leftovers of finished runs after a configured time. These are private files, contents of
//! questions, process files, and workspaces that Abide created.
//!
//! It never touches files of an unfinished run, directories named by the owner, or directories without proof that Abide
//! created them (`created_dirs`). A directory is first moved to `trash` in the home and then deleted there, so that a crash
//! leaves no partial directory in place. The next round continues the deletion. The journal is kept.

mod trash;

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fmt, fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use abide_domain::{
    id::RunId,
    run::{Run, RunStatus},
    time::{Seconds, Timestamp},
};
use abide_keeper::control_group::ControlGroupConfig;
use abide_ports::{
    clock::Clock,
    operation_guard::OperationGuard,
    processes::Processes,
    store::{PageRequest, Store, StoreError},
};

use crate::created_dirs::DirPurpose;

/// Deletes leftovers of finished runs.
pub struct RetentionTask {
    deps: RetentionDeps,
    /// Last directory of each kind that was checked, if one round did not cover all.
    resume_from: Mutex<BTreeMap<&'static str, RunId>>,
    /// The tree in the trash whose deletion was attempted last.
    last_tried: Mutex<Option<OsString>>,
}

/// The services and values that retention needs.
pub struct RetentionDeps {
    pub home: PathBuf,
    pub store: Arc<dyn Store>,
    pub clock: Arc<dyn Clock>,
    pub processes: Arc<dyn Processes>,
    pub periods: RetentionPeriods,
    /// Called for each deleted item.
    pub on_removed: Box<dyn Fn(RetentionItem) + Send + Sync>,
    /// Decides which deletions may be attempted.
    pub guard: Arc<dyn OperationGuard>,
    /// Parent of the control groups that dead keepers may have left.
    pub groups: Option<ControlGroupConfig>,
}

/// How long items of finished runs are kept, and how often they are looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetentionPeriods {
    /// Days for private files, question contents and process files; 0 means never.
    pub private_days: u32,
    /// Days for workspaces that Abide created; 0 means never.
    pub workspace_days: u32,
    /// Seconds between two rounds; at least 1.
    pub every_sec: u32,
}

/// Kinds of items that retention removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetentionItem {
    PrivateFolder,
    Workspace,
    /// Files that a keeper left of a process.
    Process,
}

impl RetentionItem {
    /// Returns the name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::PrivateFolder => "private",
            Self::Workspace => "workspace",
            Self::Process => "process",
        }
    }
}

/// Counts of one round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RetentionRound {
    private: usize,
    workspaces: usize,
    processes: usize,
}

/// Maximum number of items deleted per round, to limit the load on the disk.
const MAX_ITEMS_PER_ROUND: usize = 500;
/// Maximum number of directories of each kind checked per round. The next round continues there.
const MAX_CHECKED_PER_ROUND: usize = 5_000;
/// Prefix of deletions in the crash guard's record.
const DELETION_PREFIX: &str = "deletion ";
/// Page size in runs, and in bytes.
const PAGE_RUNS: usize = 500;
const PAGE_BYTES: usize = 1 << 20;

impl RetentionTask {
    pub fn new(deps: RetentionDeps) -> Self {
        Self { deps, resume_from: Mutex::default(), last_tried: Mutex::default() }
    }

    /// Runs rounds periodically. Never returns.
    pub async fn run(self) {
        let pause = Duration::from_secs(u64::from(self.deps.periods.every_sec));
        loop {
            match self.run_round().await {
                Ok(round) if round == RetentionRound::default() => {}
                Ok(RetentionRound { private, workspaces, processes }) => {
                    tracing::info!(private, workspaces, processes, "leftovers removed");
                }
                Err(error) => tracing::warn!(%error, "leftovers were not examined"),
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Deletes due items, within the limits of a round.
    async fn run_round(&self) -> Result<RetentionRound, StoreError> {
        self.sweep_groups().await;
        self.empty_trash().await;
        let mut round = RetentionRound::default();
        if self.deps.periods.private_days > 0 {
            round.processes = self.delete_process_files(self.deps.periods.private_days).await?;
            for purpose in [DirPurpose::Private, DirPurpose::Content] {
                let days = self.deps.periods.private_days;
                round.private += self.expire_dirs(RetentionItem::PrivateFolder, purpose, days).await?;
            }
        }
        if self.deps.periods.workspace_days > 0 {
            let days = self.deps.periods.workspace_days;
            round.workspaces =
                self.expire_dirs(RetentionItem::Workspace, DirPurpose::Workspace, days).await?;
        }
        self.empty_trash().await;
        Ok(round)
    }

    /// Ends processes of killed keepers and removes their control groups.
    async fn sweep_groups(&self) {
        if let Some(groups) = self.deps.groups.clone() {
            // Remaining groups are found in the next round.
            tokio::task::spawn_blocking(move || groups.remove_dead_groups()).await.ok();
        }
    }

    async fn empty_trash(&self) {
        let home = self.deps.home.clone();
        let last_tried = self.last_tried.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let listed = tokio::task::spawn_blocking(move || trash::list(&home));
        let Ok(Some(trees)) = listed.await else { return };
        let item = |name: &OsString| format!("{DELETION_PREFIX}{}", name.to_string_lossy());
        self.deps
            .guard
            .forget(DELETION_PREFIX, &|suspect| trees.names.iter().any(|name| item(name) == suspect));
        let names = trash::select_batch(&trees.names, last_tried.as_deref(), MAX_ITEMS_PER_ROUND);
        for name in &names {
            // An operation during which daemons crashed is retried in a later round.
            let Some(operation) = self.deps.guard.admit(&item(name)).await else { continue };
            let (home, folder, name) = (self.deps.home.clone(), trees.folder.clone(), name.clone());
            let deleted =
                tokio::task::spawn_blocking(move || trash::delete_if_ours(&home, &folder, &name)).await;
            if deleted.is_ok() {
                operation.succeeded();
            }
        }
        // Trees that could not be deleted are found in the trash by the next round.
        *self.last_tried.lock().unwrap_or_else(PoisonError::into_inner) = names.last().cloned();
    }

    /// Moves the directories of runs that finished long enough ago to the trash. Returns their number.
    async fn expire_dirs(
        &self,
        item: RetentionItem,
        purpose: DirPurpose,
        days: u32,
    ) -> Result<usize, StoreError> {
        let parent = purpose.folder();
        let mut due = Vec::new();
        let begin = self.resume_from.lock().unwrap_or_else(PoisonError::into_inner).remove(parent);
        let dirs = run_dirs(&self.deps.home.join(parent));
        let rest = dirs.into_iter().filter(|(run, _)| begin.is_none_or(|begin| *run >= begin));
        for (looked_at, (run_id, folder)) in rest.enumerate() {
            if due.len() >= MAX_ITEMS_PER_ROUND || looked_at >= MAX_CHECKED_PER_ROUND {
                self.resume_from.lock().unwrap_or_else(PoisonError::into_inner).insert(parent, run_id);
                break;
            }
            let Some(run) = self.load_readable_run(run_id).await? else { continue };
            let is_own = item != RetentionItem::Workspace || Path::new(&run.settings.workspace) == folder;
            if is_own && self.is_due(&run, days) {
                due.push((run_id.to_string(), folder));
            }
        }
        if item == RetentionItem::Workspace && !due.is_empty() {
            if !self.deps.store.damaged_runs().await?.is_empty() {
                // The workspaces of those runs are unknown, so nothing is deleted.
                return Ok(0);
            }
            let used = self.workspaces_in_use().await?;
            due.retain(|(_, folder)| {
                let real = fs::canonicalize(folder).unwrap_or_else(|_| folder.clone());
                !used.iter().any(|used| used.starts_with(folder) || used.starts_with(&real))
            });
        }
        let mut removed_count = 0;
        for (run, folder) in due {
            if trash::move_to_trash(&self.deps.home, purpose, &run, &folder) {
                tracing::debug!(folder = %folder.display(), "leftover removed");
                (self.deps.on_removed)(item);
                removed_count += 1;
            }
        }
        Ok(removed_count)
    }

    /// Deletes the process files of runs that finished long enough ago.
    async fn delete_process_files(&self, days: u32) -> Result<usize, StoreError> {
        let mut removed_count = 0;
        let processes = self.deps.processes.clone();
        let names = tokio::task::spawn_blocking(move || processes.names()).await.unwrap_or_default();
        for name in names {
            let run = name.rsplit_once('-').and_then(|(run, _)| run.parse::<RunId>().ok());
            let Some(run_id) = run else { continue };
            let Some(run) = self.load_readable_run(run_id).await? else { continue };
            if removed_count < MAX_ITEMS_PER_ROUND && self.is_due(&run, days) {
                let processes = self.deps.processes.clone();
                let ended = tokio::task::spawn_blocking(move || processes.terminate(&name)).await;
                if ended.is_ok_and(|ended| ended.is_ok()) {
                    (self.deps.on_removed)(RetentionItem::Process);
                    removed_count += 1;
                }
            }
        }
        Ok(removed_count)
    }

    /// Returns a run if it exists and is readable; nothing of a damaged run is deleted.
    async fn load_readable_run(&self, run: RunId) -> Result<Option<Run>, StoreError> {
        match self.deps.store.run(run).await {
            Err(StoreError::Damaged { detail }) => {
                tracing::warn!(%run, %detail, "leftovers of a damaged run are kept");
                Ok(None)
            }
            read => read,
        }
    }

    fn is_due(&self, run: &Run, days: u32) -> bool {
        let kept_until = |since: Timestamp| since.add_seconds(Seconds(days.saturating_mul(SECONDS_PER_DAY)));
        run.status().is_final()
            && run.pending_effects.is_empty()
            && kept_until(run.updated_at) <= self.deps.clock.stamp().at
    }

    /// Returns the workspaces of all unfinished runs. A run may use the workspace of another one.
    async fn workspaces_in_use(&self) -> Result<BTreeSet<PathBuf>, StoreError> {
        let mut used = BTreeSet::new();
        for status in [RunStatus::Queued, RunStatus::Running, RunStatus::WaitingUser, RunStatus::Idle] {
            let mut page = PageRequest::first(PAGE_RUNS).with_max_bytes(PAGE_BYTES);
            loop {
                let listed = self.deps.store.runs(Some(status), page.clone()).await?;
                for run in listed.items {
                    let named = PathBuf::from(&run.settings.workspace);
                    // The named path may be a link to the workspace.
                    used.extend(fs::canonicalize(&named));
                    used.insert(named);
                }
                match listed.next_cursor {
                    Some(cursor) => page = page.after_cursor(cursor),
                    None => break,
                }
            }
        }
        Ok(used)
    }
}

const SECONDS_PER_DAY: u32 = 86_400;

/// Returns the subdirectories named after a run, sorted. Links are ignored.
fn run_dirs(parent: &Path) -> Vec<(RunId, PathBuf)> {
    let Ok(entries) = fs::read_dir(parent) else { return vec![] };
    let mut run_dirs: Vec<_> = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())))
        .collect();
    run_dirs.sort();
    run_dirs
}

impl fmt::Debug for RetentionDeps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetentionDeps").field("periods", &self.periods).finish_non_exhaustive()
    }
}

impl fmt::Debug for RetentionTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetentionTask").field("periods", &self.deps.periods).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
