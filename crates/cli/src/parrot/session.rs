//! The parrot's session files, one per session.
//!
//! They ensure that each instruction is executed at most once, whenever the parrot is killed. The script is removed
//! from the file before the first instruction of a turn is executed, and its rest is saved only when the turn ends with
//! a question. The script of a killed, failed or interrupted turn is therefore dropped, and the next prompt is a new
//! script. Each change is an atomic, synced replacement of the file.

use std::{
    fs::{self, File, TryLockError},
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use crate::private;

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
pub(super) enum ParrotSessionState {
    /// The next prompt is a script.
    Idle,
    /// A question is open: the next prompt is its reply, followed by these lines.
    Asked { rest: Vec<String> },
    /// The session can no longer be resumed.
    Lost,
}

/// A session, locked by this process.
#[derive(Debug)]
pub(super) struct ParrotSession {
    id: String,
    folder: PathBuf,
    memory: ParrotSessionFile,
    /// Held for the lifetime of the process.
    _lock: File,
}

impl ParrotSession {
    /// Creates a session that must not exist yet. Nothing is written.
    pub(super) fn begin(folder: &Path, id: &str, workspace: &str) -> anyhow::Result<Self> {
        let lock = claim(folder, id)?;
        if file(folder, id).exists() {
            bail!("session {id} already exists");
        }
        let memory = ParrotSessionFile {
            workspace: workspace.to_owned(),
            reply: String::new(),
            state: ParrotSessionState::Idle,
        };
        Ok(Self { id: id.to_owned(), folder: folder.to_owned(), memory, _lock: lock })
    }

    /// Opens a session of an earlier process.
    pub(super) fn resume(folder: &Path, id: &str, workspace: &str) -> anyhow::Result<Self> {
        let lock = claim(folder, id)?;
        let bytes = fs::read(file(folder, id)).with_context(|| format!("session {id} not found"))?;
        let memory: ParrotSessionFile =
            serde_json::from_slice(&bytes).with_context(|| format!("session {id} is damaged"))?;
        if memory.state == ParrotSessionState::Lost {
            bail!("session {id} is lost");
        }
        if memory.workspace != workspace {
            bail!("session {id} belongs to {}, not to {workspace}", memory.workspace);
        }
        Ok(Self { id: id.to_owned(), folder: folder.to_owned(), memory, _lock: lock })
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Takes the state durably: after this call, a crash cannot cause it to be taken again.
    pub(super) fn take(&mut self) -> anyhow::Result<(ParrotSessionState, String)> {
        let state = std::mem::replace(&mut self.memory.state, ParrotSessionState::Idle);
        self.write()?;
        Ok((state, self.memory.reply.clone()))
    }

    /// Saves the state durably. A lost session stays lost.
    pub(super) fn keep(&mut self, state: ParrotSessionState, reply: &str) -> anyhow::Result<()> {
        if self.memory.state != ParrotSessionState::Lost {
            self.memory.state = state;
        }
        reply.clone_into(&mut self.memory.reply);
        self.write()
    }

    /// Marks the session as lost, durably and immediately.
    pub(super) fn lose(&mut self) -> anyhow::Result<()> {
        self.memory.state = ParrotSessionState::Lost;
        self.write()
    }

    fn write(&self) -> anyhow::Result<()> {
        let path = file(&self.folder, &self.id);
        let part = path.with_extension("part");
        let bytes = serde_json::to_vec(&self.memory)?;
        let written = private::open(File::options().write(true).create(true).truncate(true), &part)
            .and_then(|mut file| file.write_all(&bytes).and_then(|()| file.sync_all()))
            .and_then(|()| fs::rename(&part, &path))
            .and_then(|()| File::open(&self.folder)?.sync_all());
        written.with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Returns whether the id is valid as a session name and so as a file name.
pub(super) fn is_name(id: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    !id.is_empty() && id.len() <= 64 && id.bytes().all(allowed)
}

/// Generates a unique session name.
pub(super) fn fresh_name() -> anyhow::Result<String> {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    let digits = format!("{:032x}", u128::from_ne_bytes(bytes));
    let part = |from: usize, to: usize| digits.get(from..to).unwrap_or_default();
    Ok([part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-"))
}

fn file(folder: &Path, id: &str) -> PathBuf {
    folder.join(format!("{id}.json"))
}

fn claim(folder: &Path, id: &str) -> anyhow::Result<File> {
    if !is_name(id) {
        bail!("{id:?} is no session id");
    }
    private::missing_directories(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let lock = folder.join(format!("{id}.lock"));
    let lock = private::open(File::options().write(true).create(true).truncate(true), &lock)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => bail!("session {id} is in use by another process"),
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}
