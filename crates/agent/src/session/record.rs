//! What is written down about a session: for its keeper to remember, for people, and for the next process.
//!
//! Nothing here is believed about who lives: that is asked of the keeper, see [`super::found`].

use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use abide_keeper::protocol::Stream;
use serde::{Deserialize, Serialize};

use crate::tool::execution::write;

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
pub(crate) struct Heard {
    /// How much of each stream has been shown.
    pub(crate) seen: [u64; 2],
    /// What it prints when it wants more.
    pub(crate) prompt: String,
    /// The stream on which it prints its prompt. None in records of earlier versions.
    pub(crate) prompt_stream: Option<Stream>,
    /// How many lines were sent since the program was last seen waiting for input: it may prompt once for each.
    pub(crate) lines_sent: u64,
    /// The call on which the program was still at work when it was last heard.
    pub(crate) unfinished: Option<String>,
}

/// Where the sessions of a state directory lie.
pub(crate) fn sessions(state: &Path) -> PathBuf {
    state.join("sessions")
}

impl SessionRecord {
    pub(crate) fn read(place: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(place.join(SESSION)).ok()?).ok()
    }

    /// Writes it down, with the pid of the program for people.
    pub(crate) fn write(&self, place: &Path, pid: u32) -> io::Result<()> {
        let mut file = fs::File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(place.join("pid.txt"))?;
        io::Write::write_all(&mut file, format!("{pid}\n").as_bytes())?;
        write(&place.join(SESSION), self)
    }
}

impl Heard {
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
