//! The agent's state: the state folder with its journal, the home's record of it, and the state derived from the
//! journal.
//!
//! `AgentState::record` is the only way to change it. Events are written and synced, then applied, then reported to the
//! observer.
//!
//! The decision which events are recorded is in `run`.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::{
    ask_human::HumanQuestion,
    context::ContextWindow,
    environment::AgentObserver,
    event::{AgentEvent, AgentJournalEntry},
    journal::{AgentJournal, JournalError, OpenedJournal},
    journal_state::JournalState,
    lock::{StateLock, StateLockError},
    provenance::{
        ForeignStatePolicy, LocatedState, ProvenanceRecord, StateFolder, StateFolderError, StateStanding,
        is_deleted,
    },
    secrets::SecretStore,
    session::{lookup, record::SessionFolders},
    state_directory::StateDirectory,
    tool::{FormerSessions, execution},
};

/// The complete state of an agent.
#[derive(Debug)]
pub struct AgentState {
    directory: StateDirectory,
    record_dir: PathBuf,
    former_sessions: FormerSessions,
    _locks: Vec<StateLock>,
    journal: AgentJournal,
    pub(crate) journal_state: JournalState,
    pub(crate) context: ContextWindow,
    pub(crate) secrets: SecretStore,
    /// The file that received a torn tail, if there was one.
    pub torn_tail_path: Option<PathBuf>,
    /// Whether the journal was foreign when it was opened, and serves as history only.
    is_adopted: bool,
    /// Whether the state of an earlier run was deleted while no process used it.
    was_deleted: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    #[error(
        "another process{} uses {}; stop it first, because two agents would overwrite each other", pid_suffix(*pid), state.display()
    )]
    Held { state: PathBuf, pid: Option<u32> },
    #[error("{}: abide has no record that it wrote this here. {}", path.display(), crate::journal::ADOPT_ADVICE)]
    Foreign { path: PathBuf },
    #[error("{} is a link; abide does not follow links in its state folder. Remove it, then try again", path.display())]
    Link { path: PathBuf },
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("cannot use {}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl MemoryError {
    /// Whether the state folder differs from the state in which Abide left it, so that a person has to decide.
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

fn pid_suffix(pid: Option<u32>) -> String {
    pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
}

impl AgentState {
    /// Opens a state folder, and creates it if it is missing. `window` is the empty context window.
    pub fn open(
        folder: &StateFolder,
        on_foreign: ForeignStatePolicy,
        window: ContextWindow,
    ) -> Result<Self, MemoryError> {
        let path = folder.path();
        let fail = |source| MemoryError::Io { path: path.clone(), source };
        let lock_error = |refused| match refused {
            StateLockError::Held(pid) => MemoryError::Held { state: path.clone(), pid },
            StateLockError::Io(source) => fail(source),
        };
        let located = folder.locate(on_foreign).map_err(|error| match error {
            StateFolderError::Foreign { name: JOURNAL_FILE } => {
                JournalError::unrecorded(&path.join(JOURNAL_FILE)).into()
            }
            StateFolderError::Foreign { name } => MemoryError::Foreign { path: path.join(name) },
            StateFolderError::Link(path) => MemoryError::Link { path },
            StateFolderError::Io { path, source } => MemoryError::Io { path, source },
        })?;
        let LocatedState { state, record, standing } = located;
        let mut locks = vec![StateLock::acquire(&record).map_err(lock_error)?];
        let mut is_lost = false;
        match standing {
            StateStanding::Recorded => {}
            StateStanding::New => is_lost = end_former_sessions(folder, &record),
            // A process of an earlier version holds a lock in the state folder.
            StateStanding::EarlierVersion => {
                locks.extend(StateLock::acquire_former(&state).map_err(lock_error)?)
            }
            StateStanding::Adopted => {
                locks.extend(StateLock::acquire_former(&state).map_err(lock_error)?);
                end_former_sessions(folder, &record);
            }
        }
        if standing == StateStanding::EarlierVersion {
            SecretStore::move_from(&state, &record).map_err(fail)?;
        }
        let mut secrets = SecretStore::open(&record).map_err(fail)?;
        let files = ProvenanceRecord::open(&record).map_err(fail)?;
        let opened = AgentJournal::open(&state, files, standing, on_foreign)?;
        state.make_private().map_err(|error| fail(error.into()))?;
        if opened.was_deleted {
            is_lost = true;
            end_recorded_processes(&record);
            secrets.delete_all().map_err(fail)?;
        }
        let OpenedJournal { journal, entries, torn_tail_path: torn, is_adopted, .. } = opened;
        if is_adopted {
            secrets.delete_all().map_err(fail)?;
        }
        let mut agent_state = Self {
            former_sessions: folder.former_sessions(&record),
            directory: state,
            record_dir: record,
            _locks: locks,
            journal,
            journal_state: JournalState::default(),
            context: window,
            secrets,
            torn_tail_path: torn,
            is_adopted,
            was_deleted: is_lost,
        };
        for entry in entries {
            agent_state.apply(entry)?;
        }
        Ok(agent_state)
    }

    /// Journals events, applies them, and reports them to the observer.
    pub(crate) fn record(
        &mut self,
        mut events: Vec<AgentEvent>,
        observer: &mut dyn AgentObserver,
    ) -> Result<(), MemoryError> {
        for event in &mut events {
            self.secrets.redact_keys(event);
            self.secrets.hide(event);
        }
        for entry in self.journal.append(events)? {
            self.apply(entry.clone())?;
            observer.on_entry(&entry, &entry.to_line().map_err(JournalError::from)?);
        }
        Ok(())
    }

    /// The sequence number of the next event.
    pub(crate) fn next_seq(&self) -> u64 {
        self.journal.next_seq()
    }

    /// Whether the history comes from a journal that Abide did not write here.
    pub fn is_adopted(&self) -> bool {
        self.is_adopted
    }

    /// Fails if the run that an answer is for was deleted in the meantime. Its sessions have been ended.
    pub(crate) fn check_run_not_deleted(&self) -> Result<(), MemoryError> {
        if self.was_deleted { Err(self.journal.gone_error().into()) } else { Ok(()) }
    }

    /// The home's record of the state folder.
    pub fn record_folder(&self) -> &Path {
        &self.record_dir
    }

    /// Whether keepers of an earlier version may be in the state folder.
    pub fn former_sessions(&self) -> FormerSessions {
        self.former_sessions.clone()
    }

    pub fn state(&self) -> &StateDirectory {
        &self.directory
    }

    /// Writes the question file.
    pub(crate) fn write_question(&self, question: &HumanQuestion) -> Result<(), MemoryError> {
        self.journal.check_in_place()?;
        question.write_file(&self.directory).map_err(|source| self.io_error(source))
    }

    /// Removes the question file.
    pub(crate) fn remove_question(&self) -> Result<(), MemoryError> {
        HumanQuestion::remove_file(&self.directory).map_err(|source| self.io_error(source))
    }

    /// Removes these keys from all later events. They are not restored for the model.
    pub fn set_redacted_keys(&mut self, keys: Vec<String>) {
        self.secrets.set_redacted_keys(keys);
    }

    /// Stores a sensitive answer, so that a token replaces it in all later events.
    pub(crate) fn store_secret(&mut self, action_id: &str, text: &str) -> Result<(), MemoryError> {
        self.secrets.store(action_id, text).map_err(|source| self.io_error(source))
    }

    /// Fails if the folder of a call that was just recorded is missing, because a part of the state folder was deleted.
    pub(crate) fn check_call_folder(&self, execution_ref: Option<&str>) -> Result<(), MemoryError> {
        match execution_ref.filter(|folder| !self.directory.subfolder(*folder).exists()) {
            Some(folder) => Err(JournalError::Gone { path: self.directory.path().join(folder) }.into()),
            None => Ok(()),
        }
    }

    /// Deletes the sensitive answers.
    pub(crate) fn delete_secrets(&mut self) -> Result<(), MemoryError> {
        self.secrets.delete_all().map_err(|source| self.io_error(source))
    }

    /// Deletes the files that are needed only during a run.
    pub(crate) fn delete_run_files(&mut self) -> Result<(), MemoryError> {
        self.remove_question()?;
        self.secrets.delete_all().map_err(|source| self.io_error(source))
    }

    fn apply(&mut self, mut entry: AgentJournalEntry) -> Result<(), MemoryError> {
        self.journal_state.apply(&entry.event).map_err(|reason| {
            // Each event is one line, so its sequence number is the line number.
            let line = usize::try_from(entry.seq).unwrap_or(usize::MAX);
            JournalError::Broken { path: self.directory.path().join(JOURNAL_FILE), line, reason }
        })?;
        self.secrets.reveal(&mut entry.event);
        self.context.apply(entry.event);
        Ok(())
    }

    fn io_error(&self, source: io::Error) -> MemoryError {
        MemoryError::Io { path: self.directory.path().to_owned(), source }
    }
}

/// Ends the processes of deleted state folders that were at this path. Returns whether there were any.
fn end_former_sessions(folder: &StateFolder, own: &Path) -> bool {
    let mut has_former = false;
    for record in folder.former_records(own) {
        // A state folder that is in use was moved and not deleted.
        let Ok(_lock) = StateLock::acquire(&record) else { continue };
        end_recorded_processes(&record);
        has_former = true;
    }
    has_former
}

/// Ends the sessions of a state folder that was deleted while no process used it. `record` is its record in the home.
/// Returns whether the folder was deleted.
///
/// The daemon calls this periodically for waiting agents. A running agent detects the deletion itself.
pub fn end_if_deleted(record: &Path) -> bool {
    if !is_deleted(record) {
        return false;
    }
    // A running agent holds the lock; it detects the deletion itself.
    let Ok(_lock) = StateLock::acquire(record) else { return false };
    end_recorded_processes(record);
    true
}

/// Ends the sessions and calls whose keepers are in a record.
fn end_recorded_processes(record: &Path) {
    let sessions = SessionFolders::in_record(record);
    let ids: Vec<String> = sessions.own_ids();
    lookup::end_sessions(&sessions, &ids);
    execution::end_running_calls(record);
}

/// Name of the journal in the state folder.
pub const JOURNAL_FILE: &str = "journal.jsonl";
