//! The contract of held processes: started under a name, found again by it, read from any byte, written to once per key.
//!
//! A process belongs to nobody who may die: whoever comes next finds it under the same name. Every call may be made
//! again after a crash without harm. What the process means is not known here.

use std::{path::PathBuf, time::Duration};

use abide_domain::{
    process::{ExitStatus, ProcessBinding},
    time::Timestamp,
};

use crate::engine::{EngineInstallation, IsolationMode, ProcessSignal, ProcessSpec};

/// Those who hold processes. Calls block for as long as the system takes.
pub trait Processes: Send + Sync {
    /// Starts a process under this name, or finds the one that was started under it before.
    fn start(&self, name: &str, start: &ProcessStart<'_>) -> Result<ProcessBinding, StartError>;

    /// What people must know about a process that is started like this, such as an isolation that this machine does not
    /// offer.
    fn warning(&self, _start: &ProcessStart<'_>) -> Option<String> {
        None
    }

    /// What became of the process of that name.
    fn find(&self, name: &str) -> ProcessLookup;

    /// When it last printed anything, or was started if it has not; none if nobody knows.
    fn last_heard(&self, name: &str) -> Option<Timestamp>;

    /// Reads what it printed from these offsets on, and then what it prints. A process whose keeper died after it had
    /// recorded the end is read from the keeper's files.
    fn follow(&self, name: &str, from: OutputOffsets) -> Result<Box<dyn OutputFollower>, ProcessUnreachable>;

    /// How many bytes of a process's output are kept for a reader before the process has to wait for it.
    fn kept_bytes(&self) -> u64 {
        u64::MAX
    }

    /// The checkpoint that a reader of this process stored last ([`OutputFollower::store_checkpoint`]).
    fn checkpoint(&self, _name: &str) -> Option<Vec<u8>> {
        None
    }

    /// Writes to its standard input, once for each key, in the order of calls. What it does not read yet is kept for it.
    fn write(&self, name: &str, write: &StdinWrite<'_>) -> Result<(), ProcessUnreachable>;

    /// Sends a signal to its process group.
    fn signal(&self, name: &str, signal: ProcessSignal) -> Result<(), ProcessUnreachable>;

    /// Ends it and everything that it started, first politely, and forgets it. A process that is not there is ended.
    /// Returns how it ended: [`ExitStatus::Unseen`] if nothing of it was found.
    fn end(&self, name: &str) -> Result<ExitStatus, ProcessUnreachable>;

    /// The names of all that are held, dead or alive.
    fn names(&self) -> Vec<String>;

    /// The files that a command would run as they are now: its program as it would be found, and every file that its
    /// arguments name. Cheap, for it is asked before every run. None where that cannot be told.
    fn files_of(&self, _command: &EngineInstallation) -> Option<Vec<FileIdentity>> {
        None
    }
}

/// A file as it was seen. One that was written to or replaced since is another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    /// Where it is found.
    pub path: PathBuf,
    /// Which file that is, on which device.
    pub inode: (u64, u64),
    /// How long it is.
    pub size: u64,
    /// When it was last written, in seconds and nanoseconds.
    pub modified: (i64, i64),
}

/// A process to be started.
#[derive(Clone, Copy, Debug)]
pub struct ProcessStart<'a> {
    /// What the engine wants.
    pub launch: &'a ProcessSpec,
    /// The directory to start in.
    pub workspace: &'a str,
    /// The directory for [`ProcessSpec::files`].
    pub private: &'a str,
    /// Which variables of the environment it gets besides those that every process gets ([`EngineInstallation::pass_env`]).
    pub pass_env: &'a [String],
    /// How it is isolated from Abide's own files.
    pub isolation: IsolationMode,
}

/// Bytes for a standard input.
#[derive(Clone, Copy, Debug)]
pub struct StdinWrite<'a> {
    /// A second write with the same key is none.
    pub key: u64,
    /// The bytes.
    pub bytes: &'a [u8],
    /// Nothing more will come.
    pub ends: bool,
}

/// A place in a process's output: how many bytes of standard output and of standard error come before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputOffsets {
    /// Bytes of standard output.
    pub stdout: u64,
    /// Bytes of standard error.
    pub stderr: u64,
}

impl OutputOffsets {
    /// The first byte of both.
    pub const START: Self = Self { stdout: 0, stderr: 0 };
    /// Behind everything: only the end of the process is waited for.
    pub const END: Self = Self { stdout: u64::MAX, stderr: u64::MAX };
}

/// A reader of one process.
pub trait OutputFollower: Send {
    /// What comes next, waiting for it at most so long.
    fn next(&mut self, patience: Option<Duration>) -> Result<ProcessOutput, ProcessUnreachable>;

    /// Stores what the next reader needs in order to begin at `before`, durably and in place of the last one. After that
    /// the output before it may be dropped.
    fn store_checkpoint(
        &mut self,
        _checkpoint: &[u8],
        _before: OutputOffsets,
    ) -> Result<(), ProcessUnreachable> {
        Ok(())
    }
}

/// What was heard of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessOutput {
    /// Further bytes of its standard output.
    Stdout(Vec<u8>),
    /// Further bytes of its standard error.
    Stderr(Vec<u8>),
    /// It is over, and everything that it printed has been heard.
    Exited(ExitStatus),
    /// Output is missing here, for this reason. Nothing that follows can be understood.
    Missing(String),
    /// Nothing, in all that time.
    Nothing,
}

/// What became of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessLookup {
    /// It is held, dead or alive, and can be followed.
    Held(ProcessBinding),
    /// It may be held, but its keeper does not answer at the moment.
    Silent,
    /// It was there, but its keeper is gone and has not recorded how it ended. What it printed can be followed.
    Gone,
    /// Nothing was ever started under this name, or it was ended and forgotten.
    Never,
}

/// Why a process could not be started. It certainly did not run, except where said.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The program is not there or cannot be executed.
    #[error("cannot start {0}")]
    Program(String),
    /// The directory cannot be used.
    #[error("cannot use the directory {0}")]
    Directory(String),
    /// It cannot be isolated as it should be.
    #[error("{0}")]
    Isolation(String),
    /// It was started before, and who held it is gone: it may have run.
    #[error("the process was started before and is gone")]
    Gone,
    /// It may have been started before, and its keeper does not answer at the moment.
    #[error("the keeper of the process does not answer")]
    Silent,
    /// The system would not; it may another time.
    #[error("{0}")]
    System(String),
}

/// The process cannot be reached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the process cannot be reached: {reason}")]
pub struct ProcessUnreachable {
    /// Why.
    pub reason: String,
}
