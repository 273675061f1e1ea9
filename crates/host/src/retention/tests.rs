//! Tests of retention with a fake clock: deleted and preserved items.

use std::{ffi::OsStr, os::unix::fs::symlink};

use abide_domain::{
    event::{NewRun, RunEvent},
    inbound::{InboundMessage, MessageKey},
    process::ExitStatus,
    run,
    settings::{ExecutionMode, OnBusy, RunSettings, UnansweredPolicy},
};
use abide_ports::{
    operation_guard::{AdmissionFuture, GuardedOperation},
    processes::{
        OutputFollower, OutputOffsets, ProcessLookup, ProcessUnreachable, StartError, StartRequest,
        StdinWrite,
    },
    store::{Journal, JournalCommit, RunChange},
};
use abide_store::memory::MemoryStore;
use abide_testkit::clock::FakeClock;
use tempfile::TempDir;

use super::*;
use crate::created_dirs;

const DAY_MICROS: i64 = 86_400 * 1_000_000;

/// Admits every operation and records nothing.
struct NoGuard;

struct UnrecordedOperation;

impl OperationGuard for NoGuard {
    fn admit<'a>(&'a self, _: &'a str) -> AdmissionFuture<'a> {
        Box::pin(async { Some(Box::new(UnrecordedOperation) as Box<dyn GuardedOperation>) })
    }
    fn forget(&self, _: &str, _: &dyn Fn(&str) -> bool) {}
}

impl GuardedOperation for UnrecordedOperation {
    fn succeeded(self: Box<Self>) {}
}

/// Process files by name.
#[derive(Default)]
struct FakeLeftovers(Mutex<Vec<String>>);

impl Processes for FakeLeftovers {
    fn start(
        &self,
        _: &str,
        _: &StartRequest<'_>,
    ) -> Result<abide_domain::process::ProcessBinding, StartError> {
        Err(StartError::Lost)
    }
    fn find(&self, _: &str) -> ProcessLookup {
        ProcessLookup::NotStarted
    }
    fn last_output_at(&self, _: &str) -> Option<Timestamp> {
        None
    }
    fn follow(&self, _: &str, _: OutputOffsets) -> Result<Box<dyn OutputFollower>, ProcessUnreachable> {
        Err(ProcessUnreachable { reason: String::new() })
    }
    fn write(&self, _: &str, _: &StdinWrite<'_>) -> Result<(), ProcessUnreachable> {
        Ok(())
    }
    fn signal(&self, _: &str, _: abide_ports::engine::ProcessSignal) -> Result<(), ProcessUnreachable> {
        Ok(())
    }
    fn terminate(&self, name: &str) -> Result<ExitStatus, ProcessUnreachable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|held| held != name);
        Ok(ExitStatus::Unknown)
    }
    fn names(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
    fn program_files(
        &self,
        _: &abide_ports::engine::EngineInstallation,
    ) -> Option<Vec<abide_ports::processes::FileIdentity>> {
        None
    }
}

struct RetentionFixture {
    folder: TempDir,
    store: Arc<MemoryStore>,
    clock: Arc<FakeClock>,
    processes: Arc<FakeLeftovers>,
    retention: RetentionTask,
}

