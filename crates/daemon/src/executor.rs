//! Performs the I/O that actors ask for: effects, reads, and the look at the machine before an admission.
//!
//! Each function blocks. An effect becomes the facts that settle it. It may be performed again after a crash, and its number is the
//! idempotency key.

use std::{io, sync::Arc, time::Duration};

use abide_domain::{
    delivery::DeliveryFailure,
    effect::EffectNumber,
    event::RunEvent,
    id::{DeliveryId, RunId, TurnId},
    process::{Attempt, ExitStatus},
    settings::RunSettings,
    turn::Turn,
};
use abide_ports::{
    catalogue::InstalledEngine,
    engine::{EngineHealth, InterruptMethod, ProcessSignal, ShutdownMethod},
    processes::{
        OutputFollower, OutputOffsets, ProcessLookup, ProcessOutput, ProcessUnreachable, StdinWrite,
    },
    store::{PageRequest, Store, StoreError},
};

use crate::{
    content,
    launch::{PreparedLaunch, process_name},
    pressure::DiskShortage,
    probe::{self, ProbeRequest},
    probe_cache::ProbedProgram,
    service::DaemonDeps,
};

/// How one effect is performed, with everything that it needs.
#[derive(Debug)]
pub enum EffectOperation {
    /// Start a process, or find the one that was started before a crash.
    Launch(Box<PreparedLaunch>),
    /// Write to a process, once for each key.
    Write {
        attempt: Attempt,
        key: u64,
        bytes: Vec<u8>,
    },
    Interrupt {
        attempt: Attempt,
        method: InterruptMethod,
    },
    /// Ask a process to exit, and end it if it does not.
    Terminate {
        attempt: Attempt,
        shutdown: Option<ShutdownMethod>,
        /// The exit that is recorded instead of the real one.
        recorded_exit: Option<ExitStatus>,
    },
    Find {
        attempt: Attempt,
    },
    Deliver {
        delivery_id: DeliveryId,
    },
}

/// The result of an effect.
#[derive(Debug)]
pub enum EffectResult {
    /// The facts that settle the effect.
    Settled(Vec<RunEvent>),
    /// The keeper does not answer, so the effect stays pending and is performed again.
    Unreachable,
    /// The effect stays pending, and is performed after this pause.
    Later(Duration),
}

/// A request for the next output of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// The offsets at which the first read of a session begins. None for the later ones.
    pub from: Option<OutputOffsets>,
    /// None waits without a limit.
    pub timeout: Option<Duration>,
    /// A checkpoint to store first, and its offsets.
    pub checkpoint: Option<(Vec<u8>, OutputOffsets)>,
}

/// The state of the machine that matters for starting a run.
#[derive(Clone, Debug, Default)]
pub struct MachineSurvey {
    pub(crate) shortage: Option<DiskShortage>,
    /// The program of the run's engine, if its files can be read.
    pub(crate) program: Option<ProbedProgram>,
}

/// The process of an attempt that an earlier daemon started.
#[derive(Debug)]
pub struct LocatedProcess {
    pub(crate) lookup: ProcessLookup,
    pub(crate) checkpoint: Option<Vec<u8>>,
    /// The pending input that the process has received from an earlier daemon.
    pub(crate) received: Vec<EffectNumber>,
    /// The first turn of the process, and the ids of all its turns. None if no turn refers to the attempt.
    pub(crate) turns: Option<(Turn, Vec<TurnId>)>,
}

/// Performs I/O through the ports. Clones share the same ports.
#[derive(Clone, Debug)]
pub struct EffectExecutor(Arc<DaemonDeps>);

/// Maximum number of output pieces in one read.
const PIECES_PER_READ: usize = 64;
/// Page size of turns, in entries and in bytes.
const TURNS_PER_PAGE: usize = 500;
const TURN_BYTES_PER_PAGE: usize = 1 << 20;
/// The idempotency key for closing the input.
const CLOSE_INPUT_KEY: u64 = (1 << 63) | (1 << 40);
/// Time limit for a process to exit after its input was closed.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

impl EffectExecutor {
    pub fn new(deps: Arc<DaemonDeps>) -> Self {
        Self(deps)
    }

