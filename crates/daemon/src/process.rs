//! Translates the output of one process into events of its run, and effects into bytes for the process.
//!
//! Pure: the output is read by the event loop, and the actor of the run commits and writes. A new session that reads all
//! output from the first byte, or from a checkpoint on, produces the same events.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use abide_domain::{
    approval::ApprovalVerdict,
    engine::EngineSessionHandle,
    event::{ProcessAfterTurn, RunEvent},
    id::TurnId,
    process::{Attempt, ExitStatus, OutputPosition},
    time::Seconds,
};
use abide_ports::{
    engine::{
        EngineFact, EngineSessionStatus, ExitCause, FactKind, GateAnswer, InterruptMethod,
        MAX_CHECKPOINT_BYTES, ProcessExit, ProcessInterpreter, ReaderCheckpoint, ShutdownMethod,
        UnsupportedOperation,
    },
    processes::{OutputOffsets, ProcessOutput, ProcessUnreachable},
};
use serde::{Deserialize, Serialize};

use crate::budget::{JournalBudget, bounded};

/// The session with one attempt's process. Order of calls: [`Self::reattach`] at most once, then [`Self::on_read`] for
/// each read, and in between the methods that encode input.
#[derive(Debug)]
pub(crate) struct ProcessSession {
    engine: String,
    attempt: Attempt,
    /// The turns of the process, in order.
    turns: Vec<TurnId>,
    pub(crate) interpreter: Box<dyn ProcessInterpreter>,
    /// The last bytes of standard error.
    stderr: Vec<u8>,
    cause: ExitCause,
    /// True while output from a time without a daemon is still being read, in which the turn may have ended.
    pub(crate) is_behind: bool,
    /// True from the last output of a one-shot turn until the process was told to exit.
    expects_exit: bool,
    /// The position up to which the output has been interpreted. After a restart the session replays output; until it
    /// reaches the run's position, its interpreter knows no gate, session or turn, and must not encode input.
    pub(crate) interpreted: OutputPosition,
    /// Number of bytes read from each stream.
    pub(crate) fed: OutputOffsets,
    /// The offsets of the stored checkpoint, and those at which the last one was tried.
    stored: OutputOffsets,
    tried: OutputOffsets,
    /// Why a stored checkpoint could not be used.
    refused_checkpoint: Option<String>,
    /// Limits the number of journal entries.
    budget: JournalBudget,
    /// False while the process is being started.
    pub(crate) is_started: bool,
    /// Whether a read was requested before.
    pub(crate) is_followed: bool,
    pub(crate) is_reading: bool,
    /// Input that its protocol requires, with the idempotency keys. Written in order, after the output that requires it
    /// is committed.
    pub(crate) writes: VecDeque<(u64, Vec<u8>)>,
    pub(crate) is_writing: bool,
    /// Why there is no further output.
    pub(crate) end: Option<SessionEnd>,
    pub(crate) is_cleaning: bool,
}

/// The result of interpreting a read.
#[derive(Debug, Default)]
pub(crate) struct SessionOutput {
    /// To be committed.
    pub(crate) events: Vec<RunEvent>,
    /// Input for the process that its protocol requires, with the idempotency keys. Written after the commit.
    pub(crate) writes: Vec<(u64, Vec<u8>)>,
    /// The process has finished its output and did not exit.
    pub(crate) is_lingering: bool,
}

/// Why a session has no further output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionEnd {
    /// The process has exited, and all of its output was read.
    Exited,
    /// The process cannot be reached, or a part of its output is lost.
    Lost,
}

/// Time limit for a process to exit after its last output. Some wait for their children or for telemetry.
const LINGER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time without output after which a reattached process counts as caught up.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(1);
/// Number of output bytes between two checkpoints. Fewer bytes are quickly read again.
const CHECKPOINT_INTERVAL_BYTES: u64 = 16 << 20;

/// The reason if the interpreter of a process panicked.
const BROKEN_READER: &str =
    "the reader of this engine failed on its output, which is a bug of Abide; see the log";

/// Runs code of an adapter. None if it panicked; the failure then concerns only one run.
pub(crate) fn contained<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}