impl RetentionFixture {
    fn new(periods: RetentionPeriods) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (store, clock) = (Arc::new(MemoryStore::new()), Arc::new(FakeClock::new()));
        let processes = Arc::new(FakeLeftovers::default());
        let deps = RetentionDeps {
            home: folder.path().to_owned(),
            store: store.clone(),
            clock: clock.clone(),
            processes: processes.clone(),
            periods,
            on_removed: Box::new(|_| {}),
            guard: Arc::new(NoGuard),
            groups: None,
        };
        Self { folder, store, clock, processes, retention: RetentionTask::new(deps) }
    }

    fn home(&self) -> &Path {
        self.folder.path()
    }

    /// Creates a run with a private directory, process files, and the given workspace.
    async fn run(&self, workspace: impl FnOnce(RunId) -> PathBuf) -> RunId {
        let stamp = self.clock.stamp();
        let run_id = RunId(stamp.id_seed);
        let workspace = workspace(run_id);
        let run = run_id.to_string();
        created_dirs::create(self.home(), DirPurpose::Private, &run).expect("a folder");
        if workspace == self.home().join("workspaces").join(&run) {
            created_dirs::create(self.home(), DirPurpose::Workspace, &run).expect("a folder");
        }
        for folder in [&self.home().join("runs").join(run_id.to_string()), &workspace] {
            fs::create_dir_all(folder).expect("a folder");
            fs::write(folder.join("file"), "something").expect("a file");
        }
        self.processes.0.lock().expect("the lock is not poisoned").push(format!("{run_id}-1"));
        let message = InboundMessage {
            key: MessageKey { channel: "api".into(), message_id: run_id.to_string() },
            text: "task".into(),
        };
        let settings = settings(workspace.to_str().expect("it is text"));
        let event = RunEvent::RunCreated(Box::new(NewRun {
            run_id,
            settings,
            message,
            idempotency: None,
            rules: abide_domain::run::CURRENT_RULES_VERSION,
        }));
        self.apply(run_id, event).await;
        run_id
    }

    /// Creates a run in its own workspace.
    async fn run_in_own_workspace(&self) -> RunId {
        self.run(|run| self.home().join("workspaces").join(run.to_string())).await
    }

    async fn apply(&self, run: RunId, event: RunEvent) {
        let before = abide_ports::store::StoreQueries::run(&*self.store, run).await.expect("memory answers");
        let stamp = self.clock.stamp();
        let step = run::apply(before.as_ref(), &stamp, &event).expect("the rules allow it");
        let change = RunChange::new(before.as_ref(), stamp, event, step);
        self.store.commit(JournalCommit { changes: vec![change] }).await.expect("memory takes it");
    }

    async fn cancel(&self, run: RunId) {
        self.apply(run, RunEvent::CancelRequested { by: "a person".into() }).await;
    }

    fn advance_days(&self, days: i64) {
        self.clock.advance(days * DAY_MICROS);
    }

    async fn round(&self) -> RetentionRound {
        self.retention.run_round().await.expect("memory answers")
    }

    fn count_entries(&self, folder: &str) -> usize {
        fs::read_dir(self.home().join(folder)).map_or(0, Iterator::count)
    }
}

fn settings(workspace: &str) -> RunSettings {
    RunSettings {
        engine: "parrot".into(),
        workspace: workspace.into(),
        execution_mode: ExecutionMode::Interactive,
        unanswered: UnansweredPolicy::AutoDecide,
        session_timeout_sec: Seconds(60),
        turn_timeout_sec: None,
        on_busy: OnBusy::Queue,
        conversation_ref: None,
        model: None,
        sandbox: None,
        isolation: None,
        skill: None,
        labels: std::collections::BTreeMap::new(),
    }
}

const DEFAULT_SETTINGS: RetentionPeriods =
    RetentionPeriods { private_days: 7, workspace_days: 30, every_sec: 3600 };

#[tokio::test]
async fn a_finished_run_loses_its_private_files_first_and_its_own_workspace_later() {
    let fixture = RetentionFixture::new(DEFAULT_SETTINGS);
    let run = fixture.run_in_own_workspace().await;
    fixture.cancel(run).await;
    fixture.advance_days(6);
    assert_eq!(fixture.round().await, RetentionRound::default());
    fixture.advance_days(2);
    assert_eq!(fixture.round().await, RetentionRound { private: 1, workspaces: 0, processes: 1 });
    assert_eq!(
        (fixture.count_entries("runs"), fixture.count_entries("workspaces"), fixture.count_entries("trash")),
        (0, 1, 0)
    );
    fixture.advance_days(30);
    assert_eq!(fixture.round().await, RetentionRound { private: 0, workspaces: 1, processes: 0 });
    assert_eq!((fixture.count_entries("workspaces"), fixture.count_entries("trash")), (0, 0));
    assert_eq!(fixture.round().await, RetentionRound::default());
}

#[tokio::test]
async fn files_of_unfinished_runs_are_kept() {
    let fixture = RetentionFixture::new(DEFAULT_SETTINGS);
    fixture.run_in_own_workspace().await;
    fixture.advance_days(4000);
    assert_eq!(fixture.round().await, RetentionRound::default());
    assert_eq!((fixture.count_entries("runs"), fixture.count_entries("workspaces")), (1, 1));
    assert_eq!(fixture.processes.names().len(), 1);
}

#[tokio::test]
async fn zero_days_disables_retention() {
    let fixture =
        RetentionFixture::new(RetentionPeriods { private_days: 0, workspace_days: 0, every_sec: 1 });
    let run = fixture.run_in_own_workspace().await;
    fixture.cancel(run).await;
    fixture.advance_days(4000);
    assert_eq!(fixture.round().await, RetentionRound::default());
}

