//! The agent's memory: the state folder with its journal, the home's record of it, and what the journal adds up to.
//!
//! The one way to change anything is `Memory::record`: written and synced first, then taken in, then told.
//!
//! Not here: what is recorded when.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::{
    context::Window,
    event::{Entry, Event},
    hands::Voice,
    human::Question,
    journal::{Journal, JournalError, Opened},
    lock::{Lock, Refused},
    private,
    provenance::{OnForeign, Record, Standing, StateFolder, Unusable},
    secrets::Secrets,
    session::{found, record::SessionFolders},
    story::Story,
    tool::FormerSessions,
};

/// Everything that an agent knows.
#[derive(Debug)]
pub struct Memory {
    state: PathBuf,
    record: PathBuf,
    _locks: Vec<Lock>,
    journal: Journal,
    pub(crate) story: Story,
    pub(crate) window: Window,
    pub(crate) secrets: Secrets,
    /// Where a torn end was put, if there was one.
    pub torn: Option<PathBuf>,
    /// Whether the journal was foreign when it was opened, and is history only.
    is_adopted: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    #[error(
        "another process{} works in {}; two at once would not know of each other", told(*pid), state.display()
    )]
    Held { state: PathBuf, pid: Option<u32> },
    #[error("{}: abide has no record that it wrote this here. {}", path.display(), crate::journal::ADOPT)]
    Foreign { path: PathBuf },
    #[error("{} is a link; abide does not follow links in its state folder. Remove it, then try again", path.display())]
    Link { path: PathBuf },
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("cannot use {}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl MemoryError {
    /// Whether the state folder is not as Abide left it, so that a person has to decide about it.
    pub fn is_foreign(&self) -> bool {
        match self {
            Self::Foreign { .. } | Self::Link { .. } | Self::Journal(JournalError::Foreign { .. }) => true,
            Self::Held { .. }
            | Self::Io { .. }
            | Self::Journal(
                JournalError::Io { .. }
                | JournalError::Broken { .. }
                | JournalError::Gone { .. }
                | JournalError::Unwritable(_),
            ) => false,
        }
    }
}

fn told(pid: Option<u32>) -> String {
    pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
}

impl Memory {
    /// Opens a state folder, which is made if there is none. The window is what the model is shown, still empty.
    pub fn open(folder: &StateFolder, on_foreign: OnForeign, window: Window) -> Result<Self, MemoryError> {
        let state = &folder.path;
        let fail = |source| MemoryError::Io { path: state.to_owned(), source };
        let lock = |folder: &Path| {
            Lock::take(folder).map_err(|refused| match refused {
                Refused::Held(pid) => MemoryError::Held { state: state.to_owned(), pid },
                Refused::Io(source) => fail(source),
            })
        };
        let path = state.join(JOURNAL);
        let (record, standing) = folder.record_folder(on_foreign).map_err(|error| match error {
            Unusable::Foreign { name: JOURNAL } => JournalError::unrecorded(&path).into(),
            Unusable::Foreign { name } => MemoryError::Foreign { path: state.join(name) },
            Unusable::Link(path) => MemoryError::Link { path },
            Unusable::Io { path, source } => MemoryError::Io { path, source },
        })?;
        let mut locks = vec![lock(&record)?];
        match standing {
            Standing::Recorded => {}
            Standing::New => end_former_sessions(folder, &record),
            // A process of an earlier version would hold the lock in the state folder.
            Standing::EarlierVersion | Standing::Adopted => {
                if std::fs::symlink_metadata(state.join("lock")).is_ok() {
                    locks.push(lock(state)?);
                }
            }
        }
        if standing == Standing::EarlierVersion {
            Secrets::move_from(state, &record).map_err(fail)?;
        }
        let mut secrets = Secrets::open(&record).map_err(fail)?;
        let files = Record::open(&record).map_err(fail)?;
        let Opened { journal, entries, torn, is_adopted } =
            Journal::open(&path, files, standing, on_foreign)?;
        private::folder(state).map_err(fail)?;
        if is_adopted {
            secrets.forget().map_err(fail)?;
        }
        let mut memory = Self {
            state: state.to_owned(),
            record,
            _locks: locks,
            journal,
            story: Story::default(),
            window,
            secrets,
            torn,
            is_adopted,
        };
        for entry in entries {
            memory.take_in(entry)?;
        }
        Ok(memory)
    }

