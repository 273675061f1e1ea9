//! The agent's memory: the state folder with its journal, and what the journal adds up to.
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
    journal::{Journal, JournalError},
    lock::{Lock, Refused},
    private,
    secrets::Secrets,
    story::Story,
};

/// Everything that an agent knows.
#[derive(Debug)]
pub struct Memory {
    state: PathBuf,
    _lock: Lock,
    journal: Journal,
    pub(crate) story: Story,
    pub(crate) window: Window,
    pub(crate) secrets: Secrets,
    /// Where a torn end was put, if there was one.
    pub torn: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    #[error(
        "another process{} works in {}; two at once would not know of each other", told(*pid), state.display()
    )]
    Held { state: PathBuf, pid: Option<u32> },
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("cannot use {}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

fn told(pid: Option<u32>) -> String {
    pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
}

impl Memory {
    /// Opens a state folder, which is made if there is none. The window is what the model is shown, still empty.
    pub fn open(state: &Path, window: Window) -> Result<Self, MemoryError> {
        let fail = |source| MemoryError::Io { path: state.to_owned(), source };
        make(state).map_err(fail)?;
        let lock = Lock::take(state).map_err(|refused| match refused {
            Refused::Held(pid) => MemoryError::Held { state: state.to_owned(), pid },
            Refused::Io(source) => fail(source),
        })?;
        let path = state.join(JOURNAL);
        let secrets = Secrets::open(state).map_err(fail)?;
        let (journal, entries, torn) = Journal::open(&path)?;
        let mut memory = Self {
            state: state.to_owned(),
            _lock: lock,
            journal,
            story: Story::default(),
            window,
            secrets,
            torn,
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

    /// The state folder.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// Leaves a question where it is looked for.
    pub(crate) fn show(&self, question: &Question) -> Result<(), MemoryError> {
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

/// The journal's name in the state folder.
pub const JOURNAL: &str = "journal.jsonl";

/// Makes the folder, private and out of sight of version control.
fn make(state: &Path) -> io::Result<()> {
    private::folder(state)?;
    let ignore = state.join(".gitignore");
    if !ignore.exists() {
        private::write(&ignore, b"*\n")?;
    }
    Ok(())
}
