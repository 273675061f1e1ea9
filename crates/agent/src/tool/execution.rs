//! The directory of one call: what was called, what it printed, how it ended.
//!
//! It is made before anything is started, so that whoever comes after a crash finds what there is to find. Not here:
//! starting anything.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Where a call's things lie.
#[derive(Debug, Clone)]
pub struct Execution {
    /// The directory.
    pub path: PathBuf,
    /// The same, relative to the state directory.
    pub reference: String,
    /// The same, as a tool of the agent can read it.
    pub shown: String,
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
const CALL: &str = "call.json";
const EXIT: &str = "exit.json";
/// The keeper's place below an execution.
const HELD: &str = "held";

impl Execution {
    /// The call of this id in a state directory, which `cwd` is where tools begin.
    pub fn new(state: &Path, cwd: &Path, action: &str) -> Self {
        let reference = format!("{EXECUTIONS}/{action}");
        let path = state.join(&reference);
        let shown = path.strip_prefix(cwd).unwrap_or(&path).to_string_lossy().into_owned();
        Self { path, reference, shown }
    }

    /// Makes the directory and says what is about to be called.
    pub fn begin(&self, call: &CallRecord) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.path)?;
        write(&self.path.join(CALL), call)
    }

    /// Says how it ended.
    pub fn end(&self, exit: &ExitRecord) -> io::Result<()> {
        write(&self.path.join(EXIT), exit)
    }

    /// What was called, if it got so far.
    pub fn call(&self) -> Option<CallRecord> {
        serde_json::from_slice(&fs::read(self.path.join(CALL)).ok()?).ok()
    }

    /// How it ended, if that was recorded.
    pub fn exit(&self) -> Option<ExitRecord> {
        serde_json::from_slice(&fs::read(self.path.join(EXIT)).ok()?).ok()
    }

    /// Where the keeper of its program lies while it runs.
    pub fn held(&self) -> PathBuf {
        self.path.join(HELD)
    }
}

/// Writes so that a crash leaves the whole record or none.
pub(crate) fn write(path: &Path, record: &impl Serialize) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    let mut text = serde_json::to_vec_pretty(record)?;
    text.push(b'\n');
    file.write_all(&text)?;
    fs::rename(&temporary, path)
}
