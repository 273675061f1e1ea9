//! The files of one call: the record of the call, its output and the record of its exit.
//!
//! They are created before a process is started, so that recovery after a crash finds them. The folder in the state
//! folder is for people and for the model. The files for recovery, which are the record of the call and its keeper, are
//! in the home, where tools cannot write. This file starts no processes.

use std::fs;
use std::io::{self};
use std::path::{Path, PathBuf};
use std::time::Duration;

use abide_keeper::client::KeeperConnection;
use abide_keeper::protocol::KeeperStatus;
use abide_os::{
    atomic_file::{self, Durability},
    private_file,
    remove::remove_path,
};
use serde::{Deserialize, Serialize};

use super::one_shot;
use super::workbench::ToolSetup;
use crate::state_directory::StateSubfolder;

/// The locations of a call's files.
#[derive(Debug, Clone)]
pub struct ToolExecution {
    /// The folder for people and for the model, in the state folder.
    pub folder: StateSubfolder,
    /// Path of `folder`, relative to the state folder.
    pub reference: String,
    /// Path of `folder` as a tool of the agent can read it.
    pub shown_path: String,
    /// The call's directory in the home.
    record_dir: PathBuf,
    /// The parent of `record_dir`, which also has earlier calls.
    records_dir: PathBuf,
    /// Whether an earlier version started the call. Its files are all in the state folder.
    is_former: bool,
}

/// The contents of `call.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallRecord {
    pub tool: String,
    /// Program and arguments; empty for input to an existing session.
    pub argv: Vec<String>,
    pub cwd: String,
    /// Size of the program's input.
    pub stdin_bytes: u64,
    /// The session that received the input.
    pub session: Option<String>,
    /// The number of the command in the session, if its shell tracks commands.
    pub job: Option<u64>,
    /// RFC 3339.
    pub started_at: String,
    /// Value of `MARK_VARIABLE` in the environment of the call's processes. Empty in records of earlier versions and
    /// for input to an existing session.
    #[serde(default)]
    pub mark: String,
}

/// The environment variable that identifies the processes of a call or session after their keeper was killed.
pub(crate) const MARK_VARIABLE: &str = "ABIDE_TOOL_CALL";

/// A new random mark.
pub(crate) fn new_mark() -> String {
    abide_os::random::name(24)
}

/// The environment entry with this mark.
pub(crate) fn mark_entry(mark: &str) -> String {
    format!("{MARK_VARIABLE}={mark}")
}

/// The contents of `exit.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord {
    /// 128 + n for death by signal n; `None` if the program was not started or its exit is unknown.
    pub exit_code: Option<i32>,
    pub timed_out: bool,
    /// Whether a person stopped the run during the call.
    pub interrupted: bool,
    /// Number of bytes printed: stdout, stderr.
    pub printed: [u64; 2],
    pub duration_ms: u64,
    /// RFC 3339.
    pub ended_at: String,
}

const EXECUTIONS_FOLDER: &str = "executions";
/// Number of earlier calls whose records are kept in the home.
const MAX_KEPT_CALLS: usize = 16;
/// The folder of calls in the home's record.
const CALLS_FOLDER: &str = "calls";
const MAX_REMOVAL_TIME: Duration = Duration::from_secs(60);
/// Size limit of a record of an earlier version, which includes the arguments of the call.
const MAX_RECORD_BYTES: u64 = 64 << 20;
const CALL_FILE: &str = "call.json";
const EXIT_FILE: &str = "exit.json";
/// The keeper's directory below a call's directory.
const KEEPER_FOLDER: &str = "held";