/// Number of bytes between two offsets.
fn bytes_between(from: OutputOffsets, to: OutputOffsets) -> u64 {
    to.stdout.saturating_sub(from.stdout) + to.stderr.saturating_sub(from.stderr)
}

/// The stored state of a session, so that earlier output need not be kept (decision 0016). The aliases are the names in
/// checkpoints of processes that a daemon of the first stored format started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SessionCheckpoint {
    /// The adapter and the version of its state.
    version: String,
    /// The next offset in standard output.
    stdout: u64,
    /// The next offset in standard error.
    stderr: u64,
    /// The state of the interpreter. None if it was too large and the output had to be released anyway.
    state: Option<String>,
    /// The last bytes of standard error.
    #[serde(alias = "complaints")]
    stderr_tail: String,
    /// The position up to which the output was interpreted.
    #[serde(alias = "said")]
    interpreted_position: u64,
    /// The position of the last committed fact.
    committed: u64,
    /// The used parts of the budgets.
    #[serde(default)]
    budget: JournalBudget,
}

impl SessionCheckpoint {
    /// A checkpoint for output that was released although no reader can continue from it.
    fn impossible(at: OutputOffsets) -> Self {
        Self {
            version: String::new(),
            stdout: at.stdout,
            stderr: at.stderr,
            state: None,
            stderr_tail: String::new(),
            interpreted_position: 0,
            committed: 0,
            budget: JournalBudget::default(),
        }
    }

    /// Encodes the checkpoint for storage.
    fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Decodes a stored checkpoint; None if it is invalid.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

/// Maximum length of a session or request id in the journal.
const MAX_NAME_BYTES: usize = 4 << 10;

/// Number of bytes kept of standard error.
const STDERR_TAIL_BYTES: usize = 16 << 10;

impl ProcessSession {
    pub(crate) fn new(
        engine: &str,
        attempt: Attempt,
        turns: Vec<TurnId>,
        interpreter: Box<dyn ProcessInterpreter>,
    ) -> Self {
        Self {
            engine: engine.to_owned(),
            attempt,
            turns,
            interpreter,
            stderr: Vec::new(),
            cause: ExitCause::Voluntary,
            is_behind: false,
            expects_exit: false,
            interpreted: OutputPosition::default(),
            fed: OutputOffsets::START,
            stored: OutputOffsets::START,
            tried: OutputOffsets::START,
            refused_checkpoint: None,
            budget: JournalBudget::default(),
            is_started: false,
            is_followed: false,
            is_reading: false,
            writes: VecDeque::new(),
            is_writing: false,
            end: None,
            is_cleaning: false,
        }
    }

    /// Prepares to read a process that an earlier daemon started: from the stored checkpoint, or from the first byte
    /// if it cannot be used. `committed` is the position of the last committed fact.
    pub(crate) fn reattach(&mut self, checkpoint: Option<&[u8]>, committed: OutputPosition) {
        (self.is_started, self.is_behind) = (true, true);
        let Some(stored) = checkpoint else { return };
        let restored = match SessionCheckpoint::from_bytes(stored) {
            None => Err("the reader's checkpoint is damaged".to_owned()),
            Some(checkpoint) => contained(|| self.restore(&checkpoint, committed))
                .unwrap_or_else(|| Err(BROKEN_READER.to_owned())),
        };
        if let Err(reason) = restored {
            tracing::warn!(attempt = self.attempt.0, reason, "a checkpoint is not used");
            self.refused_checkpoint = Some(reason);
        }
    }

