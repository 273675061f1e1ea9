//! Keepers that outlive the processes of a run and end with the run: an engine started them for its next turn.
//!
//! Before such a process is started, a note named after its run records the directory of its keepers. Notes are
//! compared with the runs periodically, so a crash at any point is repaired.
//!
//! A note is a path below the home, `agents/ID/sessions`. Notes of earlier versions are absolute paths in workspaces.
//! Files there are not trusted and nothing is deleted: a process that the kernel shows to be a keeper
//! (`abide_keeper::former_keepers`) is told to end.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use abide_domain::{
    failure::{FailureCode, RunFailure},
    id::RunId,
    run::{Run, RunStatus},
};
use abide_keeper::{
    client::{EndMode, UnclaimedPolicy, end_in_directory},
    former_keepers::FormerKeepers,
    keeper_dir::KeeperDir,
    launch::KeeperLauncher,
};
use abide_os::{beneath::Directory, private_file, remove::remove_path};
use abide_ports::{
    operation_guard::OperationGuard,
    store::{Store, StoreError},
};
use tokio::sync::watch;

use crate::home_folders::HomeFolder;

#[derive(Clone, Debug)]
pub struct OutlivingKeepers {
    notes: PathBuf,
    /// The arguments with which this program becomes a keeper.
    keeper_arguments: Vec<String>,
}

/// Minimum time between two rounds; a busy daemon has more changes than runs that end.
const MIN_ROUND_INTERVAL: Duration = Duration::from_millis(250);
const MAX_REMOVAL_TIME: Duration = Duration::from_secs(60);
/// Delay before the next round if a keeper could not be ended.
const MAX_ROUND_INTERVAL: Duration = Duration::from_secs(30);

/// Failure message of a waiting run whose agent state is gone.
const STATE_DELETED_MESSAGE: &str = "the agent's state folder or journal was deleted or replaced while the run waited, so no answer can be \
                       given to it; its sessions were ended. Start a new run";

/// Prefix of notes in the crash guard's record.
const NOTE_PREFIX: &str = "note ";

impl OutlivingKeepers {
    /// The notes that belong to this directory of keepers.
    pub fn for_keepers_dir(keepers: &Path, launcher: &KeeperLauncher) -> Self {
        let keeper_arguments = launcher.arguments.clone();
        Self { notes: keepers.with_file_name(HomeFolder::SurvivingKeepers.name()), keeper_arguments }
    }

    /// Records the directory of that run's keepers. The path recorded by an earlier version stays in a second line.
    pub(super) fn record(&self, run: &str, directory: &str) -> io::Result<()> {
        private_file::create_dir(&self.notes)?;
        let note = self.notes.join(run);
        let before = fs::read_to_string(&note).unwrap_or_default();
        let former = before.lines().find(|line| line.starts_with('/'));
        let lines: Vec<&str> = [directory].into_iter().chain(former).collect();
        private_file::write(&note, lines.join("\n").as_bytes())
    }

    /// Returns the directory of that run's keepers, if there may be any.
    pub(super) fn recorded_dir(&self, run: &str) -> Option<PathBuf> {
        let note = fs::read_to_string(self.notes.join(run)).ok()?;
        note.lines().find_map(|line| self.resolve_note(line))
    }

    /// Returns the directory that a note names, if it is below the home.
    pub(super) fn resolve_note(&self, note: &str) -> Option<PathBuf> {
        let id = note.strip_prefix("agents/")?.strip_suffix("/sessions")?;
        let is_name = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        is_name.then(|| self.notes.with_file_name(note))
    }

    /// Ends the keepers that a note names and deletes their files in the home. Returns whether none is left.
    fn end_recorded(&self, note: &Path) -> bool {
        let Ok(text) = fs::read_to_string(note) else { return false };
        let is_ended = text.lines().all(|line| match self.resolve_note(line) {
            Some(directory) => {
                let is_gone = |record: &Path| {
                    remove_path(record, MAX_REMOVAL_TIME).is_ok_and(|removal| removal.is_complete())
                };
                end_all_keepers(&directory) && directory.parent().is_some_and(is_gone)
            }
            None => end_former(Path::new(line), &self.keeper_arguments),
        });
        is_ended && fs::remove_file(note).is_ok()
    }

