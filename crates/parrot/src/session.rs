//! The parrot's session files, one per session.
//!
//! They ensure that each instruction is executed at most once, whenever the parrot is killed. The script is removed
//! from the file before the first instruction of a turn is executed, and its rest is saved only when the turn ends with
//! a question. The script of a killed, failed or interrupted turn is therefore dropped, and the next prompt is a new
//! script. Each change is an atomic, synced replacement of the file.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use abide_os::{
    atomic_file::{self, Durability},
    file_lock::{FileLock, FileLockError},
    private_file,
};
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

/// Contents of the session file.
#[derive(Debug, Serialize, Deserialize)]
struct ParrotSessionFile {
    /// The working directory that the session belongs to.
    workspace: String,
    reply: String,
    state: ParrotSessionState,
}

/// State of the session after its last turn.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ParrotSessionState {
    /// The next prompt is a script.
    Idle,
    /// A question is open: the next prompt is its reply, followed by these lines.
    Asked { rest: Vec<String> },
    /// The session can no longer be resumed.
    Lost,
}

/// A session, locked by this process.
#[derive(Debug)]
pub(crate) struct ParrotSession {
    id: String,
    folder: PathBuf,
    contents: ParrotSessionFile,
    /// Held for the lifetime of the process.
    _lock: FileLock,
}

impl ParrotSession {
    /// Creates a session that must not exist yet. Nothing is written.
    pub(crate) fn create(folder: &Path, id: &str, workspace: &str) -> anyhow::Result<Self> {
        let lock = lock_session(folder, id)?;
        if session_path(folder, id).exists() {
            bail!("session {id} already exists");
        }
        let memory = ParrotSessionFile {
            workspace: workspace.to_owned(),
            reply: String::new(),
            state: ParrotSessionState::Idle,
        };
        Ok(Self { id: id.to_owned(), folder: folder.to_owned(), contents: memory, _lock: lock })
    }

    /// Opens a session of an earlier process.
    pub(crate) fn resume(folder: &Path, id: &str, workspace: &str) -> anyhow::Result<Self> {
        let lock = lock_session(folder, id)?;
        let bytes = fs::read(session_path(folder, id)).with_context(|| format!("session {id} not found"))?;
        let memory: ParrotSessionFile =
            serde_json::from_slice(&bytes).with_context(|| format!("session {id} is damaged"))?;
        if memory.state == ParrotSessionState::Lost {
            bail!("session {id} is lost");
        }
        if memory.workspace != workspace {
            bail!("session {id} belongs to {}, not to {workspace}", memory.workspace);
        }
        Ok(Self { id: id.to_owned(), folder: folder.to_owned(), contents: memory, _lock: lock })
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Takes the state durably: after this call, a crash cannot cause it to be taken again.
    pub(crate) fn take_state(&mut self) -> anyhow::Result<(ParrotSessionState, String)> {
        let state = std::mem::replace(&mut self.contents.state, ParrotSessionState::Idle);
        self.write()?;
        Ok((state, self.contents.reply.clone()))
    }

    /// Saves the state durably. A lost session stays lost.
    pub(crate) fn save(&mut self, state: ParrotSessionState, reply: &str) -> anyhow::Result<()> {
        if self.contents.state != ParrotSessionState::Lost {
            self.contents.state = state;
        }
        reply.clone_into(&mut self.contents.reply);
        self.write()
    }

    /// Marks the session as lost, durably and immediately.
    pub(crate) fn mark_lost(&mut self) -> anyhow::Result<()> {
        self.contents.state = ParrotSessionState::Lost;
        self.write()
    }

    fn write(&self) -> anyhow::Result<()> {
        let path = session_path(&self.folder, &self.id);
        let bytes = serde_json::to_vec(&self.contents)?;
        atomic_file::replace(&path, &bytes, Durability::PowerFailure)
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Returns whether the id is valid as a session name and so as a file name.
pub(crate) fn is_valid_id(id: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    !id.is_empty() && id.len() <= 64 && id.bytes().all(allowed)
}

/// Generates a unique session name.
pub(crate) fn new_id() -> String {
    uuid::Uuid::new_v4().to_string()
}

fn session_path(folder: &Path, id: &str) -> PathBuf {
    folder.join(format!("{id}.json"))
}

fn lock_session(folder: &Path, id: &str) -> anyhow::Result<FileLock> {
    if !is_valid_id(id) {
        bail!("{id:?} is not a session id");
    }
    private_file::create_missing_dirs(folder)
        .with_context(|| format!("cannot create {}", folder.display()))?;
    let lock = folder.join(format!("{id}.lock"));
    let lock = private_file::open(File::options().write(true).create(true).truncate(true), &lock)?;
    match FileLock::try_acquire(lock) {
        Ok(lock) => Ok(lock),
        Err(FileLockError::Held(_)) => bail!("session {id} is in use by another process"),
        Err(FileLockError::Io(error)) => Err(error.into()),
    }
}