    /// Interprets a read. A loss of contact becomes events, because facts are never dropped. An interpreter that panics
    /// would do so again at the same byte, so the output counts as unreadable.
    pub(crate) fn on_read(
        &mut self,
        read: Result<Vec<ProcessOutput>, ProcessUnreachable>,
        recovery_max: Seconds,
    ) -> SessionOutput {
        self.is_reading = false;
        let mut output = SessionOutput::default();
        let missing = match read {
            Ok(pieces) => match self.interpret(pieces, &mut output) {
                Ok(()) => return output,
                Err(missing) => Some(missing),
            },
            Err(lost) => {
                tracing::warn!(attempt = self.attempt.0, reason = lost.reason, "contact lost");
                None
            }
        };
        let (attempt, search_timeout_sec) = (self.attempt, Some(recovery_max));
        output.events.push(RunEvent::ContactLost { attempt, search_timeout_sec });
        // Reattaching would find the same gap in the output.
        if let Some(missing) = missing {
            tracing::warn!(attempt = self.attempt.0, reason = missing, "output lost");
            let reason = match &self.refused_checkpoint {
                Some(refused) => {
                    format!("{missing}, and its reader cannot continue from a checkpoint: {refused}")
                }
                None => missing,
            };
            output.events.push(RunEvent::RecoveryFailed { attempt, reason });
        }
        self.end = Some(SessionEnd::Lost);
        output
    }

    /// Interprets pieces of output, and returns the reason if a part of it is missing.
    fn interpret(&mut self, pieces: Vec<ProcessOutput>, output: &mut SessionOutput) -> Result<(), String> {
        for piece in pieces {
            let interpreted = match piece {
                ProcessOutput::Stdout(bytes) => contained(|| self.on_stdout(&bytes, output)),
                ProcessOutput::Exited(exit) => {
                    self.end = Some(SessionEnd::Exited);
                    contained(|| self.on_exit(exit, output))
                }
                ProcessOutput::Stderr(bytes) => contained(|| self.on_stderr(&bytes)),
                ProcessOutput::Gap(reason) => return Err(reason),
                ProcessOutput::TimedOut => contained(|| self.on_timeout(output)),
            };
            interpreted.ok_or_else(|| BROKEN_READER.to_owned())?;
        }
        Ok(())
    }

    /// Time limit of the next read.
    pub(crate) fn read_timeout(&self) -> Option<Duration> {
        match (self.is_behind, self.expects_exit) {
            (true, _) => Some(CATCH_UP_TIMEOUT),
            (false, true) => Some(LINGER_TIMEOUT),
            (false, false) => None,
        }
    }

    fn on_stdout(&mut self, bytes: &[u8], output: &mut SessionOutput) {
        self.fed.stdout += bytes.len() as u64;
        let facts = self.interpreter.feed(bytes);
        self.interpreted =
            facts.iter().map(|fact| fact.position).max().unwrap_or_default().max(self.interpreted);
        facts.into_iter().for_each(|fact| self.on_fact(fact, ProcessAfterTurn::Alive, output));
    }

    fn on_stderr(&mut self, bytes: &[u8]) {
        self.fed.stderr += bytes.len() as u64;
        self.stderr.extend_from_slice(bytes);
        let excess = self.stderr.len().saturating_sub(STDERR_TAIL_BYTES);
        self.stderr.drain(..excess);
    }

    fn on_timeout(&mut self, output: &mut SessionOutput) {
        if std::mem::take(&mut self.is_behind) {
            return;
        }
        output.is_lingering = std::mem::take(&mut self.expects_exit);
        if output.is_lingering && self.cause == ExitCause::Voluntary {
            self.cause = ExitCause::TerminatedAfterOutput;
        }
    }

    /// Whether a checkpoint should be stored before the next read. `buffer_bytes` is the amount of output that the
    /// keeper buffers.
    pub(crate) fn is_checkpoint_due(&self, buffer_bytes: u64) -> bool {
        bytes_between(self.tried, self.fed) >= CHECKPOINT_INTERVAL_BYTES.min(buffer_bytes / 4)
    }