    fn list_notes(&self) -> Vec<(RunId, PathBuf)> {
        let notes = fs::read_dir(&self.notes).into_iter().flatten().filter_map(Result::ok);
        notes.filter_map(|note| Some((note.file_name().to_str()?.parse().ok()?, note.path()))).collect()
    }
}

/// Ends outliving keepers when their run has ended.
pub struct OutlivingTask {
    pub keepers: OutlivingKeepers,
    pub store: Arc<dyn Store>,
    pub guard: Arc<dyn OperationGuard>,
    /// Ends the keepers of the agent whose record is at this path, if its state folder was deleted. Returns whether it
    /// was.
    pub end_if_deleted: fn(&Path) -> bool,
    /// Called for a waiting run whose agent state was deleted.
    pub on_session_lost: SessionLostReport,
}

/// Reports that a run cannot continue.
pub type SessionLostReport =
    Box<dyn Fn(RunId, RunFailure) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

impl OutlivingTask {
    /// Runs rounds periodically, and earlier when a run changes. Never returns.
    pub async fn run(self, mut changes: watch::Receiver<u64>) {
        loop {
            changes.mark_unchanged();
            if let Err(error) = self.end_finished_runs().await {
                tracing::warn!(%error, "sessions that outlive their processes were not checked");
            }
            // A timeout only starts the next round.
            tokio::time::timeout(MAX_ROUND_INTERVAL, changes.changed()).await.ok();
            tokio::time::sleep(MIN_ROUND_INTERVAL).await;
        }
    }

    async fn end_finished_runs(&self) -> Result<(), StoreError> {
        let notes = self.keepers.list_notes();
        self.guard
            .forget(NOTE_PREFIX, &|item| notes.iter().any(|(run, _)| format!("{NOTE_PREFIX}{run}") == item));
        for (run, note) in notes {
            let state = match self.store.run(run).await {
                Ok(state) => state,
                // It is unknown whether a damaged run has ended.
                Err(StoreError::Damaged { .. }) => continue,
                Err(error) => return Err(error),
            };
            if state.as_ref().is_some_and(is_waiting) {
                let notes = self.keepers.recorded_dir(&run.to_string());
                let record = notes.and_then(|notes| Some(notes.parent()?.to_owned()));
                let end_if_deleted = self.end_if_deleted;
                let look = move || record.is_some_and(|record| end_if_deleted(&record));
                if tokio::task::spawn_blocking(look).await.unwrap_or(false) {
                    let failure = RunFailure::new(FailureCode::SessionResumeFailed, STATE_DELETED_MESSAGE);
                    (self.on_session_lost)(run, failure).await;
                }
            }
            if state.as_ref().is_none_or(is_finished) {
                // An operation during which daemons crashed is retried in a later round.
                let item = format!("{NOTE_PREFIX}{run}");
                let Some(operation) = self.guard.admit(&item).await else { continue };
                let keepers = self.keepers.clone();
                let ended =
                    tokio::task::spawn_blocking(move || keepers.end_recorded(&note)).await.unwrap_or(false);
                operation.succeeded();
                tracing::debug!(%run, ended, "sessions that outlived their processes were ended");
            }
        }
        Ok(())
    }
}

impl fmt::Debug for OutlivingTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutlivingTask").field("keepers", &self.keepers).finish_non_exhaustive()
    }
}

/// Returns whether the run has no process that would detect the loss itself.
fn is_waiting(run: &Run) -> bool {
    matches!(run.status(), RunStatus::WaitingUser | RunStatus::Idle) && run.live().is_none()
}

fn is_finished(run: &Run) -> bool {
    // A process that is still to be ended may start further keepers.
    let is_final = matches!(run.status(), RunStatus::Succeeded | RunStatus::Failed | RunStatus::Canceled);
    is_final && run.pending_effects.is_empty()
}

