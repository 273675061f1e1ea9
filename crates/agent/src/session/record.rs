//! The records of a session: for its keeper, for people, and for the next process.
//!
//! They do not tell whether a session runs. The keeper is asked for that, see [`super::lookup`].

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use abide_keeper::client::KeeperConnection;
use abide_keeper::former_keepers::FormerKeepers;
use abide_keeper::keeper_dir::KeeperDir;
use abide_keeper::protocol::{KeeperStatus, OutputStream};
use abide_os::{private_file, remove::remove_path};
use serde::{Deserialize, Serialize};

use crate::state_directory::StateSubfolder;
use crate::tool::execution::write_record;
use crate::tool::workbench::ToolSetup;

/// The description of a session, stored by its keeper and in its directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SessionRecord {
    /// The tool that the session belongs to.
    pub(crate) tool: String,
    /// The run that started it.
    pub(crate) run: String,
    /// Whether calls without a session id use this session.
    pub(crate) default: bool,
    /// Path of the shell, if its commands are tracked.
    pub(crate) shell: Option<String>,
    /// Rows and columns of the terminal, if it has one.
    pub(crate) pty: Option<(u16, u16)>,
    /// RFC 3339.
    pub(crate) started_at: String,
    /// The mark in the environment of its processes. Empty in records of earlier versions.
    #[serde(default)]
    pub(crate) mark: String,
}

/// The output that was read from a program, and its prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct OutputProgress {
    /// Offset in each stream up to which output was shown.
    pub(crate) seen: [u64; 2],
    /// The prompt of the program; empty if unknown.
    pub(crate) prompt: String,
    /// The stream of the prompt. `None` in records of earlier versions.
    pub(crate) prompt_stream: Option<OutputStream>,
    /// Number of lines sent since the program last waited for input. It may prompt once for each.
    pub(crate) lines_sent: u64,
    /// The call that the program was still busy with when its output was last read.
    pub(crate) unfinished: Option<String>,
}

/// The locations of the keepers of a state folder's sessions.
#[derive(Debug, Clone)]
pub(crate) struct SessionFolders {
    /// In the home's record of the state folder.
    own_dir: PathBuf,
    former: Option<FormerFolder>,
}

/// The location of sessions of an earlier version, in the state folder. They are used until they end.
#[derive(Debug, Clone)]
struct FormerFolder {
    sessions: StateSubfolder,
    keepers: FormerKeepers,
    /// The notes of this version about them, in the home.
    progress_dir: PathBuf,
}

/// A running session that an earlier version started.
#[derive(Debug)]
pub(crate) struct FormerSession {
    pub(crate) keeper: KeeperConnection,
    pub(crate) status: KeeperStatus,
    /// The folder that stores which output of the session has been shown.
    pub(crate) progress_dir: PathBuf,
}

impl SessionFolders {
    pub(crate) fn new(setup: &ToolSetup) -> Self {
        let former = setup.former_keepers().map(|keepers| FormerFolder {
            sessions: setup.state.subfolder("sessions"),
            keepers,
            progress_dir: setup.record_dir.join("former"),
        });
        Self { former, ..Self::in_record(&setup.record_dir) }
    }

    /// Only the sessions in a record of the home.
    pub(crate) fn in_record(record: &Path) -> Self {
        Self { own_dir: record.join("sessions"), former: None }
    }

    /// The folder of new sessions.
    pub(crate) fn own_dir(&self) -> &Path {
        &self.own_dir
    }

    /// The directory of a session in the home, whether or not it exists.
    pub(crate) fn keeper_dir(&self, id: &str) -> KeeperDir {
        KeeperDir::new(&self.own_dir, id)
    }

    /// The ids of the sessions in the home.
    pub(crate) fn own_ids(&self) -> Vec<String> {
        KeeperDir::list(&self.own_dir).into_iter().map(|(id, _)| id).collect()
    }

