//! The directory of one call: what was called, what it printed, how it ended.
//!
//! It is made before anything is started, so that whoever comes after a crash finds what there is to find. The directory
//! in the state folder is for people and for the model. What recovery goes by, the record of the call and its keeper, lies
//! in the home, where tools have no business. Not here: starting anything.

use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::workbench::{FormerSessions, Setup};
use crate::private;

/// Where a call's things lie.
#[derive(Debug, Clone)]
pub struct Execution {
    /// The directory.
    pub path: PathBuf,
    /// The same, relative to the state directory.
    pub reference: String,
    /// The same, as a tool of the agent can read it.
    pub shown: String,
    /// The call's directory in the home.
    private: PathBuf,
    /// The directory of that one and of calls before it.
    calls: PathBuf,
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
const CALL: &str = "call.json";
const EXIT: &str = "exit.json";
/// The keeper's place below an execution.
const HELD: &str = "held";

impl Execution {
    /// The call of this id.
    pub(crate) fn new(setup: &Setup, action: &str) -> Self {
        let reference = format!("{EXECUTIONS}/{action}");
        let path = setup.state.join(&reference);
        let shown = path.strip_prefix(&setup.cwd).unwrap_or(&path).to_string_lossy().into_owned();
        let calls = setup.record.join(CALLS);
        let own = calls.join(action);
        let private = match setup.former_sessions {
            // An earlier version had everything in one directory.
            FormerSessions::Served if !own.exists() && path.join(CALL).exists() => path.clone(),
            FormerSessions::Served | FormerSessions::None => own,
        };
        Self { path, reference, shown, private, calls }
    }

    /// Makes the directory and says what is about to be called.
    pub fn begin(&self, call: &CallRecord) -> io::Result<()> {
        self.forget_old_calls();
        let is_link = |folder: &&Path| fs::symlink_metadata(folder).is_ok_and(|found| found.is_symlink());
        if let Some(link) = self.path.ancestors().take(2).find(is_link) {
            return Err(io::Error::other(format!("{} is a link", link.display())));
        }
        for folder in [&self.private, &self.path] {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        write(&self.private.join(CALL), call)?;
        write(&self.path.join(CALL), call)
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
            fs::remove_dir_all(call).ok();
        }
    }

    /// Says how it ended.
    pub fn end(&self, exit: &ExitRecord) -> io::Result<()> {
        write(&self.private.join(EXIT), exit)?;
        write(&self.path.join(EXIT), exit)
    }

    /// What was called, if it got so far.
    pub fn call(&self) -> Option<CallRecord> {
        serde_json::from_slice(&fs::read(self.private.join(CALL)).ok()?).ok()
    }

    /// How it ended, if that was recorded.
    pub fn exit(&self) -> Option<ExitRecord> {
        serde_json::from_slice(&fs::read(self.private.join(EXIT)).ok()?).ok()
    }

    /// Where the keeper of its program lies while it runs.
    pub fn held(&self) -> PathBuf {
        self.private.join(HELD)
    }
}

/// Writes so that a crash leaves the whole record or none.
pub(crate) fn write(path: &Path, record: &impl Serialize) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    let mut file = private::open(private::options().write(true).create(true).truncate(true), &temporary)?;
    let mut text = serde_json::to_vec_pretty(record)?;
    text.push(b'\n');
    file.write_all(&text)?;
    fs::rename(&temporary, path)
}