    /// Performs one effect of a run, and returns the facts that settle it.
    pub fn execute(&self, run: RunId, effect: EffectNumber, operation: EffectOperation) -> EffectResult {
        let processes = &*self.0.processes;
        EffectResult::Settled(vec![match operation {
            EffectOperation::Launch(launch) => return launch.start_contained(processes, &*self.0.workspaces),
            EffectOperation::Write { attempt, key, bytes } => {
                match self.write(&process_name(run, attempt), key, &bytes) {
                    Some(true) => RunEvent::EffectPerformed { effect },
                    Some(false) => RunEvent::EffectObsolete { effect },
                    None => return EffectResult::Unreachable,
                }
            }
            // A process that cannot be reached is exiting; the stop deadline covers the rest.
            EffectOperation::Interrupt { attempt, method } => {
                let process = process_name(run, attempt);
                match method {
                    InterruptMethod::Signal(signal) => drop(processes.signal(&process, signal)),
                    InterruptMethod::Write(bytes) => {
                        if self.write(&process, input_key(effect), &bytes).is_none() {
                            return EffectResult::Unreachable;
                        }
                    }
                }
                RunEvent::EffectPerformed { effect }
            }
            // The exit is recorded together with the end of the effect. The reader may report it too, and the first
            // report counts.
            EffectOperation::Terminate { attempt, shutdown, recorded_exit } => {
                match self.terminate(&process_name(run, attempt), shutdown) {
                    Ok(exit) => RunEvent::ProcessExited { attempt, exit: recorded_exit.unwrap_or(exit) },
                    // The process may still be running, so the effect stays pending until it has certainly ended
                    // (SECURITY 10).
                    Err(ProcessUnreachable { reason }) => {
                        tracing::warn!(%run, reason, "process not ended");
                        return EffectResult::Unreachable;
                    }
                }
            }
            EffectOperation::Find { attempt } => match processes.find(&process_name(run, attempt)) {
                ProcessLookup::Found(process) => RunEvent::ContactRestored { attempt, process },
                // The keeper may answer again; the domain limits the time of the search.
                ProcessLookup::Unresponsive => return EffectResult::Unreachable,
                ProcessLookup::Lost | ProcessLookup::NotStarted => RunEvent::RecoveryFailed {
                    attempt,
                    reason: "the process and its output are gone".to_owned(),
                },
            },
            // No channel exists yet.
            EffectOperation::Deliver { delivery_id } => {
                RunEvent::DeliveryFailed { delivery_id, certainty: DeliveryFailure::Failed }
            }
        }])
    }

    /// Writes to a process, once for each key, and returns whether it could be reached. None if the keeper does not
    /// answer: only it knows whether it has written the bytes.
    pub fn write(&self, process: &str, key: u64, bytes: &[u8]) -> Option<bool> {
        let processes = &*self.0.processes;
        match processes.write(process, &StdinWrite { key, bytes, close_after: false }) {
            Ok(()) => Some(true),
            Err(_) if processes.find(process) == ProcessLookup::Unresponsive => None,
            Err(_) => Some(false),
        }
    }

    /// Tells a process that has finished to exit. It may have exited meanwhile.
    pub fn dismiss(&self, process: &str) {
        self.0.processes.signal(process, ProcessSignal::Terminate).ok();
    }

    fn terminate(
        &self,
        process: &str,
        shutdown: Option<ShutdownMethod>,
    ) -> Result<ExitStatus, ProcessUnreachable> {
        let processes = &*self.0.processes;
        match shutdown {
            Some(ShutdownMethod::CloseInput) => {
                let write = StdinWrite { key: CLOSE_INPUT_KEY, bytes: &[], close_after: true };
                if processes.write(process, &write).is_ok()
                    && let Ok(mut follow) = processes.follow(process, OutputOffsets::END)
                {
                    wait_for_exit(&mut *follow);
                }
            }
            // It is terminated below in any case.
            Some(ShutdownMethod::Signal(signal)) => drop(processes.signal(process, signal)),
            None => {}
        }
        processes.terminate(process)
    }

    /// Removes an exited process and its records. A keeper that cannot be reached is cleaned up at the next start.
    pub fn clean_up(&self, process: &str) {
        self.0.processes.terminate(process).ok();
    }

    /// Stores the texts of these events that are too long for a question.
    pub fn store_contents(&self, run: RunId, events: &mut [RunEvent]) -> io::Result<()> {
        events.iter_mut().try_for_each(|event| content::fit_event(event, run, &*self.0.contents))
    }

    /// The state of the machine for a run with these settings.
    pub fn survey(&self, settings: Option<&RunSettings>) -> MachineSurvey {
        let workspace = settings.map(|settings| settings.workspace.as_str());
        let entry = settings.and_then(|settings| self.0.catalogue.engine(&settings.engine));
        MachineSurvey {
            shortage: self.0.space.shortage(workspace),
            program: entry.and_then(|entry| ProbedProgram::read(&*self.0.processes, &entry)),
        }
    }