    /// Writes events down, takes them in, and tells them.
    pub(crate) fn record(
        &mut self,
        mut events: Vec<Event>,
        voice: &mut dyn Voice,
    ) -> Result<(), MemoryError> {
        for event in &mut events {
            self.secrets.strike(event);
            self.secrets.hide(event);
        }
        for entry in self.journal.append(events)? {
            self.take_in(entry.clone())?;
            voice.happened(&entry, &entry.line().map_err(JournalError::from)?);
        }
        Ok(())
    }

    /// The number that the next event will have.
    pub(crate) fn next(&self) -> u64 {
        self.journal.next()
    }

    /// Whether what the model was shown came from a journal that Abide did not write here.
    pub fn is_adopted(&self) -> bool {
        self.is_adopted
    }

    /// The home's record of the state folder.
    pub fn record_folder(&self) -> &Path {
        &self.record
    }

    /// Whether keepers of an earlier version may lie in the state folder.
    pub fn former_sessions(&self) -> FormerSessions {
        StateFolder::former_sessions(&self.record)
    }

    /// The state folder.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// Leaves a question where it is looked for.
    pub(crate) fn show(&self, question: &Question) -> Result<(), MemoryError> {
        self.journal.check_place()?;
        question.show(&self.state).map_err(|source| self.failed(source))
    }

    /// Nothing is asked any more.
    pub(crate) fn withdraw_question(&self) -> Result<(), MemoryError> {
        Question::withdraw(&self.state).map_err(|source| self.failed(source))
    }

    /// Keys that are struck out of whatever is recorded. Nothing brings them back, so the model does not see them either.
    pub fn withhold(&mut self, keys: Vec<String>) {
        self.secrets.withhold(keys);
    }

    /// Keeps an answer out of the journal from now on.
    pub(crate) fn keep_secret(&mut self, action_id: &str, text: &str) -> Result<(), MemoryError> {
        self.secrets.keep(action_id, text).map_err(|source| self.failed(source))
    }

    /// Fails if the folder of a call that was just recorded is gone: a part of the state folder was deleted.
    pub(crate) fn check_call_folder(&self, execution_ref: Option<&str>) -> Result<(), MemoryError> {
        let path = execution_ref.map(|folder| self.state.join(folder));
        match path.filter(|path| !std::fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())) {
            Some(path) => Err(JournalError::Gone { path }.into()),
            None => Ok(()),
        }
    }

    /// Deletes the sensitive answers.
    pub(crate) fn forget_secrets(&mut self) -> Result<(), MemoryError> {
        self.secrets.forget().map_err(|source| self.failed(source))
    }

    /// The run is over, and with it what only the run needed.
    pub(crate) fn tidy(&mut self) -> Result<(), MemoryError> {
        self.withdraw_question()?;
        self.secrets.forget().map_err(|source| self.failed(source))
    }

    fn take_in(&mut self, mut entry: Entry) -> Result<(), MemoryError> {
        self.story.apply(&entry.event).map_err(|why| {
            // Events are lines, so the number of one is that of the other.
            let line = usize::try_from(entry.seq).unwrap_or(usize::MAX);
            JournalError::Broken { path: self.state.join(JOURNAL), line, why }
        })?;
        self.secrets.reveal(&mut entry.event);
        self.window.apply(entry.event);
        Ok(())
    }

    fn failed(&self, source: io::Error) -> MemoryError {
        MemoryError::Io { path: self.state.clone(), source }
    }
}

/// Ends sessions of a state folder that was at this path and was deleted, so that no process of it is left behind.
fn end_former_sessions(folder: &StateFolder, own: &Path) {
    for record in folder.former_records(own) {
        // One that is at work elsewhere was moved and not deleted.
        let Ok(_lock) = Lock::take(&record) else { continue };
        let sessions = SessionFolders::in_record(&record);
        let ids: Vec<String> = sessions.all().into_iter().map(|(id, _)| id).collect();
        found::end(&sessions, &ids);
    }
}

/// The journal's name in the state folder.
pub const JOURNAL: &str = "journal.jsonl";
