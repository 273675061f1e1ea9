//! Fake processes: values with a scripted output, to which a test can add more.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use abide_domain::{
    process::{ExitStatus, ProcessBinding},
    time::Timestamp,
};
use abide_ports::{
    engine::{EngineInstallation, ProcessSignal},
    processes::{
        FileIdentity, OutputFollower, OutputOffsets, ProcessLookup, ProcessOutput, ProcessUnreachable,
        Processes, StartError, StartRequest, StdinWrite,
    },
};

/// The exit status of a fake process that was killed.
const KILLED_STATUS: ExitStatus = ExitStatus::Code(137);

/// The last argument of the command that checks the program's version.
pub(super) const VERSION_ARGUMENT: &str = "--version";

/// The arguments of a fake process's launch.
#[derive(Clone, Copy, Debug)]
pub struct FakeLaunch<'a> {
    /// The session to resume; empty for a new one.
    pub session: &'a str,
    pub prompt: &'a str,
}

type FakeScript = dyn Fn(FakeLaunch<'_>) -> Vec<ProcessOutput> + Send + Sync;
type WriteWatcher = dyn Fn(&str, &[u8]) + Send + Sync;

/// Starts and controls fake processes, and holds the script of their output.
pub struct FakeProcesses {
    script: Box<FakeScript>,
    /// Called once for each idempotency key with the input written to a process.
    on_write: Box<WriteWatcher>,
    /// Called before a process is ended; the end waits for its return.
    before_end: Box<dyn Fn() + Send + Sync>,
    table: Arc<(Mutex<FakeProcessTable>, Condvar)>,
}

#[derive(Debug, Default)]
struct FakeProcessTable {
    processes: BTreeMap<String, FakeProcess>,
    /// Increases when the installed program is replaced.
    program_version: u64,
    /// The number of version checks so far.
    checks: u64,
}

#[derive(Debug, Default)]
struct FakeProcess {
    output: Vec<ProcessOutput>,
    keys: BTreeSet<u64>,
}

impl FakeProcesses {
    /// Creates processes that print the result of `play` at once.
    pub fn new(play: impl Fn(FakeLaunch<'_>) -> Vec<ProcessOutput> + Send + Sync + 'static) -> Self {
        Self::with_write_observer(play, |_, _| ())
    }

    /// Like [`FakeProcesses::new`]; also calls `watch` when input is written to a process.
    pub fn with_write_observer(
        play: impl Fn(FakeLaunch<'_>) -> Vec<ProcessOutput> + Send + Sync + 'static,
        watch: impl Fn(&str, &[u8]) + Send + Sync + 'static,
    ) -> Self {
        Self {
            script: Box::new(play),
            on_write: Box::new(watch),
            before_end: Box::new(|| ()),
            table: Arc::default(),
        }
    }

    /// Sets a function that is called, and returns, before any process is ended.
    #[must_use]
    pub fn with_before_end(self, before_end: impl Fn() + Send + Sync + 'static) -> Self {
        Self { before_end: Box::new(before_end), ..self }
    }

    /// Adds output to a running process.
    pub fn push_output(&self, name: &str, more: ProcessOutput) {
        if let Some(acting) = self.lock_table().processes.get_mut(name) {
            acting.output.push(more);
        }
        self.table.1.notify_all();
    }

    /// Replaces the installed program by another version.
    pub fn replace_program(&self) {
        self.lock_table().program_version += 1;
    }

    /// Returns the number of version checks so far.
    pub fn check_count(&self) -> u64 {
        self.lock_table().checks
    }

    fn lock_table(&self) -> MutexGuard<'_, FakeProcessTable> {
        lock(&self.table.0)
    }
}

impl Processes for FakeProcesses {
    fn last_output_at(&self, _name: &str) -> Option<Timestamp> {
        None
    }

    fn start(&self, name: &str, start: &StartRequest<'_>) -> Result<ProcessBinding, StartError> {
        let argv = &start.spec.argv;
        let output = match &argv[..] {
            [.., check] if check == VERSION_ARGUMENT => {
                self.lock_table().checks += 1;
                vec![ProcessOutput::Stdout(b"1.0.0\n".to_vec()), ProcessOutput::Exited(ExitStatus::Code(0))]
            }
            [.., session, prompt] => (self.script)(FakeLaunch { session, prompt }),
            [..] => return Err(StartError::ProgramUnusable(argv.concat())),
        };
        let mut table = self.lock_table();
        table.processes.entry(name.to_owned()).or_insert(FakeProcess { output, keys: BTreeSet::new() });
        Ok(process(name))
    }

    fn find(&self, name: &str) -> ProcessLookup {
        if self.lock_table().processes.contains_key(name) {
            ProcessLookup::Found(process(name))
        } else {
            ProcessLookup::NotStarted
        }
    }

    fn follow(&self, name: &str, _: OutputOffsets) -> Result<Box<dyn OutputFollower>, ProcessUnreachable> {
        let table = self.table.clone();
        Ok(Box::new(FakeFollow { table, name: name.to_owned(), position: 0 }))
    }

    fn write(&self, name: &str, write: &StdinWrite<'_>) -> Result<(), ProcessUnreachable> {
        let first = match self.lock_table().processes.get_mut(name) {
            Some(acting) => acting.keys.insert(write.key),
            None => return Err(unreachable_error()),
        };
        if first {
            (self.on_write)(name, write.bytes);
        }
        Ok(())
    }

    fn signal(&self, name: &str, _: ProcessSignal) -> Result<(), ProcessUnreachable> {
        self.push_output(name, ProcessOutput::Exited(ExitStatus::Code(143)));
        Ok(())
    }

    fn terminate(&self, name: &str) -> Result<ExitStatus, ProcessUnreachable> {
        (self.before_end)();
        let ended = self.lock_table().processes.remove(name);
        self.table.1.notify_all();
        let exited = ended.map(|acting| match acting.output.last() {
            Some(ProcessOutput::Exited(exit)) => *exit,
            Some(_) | None => KILLED_STATUS,
        });
        Ok(exited.unwrap_or(ExitStatus::Unknown))
    }

    fn names(&self) -> Vec<String> {
        self.lock_table().processes.keys().cloned().collect()
    }

    fn program_files(&self, _: &EngineInstallation) -> Option<Vec<FileIdentity>> {
        let edition = self.lock_table().program_version;
        let path = PathBuf::from("actor");
        Some(vec![FileIdentity { path, inode: (1, edition), size: 1, modified: (0, 0) }])
    }
}

/// Follows the output of one fake process.
struct FakeFollow {
    table: Arc<(Mutex<FakeProcessTable>, Condvar)>,
    name: String,
    position: usize,
}

impl OutputFollower for FakeFollow {
    fn next(&mut self, max_wait: Option<Duration>) -> Result<ProcessOutput, ProcessUnreachable> {
        let mut table = lock(&self.table.0);
        loop {
            let acting = table.processes.get(&self.name).ok_or_else(unreachable_error)?;
            if let Some(output) = acting.output.get(self.position) {
                self.position += 1;
                return Ok(output.clone());
            }
            table = match max_wait {
                None => self.table.1.wait(table).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return Ok(ProcessOutput::TimedOut),
                Some(max_wait) => {
                    let waited = self.table.1.wait_timeout(table, max_wait);
                    let (table, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                    if timeout.timed_out() {
                        return Ok(ProcessOutput::TimedOut);
                    }
                    table
                }
            };
        }
    }
}

fn process(name: &str) -> ProcessBinding {
    ProcessBinding { keeper: name.to_owned(), pid: 4711, start_time: 1, boot_id: "stage".to_owned() }
}

fn unreachable_error() -> ProcessUnreachable {
    ProcessUnreachable { reason: "the fake process is gone".to_owned() }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for FakeProcesses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakeProcesses").field("stage", &self.table).finish_non_exhaustive()
    }
}