#[tokio::test]
async fn a_directory_of_the_owners_and_one_that_another_run_uses_stay() {
    let fixture = RetentionFixture::new(DEFAULT_SETTINGS);
    let theirs = fixture.home().join("project");
    let owned = fixture.run(|_| theirs.clone()).await;
    let shared = fixture.run_in_own_workspace().await;
    let inner = fixture.home().join("workspaces").join(shared.to_string()).join("inner");
    let waits = fixture.run(|_| inner.clone()).await;
    // A directory named after a run that is not the workspace of that run.
    let stranger = fixture.home().join("workspaces").join(owned.to_string());
    fs::create_dir(&stranger).unwrap();
    fixture.cancel(owned).await;
    fixture.cancel(shared).await;
    fixture.advance_days(100);
    assert_eq!(fixture.round().await, RetentionRound { private: 2, workspaces: 0, processes: 2 });
    assert!(theirs.join("file").exists() && inner.join("file").exists() && stranger.exists());
    fixture.cancel(waits).await;
    fixture.advance_days(100);
    fixture.round().await;
    assert!(!inner.exists() && theirs.join("file").exists());
}

#[tokio::test]
async fn links_are_neither_followed_nor_taken() {
    let fixture = RetentionFixture::new(DEFAULT_SETTINGS);
    let precious = fixture.home().join("precious");
    fs::create_dir(&precious).unwrap();
    fs::write(precious.join("file"), "precious").unwrap();
    let run = fixture.run_in_own_workspace().await;
    let workspace = fixture.home().join("workspaces").join(run.to_string());
    symlink(&precious, workspace.join("link")).unwrap();
    let linked = fixture.run_in_own_workspace().await;
    let replaced = fixture.home().join("workspaces").join(linked.to_string());
    fs::remove_dir_all(&replaced).unwrap();
    symlink(&precious, &replaced).unwrap();
    fixture.cancel(run).await;
    fixture.cancel(linked).await;
    fixture.advance_days(100);
    assert_eq!(fixture.round().await.workspaces, 1);
    assert!(precious.join("file").exists() && replaced.exists() && !workspace.exists());
}

#[tokio::test]
async fn trash_left_by_a_crash_is_deleted_and_name_conflicts_are_resolved() {
    let fixture = RetentionFixture::new(DEFAULT_SETTINGS);
    let run = fixture.run_in_own_workspace().await;
    fixture.cancel(run).await;
    fixture.advance_days(100);
    let name = run.to_string();
    let (workspace, private) =
        (fixture.home().join("workspaces").join(&name), fixture.home().join("runs").join(&name));
    assert!(trash::move_to_trash(fixture.home(), DirPurpose::Workspace, &name, &workspace));
    assert!(trash::move_to_trash(fixture.home(), DirPurpose::Private, &name, &private));
    assert_eq!(fixture.count_entries("trash"), 2);
    fixture.round().await;
    assert_eq!(fixture.count_entries("trash"), 0);
}

#[tokio::test]
async fn a_round_is_bounded_and_the_next_one_continues() {
    let fixture =
        RetentionFixture::new(RetentionPeriods { private_days: 0, workspace_days: 1, every_sec: 1 });
    for _ in 0..MAX_ITEMS_PER_ROUND + 20 {
        let run = fixture.run_in_own_workspace().await;
        fixture.cancel(run).await;
    }
    fixture.advance_days(3);
    assert_eq!(fixture.round().await.workspaces, MAX_ITEMS_PER_ROUND);
    assert_eq!(fixture.round().await.workspaces, 20);
}

/// SECURITY finding 4: the trash is emptied at every start, and a recursive removal of this tree aborts the daemon.
#[test]
fn deeply_nested_directories_in_the_trash_are_deleted() {
    let home = tempfile::tempdir().unwrap();
    let tree = home.path().join("trash/run.0");
    fs::create_dir_all(&tree).unwrap();
    create_nested_dirs(&tree, 15_000);
    let path = home.path().to_owned();
    let small = std::thread::Builder::new().stack_size(256 << 10);
    small.spawn(move || empty_trash(&path, None, 10)).unwrap().join().unwrap();
    assert!(!tree.exists());
}

/// Runs one round of deletions without a daemon.
fn empty_trash(home: &Path, last_tried: Option<&OsStr>, max_trees: usize) -> Option<OsString> {
    let trees = trash::list(home)?;
    let names = trash::select_batch(&trees.names, last_tried, max_trees);
    for name in &names {
        trash::delete_tree(&trees.folder, name);
    }
    names.last().cloned()
}

