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
        FileIdentity, OutputFollower, OutputOffsets, ProcessLookup, ProcessOutput, ProcessStart,
        ProcessUnreachable, Processes, StartError, StdinWrite,
    },
};

/// The exit status of a fake process that was killed.
const KILLED: ExitStatus = ExitStatus::Code(137);

/// The last argument of the command that checks the program's version.
pub(super) const CHECK: &str = "--version";

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
    play: Box<FakeScript>,
    /// Called once for each idempotency key with the input written to a process.
    watch: Box<WriteWatcher>,
    /// Called before a process is ended; the end waits for its return.
    before_end: Box<dyn Fn() + Send + Sync>,
    stage: Arc<(Mutex<FakeProcessTable>, Condvar)>,
}

#[derive(Debug, Default)]
struct FakeProcessTable {
    actors: BTreeMap<String, FakeProcess>,
    /// Increases when the installed program is replaced.
    edition: u64,
    /// The number of version checks so far.
    checks: u64,
}

#[derive(Debug, Default)]
struct FakeProcess {
    said: Vec<ProcessOutput>,
    keys: BTreeSet<u64>,
}

impl FakeProcesses {
    /// Creates processes that print the result of `play` at once.
    pub fn new(play: impl Fn(FakeLaunch<'_>) -> Vec<ProcessOutput> + Send + Sync + 'static) -> Self {
        Self::watched(play, |_, _| ())
    }

    /// Like [`FakeProcesses::new`]; also calls `watch` when input is written to a process.
    pub fn watched(
        play: impl Fn(FakeLaunch<'_>) -> Vec<ProcessOutput> + Send + Sync + 'static,
        watch: impl Fn(&str, &[u8]) + Send + Sync + 'static,
    ) -> Self {
        Self {
            play: Box::new(play),
            watch: Box::new(watch),
            before_end: Box::new(|| ()),
            stage: Arc::default(),
        }
    }

    /// Sets a function that is called, and returns, before any process is ended.
    #[must_use]
    pub fn ending_after(self, before_end: impl Fn() + Send + Sync + 'static) -> Self {
        Self { before_end: Box::new(before_end), ..self }
    }

    /// Adds output to a running process.
    pub fn says(&self, name: &str, more: ProcessOutput) {
        if let Some(acting) = self.stage().actors.get_mut(name) {
            acting.said.push(more);
        }
        self.stage.1.notify_all();
    }

    /// Replaces the installed program by another version.
    pub fn replace_program(&self) {
        self.stage().edition += 1;
    }

    /// Returns the number of version checks so far.
    pub fn examined(&self) -> u64 {
        self.stage().checks
    }

    fn stage(&self) -> MutexGuard<'_, FakeProcessTable> {
        lock(&self.stage.0)
    }
}

impl Processes for FakeProcesses {
    fn last_heard(&self, _name: &str) -> Option<Timestamp> {
        None
    }

    fn start(&self, name: &str, start: &ProcessStart<'_>) -> Result<ProcessBinding, StartError> {
        let argv = &start.launch.argv;
        let said = match &argv[..] {
            [.., check] if check == CHECK => {
                self.stage().checks += 1;
                vec![ProcessOutput::Stdout(b"1.0.0\n".to_vec()), ProcessOutput::Exited(ExitStatus::Code(0))]
            }
            [.., session, prompt] => (self.play)(FakeLaunch { session, prompt }),
            [..] => return Err(StartError::Program(argv.concat())),
        };
        let mut stage = self.stage();
        stage.actors.entry(name.to_owned()).or_insert(FakeProcess { said, keys: BTreeSet::new() });
        Ok(process(name))
    }

    fn find(&self, name: &str) -> ProcessLookup {
        if self.stage().actors.contains_key(name) {
            ProcessLookup::Held(process(name))
        } else {
            ProcessLookup::Never
        }
    }

    fn follow(&self, name: &str, _: OutputOffsets) -> Result<Box<dyn OutputFollower>, ProcessUnreachable> {
        let stage = self.stage.clone();
        Ok(Box::new(FakeFollow { stage, name: name.to_owned(), heard: 0 }))
    }

    fn write(&self, name: &str, write: &StdinWrite<'_>) -> Result<(), ProcessUnreachable> {
        let first = match self.stage().actors.get_mut(name) {
            Some(acting) => acting.keys.insert(write.key),
            None => return Err(gone()),
        };
        if first {
            (self.watch)(name, write.bytes);
        }
        Ok(())
    }

    fn signal(&self, name: &str, _: ProcessSignal) -> Result<(), ProcessUnreachable> {
        self.says(name, ProcessOutput::Exited(ExitStatus::Code(143)));
        Ok(())
    }

    fn end(&self, name: &str) -> Result<ExitStatus, ProcessUnreachable> {
        (self.before_end)();
        let ended = self.stage().actors.remove(name);
        self.stage.1.notify_all();
        let exited = ended.map(|acting| match acting.said.last() {
            Some(ProcessOutput::Exited(exit)) => *exit,
            Some(_) | None => KILLED,
        });
        Ok(exited.unwrap_or(ExitStatus::Unseen))
    }

    fn names(&self) -> Vec<String> {
        self.stage().actors.keys().cloned().collect()
    }

    fn files_of(&self, _: &EngineInstallation) -> Option<Vec<FileIdentity>> {
        let edition = self.stage().edition;
        let path = PathBuf::from("actor");
        Some(vec![FileIdentity { path, inode: (1, edition), size: 1, modified: (0, 0) }])
    }
}

/// Follows the output of one fake process.
struct FakeFollow {
    stage: Arc<(Mutex<FakeProcessTable>, Condvar)>,
    name: String,
    heard: usize,
}

impl OutputFollower for FakeFollow {
    fn next(&mut self, patience: Option<Duration>) -> Result<ProcessOutput, ProcessUnreachable> {
        let mut stage = lock(&self.stage.0);
        loop {
            let acting = stage.actors.get(&self.name).ok_or_else(gone)?;
            if let Some(said) = acting.said.get(self.heard) {
                self.heard += 1;
                return Ok(said.clone());
            }
            stage = match patience {
                None => self.stage.1.wait(stage).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return Ok(ProcessOutput::Nothing),
                Some(patience) => {
                    let waited = self.stage.1.wait_timeout(stage, patience);
                    let (stage, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                    if timeout.timed_out() {
                        return Ok(ProcessOutput::Nothing);
                    }
                    stage
                }
            };
        }
    }
}

fn process(name: &str) -> ProcessBinding {
    ProcessBinding { keeper: name.to_owned(), pid: 4711, start_time: 1, boot_id: "stage".to_owned() }
}

fn gone() -> ProcessUnreachable {
    ProcessUnreachable { reason: "the actor is gone".to_owned() }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for FakeProcesses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakeProcesses").field("stage", &self.stage).finish_non_exhaustive()
    }
}