    /// Finds the process of an attempt, its checkpoint, and which of these pending inputs it has received. `turns`
    /// is the result of [`turns_of_attempt`].
    pub fn locate(
        &self,
        run: RunId,
        attempt: Attempt,
        inputs: &[EffectNumber],
        turns: Option<(Turn, Vec<TurnId>)>,
    ) -> Box<LocatedProcess> {
        let (processes, process) = (&*self.0.processes, process_name(run, attempt));
        let keys: Vec<u64> = inputs.iter().map(|number| input_key(*number)).collect();
        let mut lookup = processes.find(&process);
        let received = if keys.is_empty() { Ok(keys) } else { processes.received_keys(&process, &keys) };
        let received = received.unwrap_or_else(|_| {
            lookup = ProcessLookup::Unresponsive;
            Vec::new()
        });
        let received = inputs.iter().copied().filter(|number| received.contains(&input_key(*number)));
        let received = received.collect();
        let checkpoint = processes.checkpoint(&process);
        Box::new(LocatedProcess { lookup, checkpoint, received, turns })
    }

    /// Runs the checks of an engine. Also returns the program that was examined, if the result may be cached.
    pub(crate) fn probe(
        &self,
        entry: &InstalledEngine,
        unique: &str,
        is_cancelled: &dyn Fn() -> bool,
    ) -> (EngineHealth, Option<ProbedProgram>) {
        // The directory does not affect the result. The launch of a turn checks the workspace.
        let request = ProbeRequest { directory: "/", unique, timeout: None, is_cancelled };
        let program = ProbedProgram::read(&*self.0.processes, entry);
        let (health, is_lasting) = probe::look(&*self.0.processes, entry, &request);
        (health, program.filter(|_| is_lasting))
    }
}

/// The idempotency key of an effect's input. The highest bit distinguishes it from positions in the output.
pub(crate) fn input_key(number: EffectNumber) -> u64 {
    (1 << 63) | u64::from(number.0)
}

fn wait_for_exit(follow: &mut dyn OutputFollower) {
    loop {
        match follow.next(Some(EXIT_TIMEOUT)) {
            Ok(ProcessOutput::Exited(_) | ProcessOutput::Gap(_) | ProcessOutput::TimedOut) | Err(_) => return,
            Ok(ProcessOutput::Stdout(_) | ProcessOutput::Stderr(_)) => {}
        }
    }
}

/// Waits for the next output, and adds the output that is available then. It does not wait for more.
pub fn read_available(
    follow: &mut dyn OutputFollower,
    request: &ReadRequest,
) -> Result<Vec<ProcessOutput>, ProcessUnreachable> {
    if let Some((checkpoint, at)) = &request.checkpoint
        && let Err(error) = follow.store_checkpoint(checkpoint, *at)
    {
        tracing::warn!(%error, "a checkpoint could not be stored");
    }
    let mut pieces = vec![follow.next(request.timeout)?];
    while pieces.len() < PIECES_PER_READ
        && let Some(ProcessOutput::Stdout(_) | ProcessOutput::Stderr(_)) = pieces.last()
    {
        match follow.next(Some(Duration::ZERO)) {
            // An error is returned again by the next read.
            Ok(ProcessOutput::TimedOut) | Err(_) => break,
            Ok(piece) => pieces.push(piece),
        }
    }
    Ok(pieces)
}

/// The first turn of an attempt's process, and the ids of all its turns.
pub async fn turns_of_attempt(
    store: &dyn Store,
    run: RunId,
    attempt: Attempt,
) -> Result<Option<(Turn, Vec<TurnId>)>, StoreError> {
    let (mut first, mut ids) = (None, Vec::new());
    let mut page = PageRequest::first(TURNS_PER_PAGE).with_max_bytes(TURN_BYTES_PER_PAGE);
    loop {
        let listed = store.turns_of(run, page.clone()).await?;
        let is_given = |turn: &Turn| turn.attempts.iter().any(|record| record.attempt == attempt);
        for turn in listed.items.into_iter().filter(is_given) {
            ids.push(turn.turn_id);
            first.get_or_insert(turn);
        }
        match listed.next_cursor {
            Some(cursor) => page = page.after_cursor(cursor),
            None => return Ok(first.map(|first| (first, ids))),
        }
    }
}
