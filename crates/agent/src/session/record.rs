//! What is written down about a session: for its keeper to remember, for people, and for the next process.
//!
//! Nothing here is believed about who lives: that is asked of the keeper, see [`super::found`].

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use abide_keeper::former::FormerKeepers;
use abide_keeper::launch::KeeperConnection;
use abide_keeper::place::KeeperDir;
use abide_keeper::protocol::{KeeperStatus, OutputStream};
use abide_os::remove::remove_path;
use serde::{Deserialize, Serialize};

use crate::private;
use crate::state::StateSubfolder;
use crate::tool::execution::write;
use crate::tool::workbench::ToolSetup;

/// What a session is, as its keeper and its directory remember it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SessionRecord {
    /// The tool whose session it is.
    pub(crate) tool: String,
    /// The run that started it.
    pub(crate) run: String,
    /// Whether calls without a session id go here.
    pub(crate) default: bool,
    /// The path of the shell, if it is one that takes commands.
    pub(crate) shell: Option<String>,
    /// The terminal's size, rows and columns, if it has one.
    pub(crate) pty: Option<(u16, u16)>,
    /// When it was started.
    pub(crate) started_at: String,
    /// What its processes have in their environment. Empty in records of earlier versions.
    #[serde(default)]
    pub(crate) mark: String,
}

/// How far a program that is spoken to has been heard.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct OutputProgress {
    /// How much of each stream has been shown.
    pub(crate) seen: [u64; 2],
    /// What it prints when it wants more.
    pub(crate) prompt: String,
    /// The stream on which it prints its prompt. None in records of earlier versions.
    pub(crate) prompt_stream: Option<OutputStream>,
    /// How many lines were sent since the program was last seen waiting for input: it may prompt once for each.
    pub(crate) lines_sent: u64,
    /// The call on which the program was still at work when it was last heard.
    pub(crate) unfinished: Option<String>,
}

/// Where the keepers of a state folder's sessions lie.
#[derive(Debug, Clone)]
pub(crate) struct SessionFolders {
    /// In the home's record of the state folder.
    own: PathBuf,
    former: Option<FormerFolder>,
}

/// Where an earlier version kept sessions: in the state folder. Its keepers are served until they end.
#[derive(Debug, Clone)]
struct FormerFolder {
    sessions: StateSubfolder,
    keepers: FormerKeepers,
    /// What this version notes about them, in the home.
    notes: PathBuf,
}

/// A session that an earlier version started, and that lives.
#[derive(Debug)]
pub(crate) struct FormerSession {
    pub(crate) keeper: KeeperConnection,
    pub(crate) status: KeeperStatus,
    /// Where this version notes how far the session was heard.
    pub(crate) notes: PathBuf,
}

impl SessionFolders {
    pub(crate) fn new(setup: &ToolSetup) -> Self {
        let former = setup.former_keepers().map(|keepers| FormerFolder {
            sessions: setup.state.subfolder("sessions"),
            keepers,
            notes: setup.record.join("former"),
        });
        Self { former, ..Self::in_record(&setup.record) }
    }

    /// Those in a record of the home alone.
    pub(crate) fn in_record(record: &Path) -> Self {
        Self { own: record.join("sessions"), former: None }
    }

    /// Where new sessions are started.
    pub(crate) fn own(&self) -> &Path {
        &self.own
    }

    /// The place of a session in the home, whether or not there is one of this name.
    pub(crate) fn place(&self, id: &str) -> KeeperDir {
        KeeperDir::new(&self.own, id)
    }

    /// The names of the sessions in the home.
    pub(crate) fn own_ids(&self) -> Vec<String> {
        KeeperDir::all(&self.own).into_iter().map(|(id, _)| id).collect()
    }

    /// The session of this name that an earlier version started, if it lives.
    pub(crate) fn former(&self, id: &str) -> Option<FormerSession> {
        let former = self.former.as_ref().filter(|_| is_id(id))?;
        let place = former.sessions.open().ok()?.directory(id).ok()?;
        let (keeper, status) = former.keepers.attach(&place)?;
        let notes = former.notes.join(id);
        if !notes.exists() {
            let bytes = place.read_bounded(HEARD, MAX_HEARD_BYTES).unwrap_or_default();
            let heard: OutputProgress = serde_json::from_slice(&bytes).unwrap_or_default();
            private::folder(&notes).ok()?;
            OutputProgress { unfinished: heard.unfinished.filter(|action| is_id(action)), ..heard }
                .write(&notes);
        }
        Some(FormerSession { keeper, status, notes })
    }

    /// The names of the sessions that an earlier version started and that may live.
    pub(crate) fn former_ids(&self) -> Vec<String> {
        let folder = self.former.as_ref().and_then(|former| former.sessions.open().ok());
        let entries = folder.and_then(|folder| folder.entries().ok());
        let names = entries.into_iter().flatten().take(MAX_FORMER).flatten();
        let names = names.filter_map(|entry| entry.name.into_string().ok());
        names.filter(|id| is_id(id) && !self.place(id).path().exists()).collect()
    }

    /// Forgets what was noted about a session of an earlier version.
    pub(crate) fn forget_former(&self, id: &str) {
        if let Some(former) = self.former.as_ref().filter(|_| is_id(id)) {
            // What stays is deleted with the record.
            remove_path(&former.notes.join(id), MAX_REMOVAL_TIME).ok();
        }
    }
}

impl SessionRecord {
    pub(crate) fn read(place: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(place.join(SESSION)).ok()?).ok()
    }

    pub(crate) fn write(&self, place: &Path) -> io::Result<()> {
        write(&place.join(SESSION), self)
    }
}

impl OutputProgress {
    pub(crate) fn read(place: &Path) -> Self {
        let text = fs::read(place.join(HEARD)).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// Lost with a crash, it only shows something twice.
    pub(crate) fn write(&self, place: &Path) {
        let _shown_twice_then = write(&place.join(HEARD), self);
    }
}

const SESSION: &str = "session.json";
const HEARD: &str = "heard.json";
const MAX_HEARD_BYTES: u64 = 1 << 20;
/// How many folders of sessions of an earlier version are looked at.
const MAX_FORMER: usize = 1_000;
const MAX_REMOVAL_TIME: Duration = Duration::from_secs(10);

/// A new name for a session of this tool: the tool's and six letters or digits.
pub(crate) fn new_id(tool: &str, taken: impl Fn(&str) -> bool) -> String {
    let tool = crate::model::wire_name(tool);
    loop {
        let mut bytes = [0u8; 6];
        let _filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
        let letter = |byte: &u8| char::from(b"abcdefghijklmnopqrstuvwxyz234567"[usize::from(byte % 32)]);
        let id = format!("{tool}_{}", bytes.iter().map(letter).collect::<String>());
        if !taken(&id) {
            return id;
        }
    }
}

/// Whether this can be the name of a directory of ours, and of nothing else.
pub(crate) fn is_id(id: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    !id.is_empty() && id.len() <= 80 && id.bytes().all(allowed)
}