impl ToolExecution {
    /// The files of the call with this id; none is created yet.
    pub(crate) fn new(setup: &ToolSetup, action: &str) -> Self {
        let reference = format!("{EXECUTIONS_FOLDER}/{action}");
        let path = setup.state.path().join(&reference);
        let shown = path.strip_prefix(&setup.cwd).unwrap_or(&path).to_string_lossy().into_owned();
        let folder = setup.state.subfolder(&reference);
        let calls = setup.record_dir.join(CALLS_FOLDER);
        let private = calls.join(action);
        let is_former =
            setup.former_keepers().is_some() && !private.exists() && folder.open_file(CALL_FILE).is_ok();
        Self { folder, reference, shown_path: shown, record_dir: private, records_dir: calls, is_former }
    }

    /// Creates the directories and writes `call.json`.
    pub fn write_call_record(&self, call: &CallRecord) -> io::Result<()> {
        self.prune_old_calls();
        private_file::create_missing_dirs(&self.record_dir)?;
        self.folder.create()?;
        write_record(&self.record_dir.join(CALL_FILE), call)?;
        self.folder.replace(CALL_FILE, &to_json_line(call)?)
    }

    /// Deletes records of old calls from the home; their results are in the journal. Failures are retried at the next
    /// call.
    fn prune_old_calls(&self) {
        let entries = fs::read_dir(&self.records_dir).into_iter().flatten().flatten();
        let dated = |entry: fs::DirEntry| Some((entry.metadata().ok()?.modified().ok()?, entry.path()));
        let mut calls: Vec<_> = entries.filter_map(dated).collect();
        calls.sort();
        let surplus = calls.len().saturating_sub(MAX_KEPT_CALLS);
        for (_, call) in calls.into_iter().take(surplus) {
            remove_path(&call, MAX_REMOVAL_TIME).ok();
        }
    }

    pub fn write_exit_record(&self, exit: &ExitRecord) -> io::Result<()> {
        write_record(&self.record_dir.join(EXIT_FILE), exit)?;
        self.folder.replace(EXIT_FILE, &to_json_line(exit)?)
    }

    /// The record of the call, if it was written. Tools can write records of earlier versions. Such a record only tells
    /// which session the call used, and its mark is not used to end processes.
    pub fn read_call_record(&self) -> Option<CallRecord> {
        let call: CallRecord = serde_json::from_slice(&self.read(CALL_FILE)?).ok()?;
        Some(if self.is_former { CallRecord { mark: String::new(), ..call } } else { call })
    }

    /// The record of the exit, if it was written.
    pub fn read_exit_record(&self) -> Option<ExitRecord> {
        serde_json::from_slice(&self.read(EXIT_FILE)?).ok()
    }

    /// The directory of the keeper while the program runs.
    pub fn keeper_path(&self) -> PathBuf {
        self.record_dir.join(KEEPER_FOLDER)
    }

    /// The keeper of the call, if an earlier version started it and it runs.
    pub(crate) fn former_keeper(&self, setup: &ToolSetup) -> Option<(KeeperConnection, KeeperStatus)> {
        let keepers = setup.former_keepers().filter(|_| self.is_former)?;
        keepers.attach(&self.folder.open().ok()?.open_directory(KEEPER_FOLDER).ok()?)
    }

    fn read(&self, name: &str) -> Option<Vec<u8>> {
        match self.is_former {
            true => self.folder.read_bounded(name, MAX_RECORD_BYTES).ok(),
            false => fs::read(self.record_dir.join(name)).ok(),
        }
    }
}

/// Ends the programs of all calls in a record of the home.
pub(crate) fn end_running_calls(record: &Path) {
    let calls = fs::read_dir(record.join(CALLS_FOLDER)).into_iter().flatten().flatten();
    for call in calls {
        one_shot::end_command(&call.path().join(KEEPER_FOLDER));
    }
}

fn to_json_line(record: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(record)?;
    text.push(b'\n');
    Ok(text)
}

/// Writes a record. A crash of the process leaves the complete record or none; a power failure may leave an empty one,
/// which counts as none.
pub(crate) fn write_record(path: &Path, record: &impl Serialize) -> io::Result<()> {
    atomic_file::replace(path, &to_json_line(record)?, Durability::ProcessCrash)
}
