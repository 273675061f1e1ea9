//! What outlives the processes of a run and ends with the run itself: keepers that an engine started for its next turn.
//!
//! Before such a process is started, a note with the name of its run says where its keepers will lie. Whoever looks again
//! and again compares the notes with the runs, so it does not matter who died in between.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use abide_daemon::{Admission, CrashGuard};
use abide_domain::{
    id::RunId,
    run::{Run, Status},
};
use abide_ports::store::{Store, StoreError};
use tokio::sync::watch;

use super::end_all;
use crate::private;

/// The notes of one home.
#[derive(Clone, Debug)]
pub(crate) struct Outliving {
    notes: PathBuf,
}

/// Not more often than this: a busy daemon has more changes than runs that end.
const PAUSE: Duration = Duration::from_millis(250);
/// How long until it is looked again, if something could not be ended.
const LATER: Duration = Duration::from_secs(30);

/// What the names of notes begin with on the crash guard's record.
const NOTE: &str = "note ";

impl Outliving {
    /// The notes that belong to this directory of keepers.
    pub(crate) fn beside(keepers: &Path) -> Self {
        Self { notes: keepers.with_file_name("outliving") }
    }

    /// Notes where keepers of that run will lie.
    pub(super) fn note(&self, run: &str, directory: &str) -> io::Result<()> {
        private::directory(&self.notes)?;
        private::write(&self.notes.join(run), directory.as_bytes())
    }

    /// Where keepers of that run lie, if there may be any.
    pub(super) fn noted_for(&self, run: &str) -> Option<PathBuf> {
        Some(fs::read_to_string(self.notes.join(run)).ok()?.into())
    }

    /// Ends what belongs to runs that are over, again and again, for as long as the task lives.
    pub(crate) async fn for_ever(
        self,
        store: Arc<dyn Store>,
        mut changes: watch::Receiver<u64>,
        guard: CrashGuard,
    ) {
        loop {
            changes.mark_unchanged();
            if let Err(error) = self.round(&*store, &guard).await {
                tracing::warn!(%error, "what outlives processes was not looked at");
            }
            let _a_look_does_no_harm = tokio::time::timeout(LATER, changes.changed()).await;
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn round(&self, store: &dyn Store, guard: &CrashGuard) -> Result<(), StoreError> {
        let noted = self.noted();
        guard.forget(NOTE, |item| noted.iter().any(|(run, _)| format!("{NOTE}{run}") == item));
        for (run, note) in noted {
            let over = match store.run(run).await {
                Ok(run) => run.as_ref().is_none_or(is_over),
                // Nobody knows whether it is over.
                Err(StoreError::Damaged { .. }) => false,
                Err(error) => return Err(error),
            };
            if over {
                // One that daemons died of is looked at again in a later round.
                let Admission::Now(performance) = guard.admit(&format!("{NOTE}{run}")).await else {
                    continue;
                };
                let ended = tokio::task::spawn_blocking(move || end(&note)).await.unwrap_or(false);
                performance.succeeded();
                tracing::debug!(%run, ended, "what outlived its processes was ended");
            }
        }
        Ok(())
    }

    fn noted(&self) -> Vec<(RunId, PathBuf)> {
        let notes = fs::read_dir(&self.notes).into_iter().flatten().filter_map(Result::ok);
        notes.filter_map(|note| Some((note.file_name().to_str()?.parse().ok()?, note.path()))).collect()
    }
}

fn is_over(run: &Run) -> bool {
    // A process that is still to be ended may yet start something.
    let is_final = matches!(run.status(), Status::Succeeded | Status::Failed | Status::Canceled);
    is_final && run.owed.is_empty()
}

fn end(note: &Path) -> bool {
    let Ok(directory) = fs::read_to_string(note) else { return false };
    end_all(Path::new(&directory)) && fs::remove_file(note).is_ok()
}