/// Returns whether a daemon of an earlier version noted this state folder of an agent as that of one of its runs.
pub fn is_noted_state(home: &Path, state: &Path) -> bool {
    let Ok(state) = state.canonicalize() else { return false };
    let notes = fs::read_dir(HomeFolder::SurvivingKeepers.path(home)).into_iter().flatten().flatten();
    let texts = notes.filter_map(|note| fs::read_to_string(note.path()).ok());
    // The note names the folder of sessions, which exists only if there was a session.
    let is_noted = |line: &str| {
        let noted = Path::new(line).parent().filter(|_| line.ends_with("/sessions"));
        noted.is_some_and(|noted| noted.canonicalize().is_ok_and(|noted| noted == state))
    };
    texts.into_iter().any(|text| text.lines().any(is_noted))
}

/// Ends all keepers in a directory. Returns whether none is left.
fn end_all_keepers(directory: &Path) -> bool {
    let mut none_left = true;
    for (_, keeper_dir) in KeeperDir::list(directory) {
        none_left &= end_in_directory(&keeper_dir, UnclaimedPolicy::Wait);
    }
    none_left
}

/// Tells keepers that an earlier version started in a workspace to end. Returns whether none is alive.
fn end_former(directory: &Path, arguments: &[String]) -> bool {
    // The workspace belongs to the user and may contain links; below Abide's own folder links are refused.
    let own =
        directory.ancestors().filter(|path| path.file_name().is_some_and(|name| name == ".abide")).last();
    let Some(workspace) = own.and_then(Path::parent) else { return true };
    let Ok(relative) = directory.strip_prefix(workspace) else { return true };
    let opened = Directory::open(workspace).and_then(|workspace| workspace.open_directory(relative));
    let Ok(sessions) = opened else { return true };
    let keepers = FormerKeepers { arguments: arguments.to_vec(), started_before: None };
    let mut none_left = true;
    for entry in sessions.entries().into_iter().flatten().take(MAX_FORMER_SESSIONS).flatten() {
        let attached = sessions.open_directory(&entry.name).ok().and_then(|place| keepers.attach(&place));
        if let Some((mut keeper, _)) = attached {
            none_left &= keeper.end(EndMode::Graceful).is_ok();
        }
    }
    none_left
}

/// Maximum number of session folders of an earlier version that are checked for one run.
const MAX_FORMER_SESSIONS: usize = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn launcher() -> KeeperLauncher {
        KeeperLauncher { program: "abide".into(), arguments: vec!["keeper".to_owned()], groups: None }
    }

    #[test]
    fn a_note_names_only_records_of_the_home() {
        let outliving = OutlivingKeepers::for_keepers_dir(Path::new("base/keepers"), &launcher());
        let named = outliving.resolve_note("agents/0a-1/sessions");
        assert_eq!(named, Some(PathBuf::from("base/agents/0a-1/sessions")));
        for other in [
            "/w/.abide/native/1/sessions",
            "agents/../sessions",
            "agents//sessions",
            "agents/a/b/sessions",
            "",
        ] {
            assert_eq!(outliving.resolve_note(other), None, "{other}");
        }
    }

    #[test]
    fn a_note_of_an_earlier_version_is_kept_and_its_folder_not_deleted() {
        let folder = tempfile::tempdir().expect("a folder");
        let outliving = OutlivingKeepers::for_keepers_dir(&folder.path().join("home/keepers"), &launcher());
        let former = folder.path().join("work/.abide/native/1/sessions");
        let old = former.join("shell_1");
        fs::create_dir_all(&old).expect("it can be made");
        fs::write(old.join("secret"), [7; 32]).expect("it can be written");
        let made = fs::File::open(&old).and_then(|old| old.set_modified(std::time::SystemTime::UNIX_EPOCH));
        made.expect("it is ours");
        fs::create_dir_all(folder.path().join("home")).expect("it can be made");
        outliving.record("run_1", &former.to_string_lossy()).expect("it can be noted");
        outliving.record("run_1", "agents/1/sessions").expect("it can be noted");
        let record = folder.path().join("home/agents/1");
        fs::create_dir_all(&record).expect("it can be made");
        assert_eq!(outliving.recorded_dir("run_1"), Some(record.join("sessions")));
        let note = folder.path().join("home/surviving-keepers/run_1");
        assert!(outliving.end_recorded(&note) && !note.exists() && !record.exists());
        assert!(old.join("secret").exists());
    }
}
