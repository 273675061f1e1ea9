//! The directory of one call: what was called, what it printed, how it ended.
//!
//! It is made before anything is started, so that whoever comes after a crash finds what there is to find. The directory
//! in the state folder is for people and for the model. What recovery goes by, the record of the call and its keeper, lies
//! in the home, where tools have no business. Not here: starting anything.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use abide_keeper::launch::KeeperConnection;
use abide_keeper::protocol::KeeperStatus;
use abide_os::remove::remove_path;
use serde::{Deserialize, Serialize};

use super::once;
use super::workbench::ToolSetup;
use crate::private;
use crate::state::StateSubfolder;

/// Where a call's things lie.
#[derive(Debug, Clone)]
pub struct ToolExecution {
    /// The folder for people and for the model, in the state folder.
    pub folder: StateSubfolder,
    /// Its path, relative to the state directory.
    pub reference: String,
    /// Its path, as a tool of the agent can read it.
    pub shown: String,
    /// The call's directory in the home.
    private: PathBuf,
    /// The directory of that one and of calls before it.
    calls: PathBuf,
    /// Whether an earlier version began the call, which had everything in the state folder.
    is_former: bool,
}

/// What was called.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallRecord {
    /// The tool's name.
    pub tool: String,
    /// Program and arguments; empty for what was said to a session.
    pub argv: Vec<String>,
    /// The working directory.
    pub cwd: String,
    /// How many bytes it was given to read.
    pub stdin_bytes: u64,
    /// The session that it was said to.
    pub session: Option<String>,
    /// Which command of that session it was to be, if its shell takes commands.
    pub job: Option<u64>,
    /// When.
    pub started_at: String,
    /// What its processes have in their environment, see `MARK_VARIABLE`. Empty in records of earlier versions, and for
    /// what was said to a session that was there already.
    #[serde(default)]
    pub mark: String,
}

/// The variable by which the processes of a call or of a session are found again when their keeper was killed.
pub(crate) const MARK_VARIABLE: &str = "ABIDE_TOOL_CALL";

/// A new mark, unlike any other.
pub(crate) fn new_mark() -> String {
    crate::clock::fresh(24)
}

/// A mark as it stands in the environment of a process.
pub(crate) fn mark_entry(mark: &str) -> String {
    format!("{MARK_VARIABLE}={mark}")
}

/// How it ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord {
    /// 128 + n for death by signal n; none if it was not started or is not known.
    pub exit_code: Option<i32>,
    /// Its time was over.
    pub timed_out: bool,
    /// Somebody stopped us.
    pub interrupted: bool,
    /// How many bytes it printed: stdout, stderr.
    pub printed: [u64; 2],
    /// How long it took.
    pub duration_ms: u64,
    /// When.
    pub ended_at: String,
}

const EXECUTIONS: &str = "executions";
/// How many calls before the one at work the home has a record of.
const MAX_KEPT_CALLS: usize = 16;
/// The folder of calls in the home's record.
const CALLS: &str = "calls";
const MAX_REMOVAL_TIME: Duration = Duration::from_secs(60);
/// How long a record of an earlier version may be: the arguments of a call stand in it.
const MAX_RECORD_BYTES: u64 = 64 << 20;
const CALL: &str = "call.json";
const EXIT: &str = "exit.json";
/// The keeper's place below an execution.
const HELD: &str = "held";

impl ToolExecution {
    /// The call of this id.
    pub(crate) fn new(setup: &ToolSetup, action: &str) -> Self {
        let reference = format!("{EXECUTIONS}/{action}");
        let path = setup.state.path().join(&reference);
        let shown = path.strip_prefix(&setup.cwd).unwrap_or(&path).to_string_lossy().into_owned();
        let folder = setup.state.subfolder(&reference);
        let calls = setup.record.join(CALLS);
        let private = calls.join(action);
        let is_former =
            setup.former_keepers().is_some() && !private.exists() && folder.open_file(CALL).is_ok();
        Self { folder, reference, shown, private, calls, is_former }
    }

    /// Makes the directories and says what is about to be called.
    pub fn begin(&self, call: &CallRecord) -> io::Result<()> {
        self.forget_old_calls();
        private::folder(&self.private)?;
        self.folder.create()?;
        write(&self.private.join(CALL), call)?;
        self.folder.replace(CALL, &text(call)?)
    }

    /// Deletes what the home has about old calls: they have their results in the journal. What cannot be deleted now is
    /// deleted later.
    fn forget_old_calls(&self) {
        let entries = fs::read_dir(&self.calls).into_iter().flatten().flatten();
        let dated = |entry: fs::DirEntry| Some((entry.metadata().ok()?.modified().ok()?, entry.path()));
        let mut calls: Vec<_> = entries.filter_map(dated).collect();
        calls.sort();
        let surplus = calls.len().saturating_sub(MAX_KEPT_CALLS);
        for (_, call) in calls.into_iter().take(surplus) {
            remove_path(&call, MAX_REMOVAL_TIME).ok();
        }
    }

    /// Says how it ended.
    pub fn end(&self, exit: &ExitRecord) -> io::Result<()> {
        write(&self.private.join(EXIT), exit)?;
        self.folder.replace(EXIT, &text(exit)?)
    }

    /// What was called, if it got so far. What an earlier version recorded lies where tools can write: it names the session
    /// that the call was about, and nothing is ended by its mark.
    pub fn call(&self) -> Option<CallRecord> {
        let call: CallRecord = serde_json::from_slice(&self.read(CALL)?).ok()?;
        Some(if self.is_former { CallRecord { mark: String::new(), ..call } } else { call })
    }

    /// How it ended, if that was recorded.
    pub fn exit(&self) -> Option<ExitRecord> {
        serde_json::from_slice(&self.read(EXIT)?).ok()
    }

    /// Where the keeper of its program lies while it runs.
    pub fn held(&self) -> PathBuf {
        self.private.join(HELD)
    }

    /// The keeper of its program, if an earlier version started it and it lives.
    pub(crate) fn former_keeper(&self, setup: &ToolSetup) -> Option<(KeeperConnection, KeeperStatus)> {
        let keepers = setup.former_keepers().filter(|_| self.is_former)?;
        keepers.attach(&self.folder.open().ok()?.directory(HELD).ok()?)
    }

    fn read(&self, name: &str) -> Option<Vec<u8>> {
        match self.is_former {
            true => self.folder.read_bounded(name, MAX_RECORD_BYTES).ok(),
            false => fs::read(self.private.join(name)).ok(),
        }
    }
}

/// Ends the programs of calls whose keepers lie in a record of the home.
pub(crate) fn end_held(record: &Path) {
    let calls = fs::read_dir(record.join(CALLS)).into_iter().flatten().flatten();
    for call in calls {
        once::end(&call.path().join(HELD));
    }
}

fn text(record: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(record)?;
    text.push(b'\n');
    Ok(text)
}

/// Writes so that a crash leaves the whole record or none.
pub(crate) fn write(path: &Path, record: &impl Serialize) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    let mut file = private::open(private::options().write(true).create(true).truncate(true), &temporary)?;
    file.write_all(&text(record)?)?;
    fs::rename(&temporary, path)
}