    /// The session of this id that an earlier version started, if it runs.
    pub(crate) fn former_session(&self, id: &str) -> Option<FormerSession> {
        let former = self.former.as_ref().filter(|_| is_safe_id(id))?;
        let directory = former.sessions.open().ok()?.open_directory(id).ok()?;
        let (keeper, status) = former.keepers.attach(&directory)?;
        let notes = former.progress_dir.join(id);
        if !notes.exists() {
            let bytes = directory.read_bounded(FORMER_PROGRESS_FILE, MAX_PROGRESS_BYTES).unwrap_or_default();
            let progress: OutputProgress = serde_json::from_slice(&bytes).unwrap_or_default();
            private_file::create_missing_dirs(&notes).ok()?;
            OutputProgress {
                unfinished: progress.unfinished.filter(|action| is_safe_id(action)),
                ..progress
            }
            .write(&notes);
        }
        Some(FormerSession { keeper, status, progress_dir: notes })
    }

    /// The ids of sessions of an earlier version that may run.
    pub(crate) fn former_ids(&self) -> Vec<String> {
        let folder = self.former.as_ref().and_then(|former| former.sessions.open().ok());
        let entries = folder.and_then(|folder| folder.entries().ok());
        let names = entries.into_iter().flatten().take(MAX_FORMER_SESSIONS).flatten();
        let names = names.filter_map(|entry| entry.name.into_string().ok());
        names.filter(|id| is_safe_id(id) && !self.keeper_dir(id).path().exists()).collect()
    }

    /// Deletes the notes about a session of an earlier version.
    pub(crate) fn delete_former_progress(&self, id: &str) {
        if let Some(former) = self.former.as_ref().filter(|_| is_safe_id(id)) {
            // Files that remain are deleted with the record.
            remove_path(&former.progress_dir.join(id), MAX_REMOVAL_TIME).ok();
        }
    }
}

impl SessionRecord {
    pub(crate) fn read(directory: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(directory.join(SESSION_FILE)).ok()?).ok()
    }

    pub(crate) fn write(&self, directory: &Path) -> io::Result<()> {
        write_record(&directory.join(SESSION_FILE), self)
    }
}

impl OutputProgress {
    pub(crate) fn read(directory: &Path) -> Self {
        let read = |name| fs::read(directory.join(name));
        let text = read(PROGRESS_FILE).or_else(|_| read(FORMER_PROGRESS_FILE)).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// Writes the record without a sync. If it is lost, some output is shown twice.
    pub(crate) fn write(&self, directory: &Path) {
        write_record(&directory.join(PROGRESS_FILE), self).ok();
    }
}

const SESSION_FILE: &str = "session.json";
const PROGRESS_FILE: &str = "progress.json";
/// The name that earlier versions gave to the progress file. Their sessions may still run.
const FORMER_PROGRESS_FILE: &str = "heard.json";
const MAX_PROGRESS_BYTES: u64 = 1 << 20;
/// Maximum number of session folders of an earlier version.
const MAX_FORMER_SESSIONS: usize = 1_000;
const MAX_REMOVAL_TIME: Duration = Duration::from_secs(10);

/// A new session id: the tool's name and six random letters or digits.
pub(crate) fn new_id(tool: &str, taken: impl Fn(&str) -> bool) -> String {
    let tool = crate::model::wire_name(tool);
    loop {
        let id = format!("{tool}_{}", abide_os::random::name(6));
        if !taken(&id) {
            return id;
        }
    }
}

/// Whether an id is safe as the name of a directory.
pub(crate) fn is_safe_id(id: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    !id.is_empty() && id.len() <= 80 && id.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_progress_file_of_an_earlier_version_is_read_until_it_is_replaced() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let text = r#"{"seen":[7,1],"prompt":"> ","prompt_stream":null,"lines_sent":2,"unfinished":null}"#;
        fs::write(folder.path().join(FORMER_PROGRESS_FILE), text).expect("it can be written");
        let mut progress = OutputProgress::read(folder.path());
        assert_eq!((progress.seen, progress.prompt.as_str()), ([7, 1], "> "));
        progress.seen = [9, 1];
        progress.write(folder.path());
        assert_eq!(OutputProgress::read(folder.path()), progress);
    }
}