    /// The checkpoint to store, and its offsets, after everything before it was committed. The output before it can
    /// then be released.
    pub(crate) fn next_checkpoint(
        &mut self,
        committed: OutputPosition,
        buffer_bytes: u64,
    ) -> Option<(Vec<u8>, OutputOffsets)> {
        self.tried = self.fed;
        let (checkpoint, at) = match contained(|| self.checkpoint(committed)).flatten() {
            Some((checkpoint, at)) if at != self.stored => (checkpoint, at),
            // The output ends within a line, or the reader's state is too large. There is room for more output for a
            // while. Later the output is released anyway, so that the process is not blocked, and the next reader
            // learns the reason.
            Some(_) | None if bytes_between(self.stored, self.fed) < buffer_bytes / 2 => return None,
            Some(_) | None => {
                let attempt = self.attempt.0;
                tracing::warn!(
                    attempt,
                    "too much output without a checkpoint: a restart would lose this turn"
                );
                (SessionCheckpoint::impossible(self.fed), self.fed)
            }
        };
        self.stored = at;
        Some((checkpoint.to_bytes(), at))
    }

    /// The state from which a later session can continue, and its offsets. None if it cannot be stored.
    fn checkpoint(&self, committed: OutputPosition) -> Option<(SessionCheckpoint, OutputOffsets)> {
        let reader = self.interpreter.checkpoint()?;
        if reader.state.len() > MAX_CHECKPOINT_BYTES {
            return None;
        }
        let from = OutputOffsets { stdout: reader.offset, stderr: self.fed.stderr };
        let checkpoint = SessionCheckpoint {
            version: reader.version,
            stdout: from.stdout,
            stderr: from.stderr,
            state: Some(reader.state),
            stderr_tail: String::from_utf8_lossy(&self.stderr).into_owned(),
            interpreted_position: self.interpreted.0,
            committed: committed.0,
            budget: self.budget,
        };
        Some((checkpoint, from))
    }

    /// Continues from a checkpoint, or returns why the session has to begin at the first byte.
    fn restore(&mut self, checkpoint: &SessionCheckpoint, committed: OutputPosition) -> Result<(), String> {
        let Some(state) = &checkpoint.state else {
            return Err("more had been understood than a checkpoint may hold".to_owned());
        };
        // The facts before the checkpoint would be lost.
        if checkpoint.committed > committed.0 {
            return Err("the run's ledger is older than the reader's checkpoint".to_owned());
        }
        let (version, state) = (checkpoint.version.clone(), state.clone());
        let reader = ReaderCheckpoint { version, offset: checkpoint.stdout, state };
        self.interpreter.restore(&reader).map_err(|error| error.to_string())?;
        self.stderr = checkpoint.stderr_tail.clone().into_bytes();
        self.fed = OutputOffsets { stdout: checkpoint.stdout, stderr: checkpoint.stderr };
        (self.stored, self.tried) = (self.fed, self.fed);
        self.budget = checkpoint.budget;
        self.interpreted = OutputPosition(checkpoint.interpreted_position);
        Ok(())
    }

    /// Ends the turn of the process and reports its exit.
    fn on_exit(&mut self, exit: ExitStatus, output: &mut SessionOutput) {
        let departure = ProcessExit { status: exit, stderr: &self.stderr, cause: self.cause };
        // Without an exit record the outcome of the turn is unknown, and the interpreter is not asked.
        let facts = match exit {
            ExitStatus::Unknown => Default::default(),
            ExitStatus::Code(_) => self.interpreter.on_exit(&departure),
        };
        facts.into_iter().for_each(|fact| self.on_fact(fact, ProcessAfterTurn::Exited(exit), output));
        output.events.push(RunEvent::ProcessExited { attempt: self.attempt, exit });
    }

    /// The bytes that start its next turn.
    pub(crate) fn say(&mut self, turn: TurnId, prompt: &str) -> Result<Vec<u8>, UnsupportedOperation> {
        let bytes = self.interpreter.encode_prompt(prompt)?;
        if self.turns.last() != Some(&turn) {
            self.turns.push(turn);
        }
        Ok(bytes)
    }

    /// How to interrupt its turn. A later exit is attributed to the interrupt.
    pub(crate) fn interrupt(&mut self) -> InterruptMethod {
        self.cause = ExitCause::Interrupted;
        self.interpreter.interrupt_method()
    }

