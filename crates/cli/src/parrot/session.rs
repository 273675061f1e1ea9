//! The parrot's memory of a conversation: one file for each session.
//!
//! It makes every order be carried out at most once, whenever the parrot is killed: the script is taken out of the file
//! before the first order of a turn is carried out, and what remains of it is put back only when the turn ends with a
//! question. A killed, failed or interrupted turn is therefore forgotten, and the next prompt is a new script. Each
//! change is a new file that is synced and then takes the old one's place.

use std::{
    fs::{self, File, TryLockError},
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use crate::private;

/// What is remembered.
#[derive(Debug, Serialize, Deserialize)]
struct ParrotSessionFile {
    /// The directory to which the session belongs.
    workspace: String,
    /// The last reply.
    reply: String,
    state: ParrotSessionState,
}

/// How the last turn left the session.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ParrotSessionState {
    /// Nothing is left to be done: the next prompt is a script.
    Idle,
    /// A question is open: the next prompt is its reply, and then these lines are the script.
    Asked {
        /// What is still to be done.
        rest: Vec<String>,
    },
    /// It can never be resumed.
    Lost,
}

/// A session that only this process has.
#[derive(Debug)]
pub(super) struct ParrotSession {
    id: String,
    folder: PathBuf,
    memory: ParrotSessionFile,
    /// Held as long as this process lives.
    _lock: File,
}

impl ParrotSession {
    /// A session that did not exist before. Nothing is written yet.
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

    /// A session that was begun by another process.
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

    /// Its name.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Takes what the last turn left, durably: whatever happens from now on, it is not taken again.
    pub(super) fn take(&mut self) -> anyhow::Result<(ParrotSessionState, String)> {
        let state = std::mem::replace(&mut self.memory.state, ParrotSessionState::Idle);
        self.write()?;
        Ok((state, self.memory.reply.clone()))
    }

    /// Remembers how the turn ended, durably. What is lost stays lost.
    pub(super) fn keep(&mut self, state: ParrotSessionState, reply: &str) -> anyhow::Result<()> {
        if self.memory.state != ParrotSessionState::Lost {
            self.memory.state = state;
        }
        reply.clone_into(&mut self.memory.reply);
        self.write()
    }

    /// Makes it useless, durably and at once.
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

/// Whether this can be the name of a session, and so of a file.
pub(super) fn is_name(id: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    !id.is_empty() && id.len() <= 64 && id.bytes().all(allowed)
}

/// A name that nobody else has.
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