fn create_nested_dirs(path: &Path, levels: usize) {
    use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
    let mut directory = openat(CWD, path, OFlags::PATH, Mode::empty()).unwrap();
    for _ in 0..levels {
        mkdirat(&directory, "d", Mode::RWXU).unwrap();
        directory = openat(&directory, "d", OFlags::PATH, Mode::empty()).unwrap();
    }
}

/// Drops the capabilities with which root ignores permissions, for the calling thread.
fn drop_permission_override() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let mut sets = capabilities(None).unwrap();
    let all = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH | CapabilitySet::FOWNER;
    sets.effective.remove(all);
    set_capabilities(None, sets).unwrap();
}

/// SECURITY finding 18: a directory of mode 000 stayed in the trash for ever.
#[test]
fn a_directory_that_its_owner_may_not_enter_is_deleted() {
    use std::os::unix::fs::PermissionsExt;
    let home = tempfile::tempdir().unwrap();
    let closed = home.path().join("trash/run.0/closed");
    fs::create_dir_all(closed.join("inner")).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
    let path = home.path().to_owned();
    let empty = move || {
        drop_permission_override();
        empty_trash(&path, None, 10)
    };
    std::thread::spawn(empty).join().unwrap();
    assert_eq!(fs::read_dir(home.path().join("trash")).unwrap().count(), 0);
}

/// SECURITY finding 18: if a round tried only trees that cannot be deleted, no other tree was ever deleted.
#[test]
fn trees_that_cannot_be_deleted_do_not_keep_others() {
    if !rustix::process::geteuid().is_root() {
        return abide_testkit::skip::skip("only root can give a directory to another user");
    }
    let home = tempfile::tempdir().unwrap();
    let trash = home.path().join("trash");
    for name in ["a", "b", "c", "d", "x", "y", "z"] {
        fs::create_dir_all(trash.join(name).join("inner/deep")).unwrap();
        if name < "x" {
            std::os::unix::fs::chown(trash.join(name).join("inner"), Some(65_534), Some(65_534)).unwrap();
        }
    }
    let path = home.path().to_owned();
    let rounds = move || {
        drop_permission_override();
        let mut last_tried = None;
        let mut tried = Vec::new();
        for _ in 0..4 {
            last_tried = empty_trash(&path, last_tried.as_deref(), 2);
            tried.extend(last_tried.clone());
        }
        tried
    };
    let tried = std::thread::spawn(rounds).join().unwrap();
    assert_eq!(tried, ["b", "d", "y", "a"], "each round continues behind the one before");
    let mut entries: Vec<_> = fs::read_dir(&trash).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    entries.sort();
    assert_eq!(entries, ["a", "b", "c", "d"]);
}

/// Issue 14, item 3: a directory is deleted only if Abide made it and can prove it.
#[tokio::test]
async fn a_directory_that_was_put_in_the_place_of_a_workspace_is_not_deleted() {
    let fixture = RetentionFixture::new(DEFAULT_SETTINGS);
    let [replaced, kept] = [fixture.run_in_own_workspace().await, fixture.run_in_own_workspace().await];
    let path = |run: RunId| fixture.home().join("workspaces").join(run.to_string());
    fs::rename(path(replaced), fixture.home().join("away")).unwrap();
    fs::create_dir(path(replaced)).unwrap();
    fs::write(path(replaced).join("precious"), "x").unwrap();
    for run in [replaced, kept] {
        fixture.cancel(run).await;
    }
    fixture.advance_days(100);
    assert_eq!(fixture.round().await.workspaces, 1);
    assert!(path(replaced).join("precious").exists() && !path(kept).exists());
    assert!(fixture.home().join("away").exists(), "only what lies where it should is looked at");
}

#[tokio::test]
async fn foreign_trash_is_not_deleted_and_blocks_nothing() {
    let fixture = RetentionFixture::new(DEFAULT_SETTINGS);
    let run = fixture.run_in_own_workspace().await;
    fixture.cancel(run).await;
    fixture.advance_days(100);
    let foreign = fixture.home().join("trash").join(format!("{run}.7"));
    fs::create_dir_all(foreign.join("precious")).unwrap();
    fixture.round().await;
    assert_eq!(fixture.count_entries("trash"), 1);
    assert!(foreign.join("precious").exists());
}