    /// How to ask an idle process to exit.
    pub(crate) fn leave(&mut self) -> Option<ShutdownMethod> {
        match self.interpreter.status() {
            EngineSessionStatus::BetweenTurns => Some(self.interpreter.shutdown_method()),
            EngineSessionStatus::Starting
            | EngineSessionStatus::Working
            | EngineSessionStatus::WaitingForAnswer
            | EngineSessionStatus::Exited => None,
        }
    }

    /// Translates one fact. The end of a turn also reports omitted entries.
    fn on_fact(&mut self, fact: EngineFact, process_after: ProcessAfterTurn, output: &mut SessionOutput) {
        if let FactKind::TurnEnded { .. } = fact.kind
            && let Some((position, text)) = self.budget.end_turn()
        {
            output.events.push(RunEvent::Progressed { attempt: self.attempt, position, text });
        }
        output.events.extend(self.event_of(fact, process_after, &mut output.writes));
    }

    fn event_of(
        &mut self,
        fact: EngineFact,
        process_after: ProcessAfterTurn,
        writes: &mut Vec<(u64, Vec<u8>)>,
    ) -> Option<RunEvent> {
        let (attempt, position) = (self.attempt, fact.position);
        Some(match fact.kind {
            // No engine uses an id this long. Without an id, the run is told that there is none.
            FactKind::Session { value, .. } if value.len() > MAX_NAME_BYTES => return None,
            FactKind::Session { handle_type, value } => {
                let engine = self.engine.clone();
                // The domain knows in which turn it was first announced.
                let handle =
                    EngineSessionHandle { engine, handle_type, handle_value: value, created_at_turn: 0 };
                RunEvent::HandleAnnounced { attempt, position, handle }
            }
            FactKind::Progress(text) | FactKind::Warning(text) => {
                let text = self.budget.progress(text, position)?;
                RunEvent::Progressed { attempt, position, text }
            }
            FactKind::Gate { gate_id: gate, purpose, question } => {
                let turn_id = *self.turns.last()?;
                if gate.len() > MAX_NAME_BYTES || !self.budget.admits(&question) {
                    let answer = GateAnswer {
                        gate_id: &gate,
                        text: "Declined without asking a person: this turn has reached the limit of requests.",
                        verdict: Some(ApprovalVerdict::Declined),
                    };
                    writes.push((position.0, self.interpreter.encode_answer(&answer).ok()?));
                    return None;
                }
                RunEvent::GateRaised { attempt, turn_id, position, gate, purpose, question }
            }
            FactKind::GateWithdrawn { gate_id: gate } => RunEvent::GateWithdrawn { attempt, position, gate },
            FactKind::TurnEnded { turn, outcome: ending } => {
                let turn_id = *self.turns.get(usize::try_from(turn).ok()?.checked_sub(1)?)?;
                RunEvent::TurnEnded { attempt, turn_id, position, outcome: bounded(ending), process_after }
            }
            FactKind::WriteStdin(bytes) => {
                writes.push((position.0, bytes));
                return None;
            }
            FactKind::OutputComplete => {
                self.expects_exit = true;
                return None;
            }
            // Not journalled: the text is in the spool and in the answer.
            FactKind::Text(_) | FactKind::UnknownLine(_) => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_of_the_first_stored_format_is_read() {
        let text = r#"{"version":"parrot 1","stdout":10,"stderr":3,"state":"{}","complaints":"oh","said":7,
            "committed":5,"budget":{"turn":{"entries":1,"bytes":2},"process":{"entries":1,"bytes":2},
            "requests":{"entries":0,"bytes":0},"left_out":{"entries":4,"bytes":9},"untold":6}}"#;
        let checkpoint = SessionCheckpoint::from_bytes(text.as_bytes()).expect("it is understood");
        assert_eq!((checkpoint.stderr_tail.as_str(), checkpoint.interpreted_position), ("oh", 7));
        let written: serde_json::Value =
            serde_json::from_slice(&checkpoint.to_bytes()).expect("it is written as JSON");
        assert_eq!(written["budget"]["omitted"]["entries"], 4);
        assert_eq!(written["budget"]["unreported_position"], 6);
        assert_eq!(SessionCheckpoint::from_bytes(&checkpoint.to_bytes()), Some(checkpoint));
    }
}
