//! Keepers with measurement: the begin and end of each call, and the start and exit of the child process.
//!
//! Reading the clock is the only addition to the measured path. The keeper's own record is read when its process is
//! about to be removed, after its end was committed.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use abide_domain::{
    process::{ExitStatus, ProcessBinding},
    time::Timestamp,
};
use abide_host::processes::KeeperProcesses;
use abide_keeper::{client::KeeperConnection, keeper_dir::KeeperDir};
use abide_ports::{
    engine::{EngineInstallation, ProcessSignal},
    processes::{
        FileIdentity, OutputFollower, OutputOffsets, ProcessLookup, ProcessOutput, ProcessUnreachable,
        Processes, StartError, StartRequest, StdinWrite,
    },
};

use crate::figures::now;

/// The observed times of one process, in microseconds on the system's clock.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProcessTimes {
    pub(crate) start_called: i64,
    /// Before the keeper started the process, as it recorded.
    pub(crate) spawned: Option<i64>,
    /// When the process ran and had its input.
    pub(crate) start_returned: i64,
    pub(crate) reads: Vec<OutputTime>,
    /// The exit of the process, as its keeper recorded.
    pub(crate) exited: Option<i64>,
    pub(crate) end_called: i64,
}

/// The times of one read of output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutputTime {
    /// When it was requested; all output before it is committed by then.
    pub(crate) called: i64,
    /// When it was returned.
    pub(crate) returned: i64,
    pub(crate) kind: OutputTimeKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputTimeKind {
    Stdout,
    Exited,
    Other,
}

/// The timeout of a keeper's response.
const STATUS_TIMEOUT_MS: u64 = 10_000;

type ProcessLog = Arc<Mutex<BTreeMap<String, ProcessTimes>>>;

/// Delegates to real keepers and records the times of the calls.
#[derive(Debug)]
pub(crate) struct TimedProcesses {
    pub(crate) keepers: KeeperProcesses,
    log: ProcessLog,
}

impl TimedProcesses {
    pub(crate) fn new(keepers: KeeperProcesses) -> Self {
        Self { keepers, log: ProcessLog::default() }
    }

    /// Returns the times of the process of that name, and removes them.
    pub(crate) fn take_times(&self, name: &str) -> Option<ProcessTimes> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).remove(name)
    }

    fn record(&self, name: &str, note: impl FnOnce(&mut ProcessTimes)) {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        note(log.entry(name.to_owned()).or_default());
    }
}

impl Processes for TimedProcesses {
    fn start(&self, name: &str, start: &StartRequest<'_>) -> Result<ProcessBinding, StartError> {
        let called = now();
        let started = self.keepers.start(name, start);
        let returned = now();
        self.record(name, |seen| (seen.start_called, seen.start_returned) = (called, returned));
        started
    }

    fn find(&self, name: &str) -> ProcessLookup {
        self.keepers.find(name)
    }

    fn last_output_at(&self, name: &str) -> Option<Timestamp> {
        self.keepers.last_output_at(name)
    }

    fn follow(&self, name: &str, from: OutputOffsets) -> Result<Box<dyn OutputFollower>, ProcessUnreachable> {
        let inner = self.keepers.follow(name, from)?;
        Ok(Box::new(TimedFollow { inner, name: name.to_owned(), log: self.log.clone() }))
    }

    fn write(&self, name: &str, write: &StdinWrite<'_>) -> Result<(), ProcessUnreachable> {
        self.keepers.write(name, write)
    }

    fn signal(&self, name: &str, signal: ProcessSignal) -> Result<(), ProcessUnreachable> {
        self.keepers.signal(name, signal)
    }

    fn terminate(&self, name: &str) -> Result<ExitStatus, ProcessUnreachable> {
        let called = now();
        let status = KeeperConnection::attach(KeeperDir::new(&self.keepers.directory.join("runs"), name))
            .and_then(|mut keeper| keeper.status(STATUS_TIMEOUT_MS))
            .ok();
        let micros = |at: u64| i64::try_from(at).ok();
        let spawned = status.as_ref().and_then(|status| micros(status.created_at));
        let exited = status.and_then(|status| micros(status.exit?.at));
        self.record(name, |seen| {
            if seen.end_called == 0 {
                (seen.end_called, seen.spawned, seen.exited) = (called, spawned, exited);
            }
        });
        self.keepers.terminate(name)
    }

    fn names(&self) -> Vec<String> {
        self.keepers.names()
    }

    fn program_files(&self, command: &EngineInstallation) -> Option<Vec<FileIdentity>> {
        self.keepers.program_files(command)
    }
}

struct TimedFollow {
    inner: Box<dyn OutputFollower>,
    name: String,
    log: ProcessLog,
}

impl OutputFollower for TimedFollow {
    fn next(&mut self, timeout: Option<Duration>) -> Result<ProcessOutput, ProcessUnreachable> {
        let called = now();
        let output = self.inner.next(timeout);
        let returned = now();
        let kind = match &output {
            Ok(ProcessOutput::Stdout(_)) => OutputTimeKind::Stdout,
            Ok(ProcessOutput::Exited(_)) => OutputTimeKind::Exited,
            Ok(ProcessOutput::Stderr(_) | ProcessOutput::Gap(_) | ProcessOutput::TimedOut) | Err(_) => {
                OutputTimeKind::Other
            }
        };
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = log.entry(self.name.clone()).or_default();
        seen.reads.push(OutputTime { called, returned, kind });
        output
    }
}
