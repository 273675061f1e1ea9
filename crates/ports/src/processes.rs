//! The contract of supervised processes: started under a name, found again by it, read from any offset, written to once
//! per key.
//!
//! A process is independent of the lifetime of the daemon. The next daemon finds it under the same name. Every call is
//! idempotent and may be repeated after a crash. The meaning of the output is not known here.

use std::{path::PathBuf, time::Duration};

use abide_domain::{
    process::{ExitStatus, ProcessBinding},
    time::Timestamp,
};

use crate::engine::{EngineInstallation, IsolationMode, ProcessSignal, ProcessSpec};

/// Starts and controls processes that outlive the daemon. Calls block.
pub trait Processes: Send + Sync {
    /// Starts a process under this name, or returns the one that was started under it before.
    fn start(&self, name: &str, start: &StartRequest<'_>) -> Result<ProcessBinding, StartError>;

    /// A warning for people about such a start, for example that this machine does not support the isolation.
    fn warning(&self, _start: &StartRequest<'_>) -> Option<String> {
        None
    }

    /// The state of the process with this name.
    fn find(&self, name: &str) -> ProcessLookup;

    /// The time of its last output, or of its start if there was no output. None if it is unknown.
    fn last_output_at(&self, name: &str) -> Option<Timestamp>;

    /// Reads the output from these offsets on, and then waits for further output. If the keeper died after it had
    /// recorded the exit, the output is read from its files.
    fn follow(&self, name: &str, from: OutputOffsets) -> Result<Box<dyn OutputFollower>, ProcessUnreachable>;

    /// The number of output bytes that are buffered for a reader before the process is blocked.
    fn output_buffer_bytes(&self) -> u64 {
        u64::MAX
    }

    /// The checkpoint that a reader of this process stored last ([`OutputFollower::store_checkpoint`]).
    fn checkpoint(&self, _name: &str) -> Option<Vec<u8>> {
        None
    }

    /// Writes to its standard input, once per key, in the order of calls. Input that the process does not read yet is
    /// buffered.
    fn write(&self, name: &str, write: &StdinWrite<'_>) -> Result<(), ProcessUnreachable>;

    /// Which of these keys of [`Self::write`] were accepted. None if the keeper died without a record.
    fn received_keys(&self, _name: &str, _keys: &[u64]) -> Result<Vec<u64>, ProcessUnreachable> {
        Ok(Vec::new())
    }

    /// Sends a signal to its process group.
    fn signal(&self, name: &str, signal: ProcessSignal) -> Result<(), ProcessUnreachable>;

    /// Ends the process and all its descendants, first with SIGTERM, and removes its records. Succeeds if the process
    /// does not exist. Returns the exit status, or [`ExitStatus::Unknown`] if no trace of the process was found.
    fn terminate(&self, name: &str) -> Result<ExitStatus, ProcessUnreachable>;

    /// The names of all recorded processes, running or exited.
    fn names(&self) -> Vec<String>;

    /// The identities of the files that a command would run: the program that would be found, and every file named by
    /// its arguments. It must be cheap, because it is called before every run. None if the files cannot be determined.
    fn program_files(&self, _command: &EngineInstallation) -> Option<Vec<FileIdentity>> {
        None
    }
}

/// The identity of a file. It changes when the file is written or replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    pub path: PathBuf,
    /// Device and inode number.
    pub inode: (u64, u64),
    pub size: u64,
    /// Modification time in seconds and nanoseconds.
    pub modified: (i64, i64),
}

/// The request to start a process: the specification of the adapter, and its surroundings, which the daemon chooses.
#[derive(Clone, Copy, Debug)]
pub struct StartRequest<'a> {
    pub spec: &'a ProcessSpec,
    /// The working directory.
    pub workspace: &'a str,
    /// The directory for [`ProcessSpec::files`].
    pub private_dir: &'a str,
    /// Variables that are inherited besides those that every process inherits ([`EngineInstallation::pass_env`]).
    pub pass_env: &'a [String],
    /// The isolation from Abide's own files.
    pub isolation: IsolationMode,
}

/// Bytes for a standard input.
#[derive(Clone, Copy, Debug)]
pub struct StdinWrite<'a> {
    /// The idempotency key. A second write with the same key is ignored.
    pub key: u64,
    pub bytes: &'a [u8],
    /// Whether standard input is closed after these bytes.
    pub close_after: bool,
}

/// A position in a process's output: the numbers of preceding bytes on standard output and standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputOffsets {
    pub stdout: u64,
    pub stderr: u64,
}

impl OutputOffsets {
    /// The beginning of both streams.
    pub const START: Self = Self { stdout: 0, stderr: 0 };
    /// After all output. Only the exit of the process is waited for.
    pub const END: Self = Self { stdout: u64::MAX, stderr: u64::MAX };
}

/// Reads the output of one process.
pub trait OutputFollower: Send {
    /// Returns the next output, or [`ProcessOutput::TimedOut`] after `timeout`. Without a timeout it waits for output.
    fn next(&mut self, timeout: Option<Duration>) -> Result<ProcessOutput, ProcessUnreachable>;

    /// Durably replaces the stored checkpoint with the state that the next reader needs in order to begin at `before`.
    /// The output before that position may then be dropped.
    fn store_checkpoint(
        &mut self,
        _checkpoint: &[u8],
        _offsets: OutputOffsets,
    ) -> Result<(), ProcessUnreachable> {
        Ok(())
    }
}

/// The result of one read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessOutput {
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    /// The process has exited and all of its output has been read.
    Exited(ExitStatus),
    /// Output is missing here, for this reason. The following output cannot be interpreted.
    Gap(String),
    /// There was no output before the timeout.
    TimedOut,
}

/// The state of a process that is looked up by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessLookup {
    /// It is recorded, running or exited, and can be followed.
    Found(ProcessBinding),
    /// It may be running, but its keeper does not answer at the moment.
    Unresponsive,
    /// It existed, but its keeper is gone and did not record an exit status. Its output can be followed.
    Lost,
    /// No process was started under this name, or it was ended and its records were removed.
    NotStarted,
}

/// The reason why a process could not be started. Unless stated otherwise, it did not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The program does not exist or cannot be executed.
    #[error("cannot start {0}")]
    ProgramUnusable(String),
    /// The working directory cannot be used.
    #[error("cannot use the directory {0}")]
    DirectoryUnusable(String),
    /// The required isolation is not available.
    #[error("{0}")]
    IsolationUnavailable(String),
    /// It was started before and its keeper is gone. It may have run.
    #[error("the process was started before and is gone")]
    Lost,
    /// It may have been started before. Its keeper does not answer at the moment.
    #[error("the keeper of the process does not answer")]
    Unresponsive,
    /// The operating system refused; a later try may succeed.
    #[error("{0}")]
    SystemError(String),
}

/// The process cannot be reached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the process cannot be reached: {reason}")]
pub struct ProcessUnreachable {
    pub reason: String,
}
