//! Translates the output of one process into events of its run, and effects into bytes for the process.
//!
//! Pure: reading, writing and committing are done by the executor. A new session that reads all output from the first
//! byte, or from a checkpoint on, produces the same events.

use abide_domain::{
    approval::ApprovalVerdict,
    engine::EngineSessionHandle,
    event::{ProcessAfterTurn, RunEvent},
    id::TurnId,
    process::{Attempt, ExitStatus, OutputPosition},
};
use abide_ports::{
    engine::{
        EngineFact, EngineSessionStatus, ExitCause, FactKind, GateAnswer, InterruptMethod,
        MAX_CHECKPOINT_BYTES, ProcessExit, ProcessInterpreter, ReaderCheckpoint, ShutdownMethod,
        UnsupportedOperation,
    },
    processes::OutputOffsets,
};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::budget::{JournalBudget, bounded};

/// The session with one attempt's process.
#[derive(Debug)]
pub(crate) struct ProcessSession {
    engine: String,
    attempt: Attempt,
    /// The turns of the process, in order.
    turns: Vec<TurnId>,
    interpreter: Box<dyn ProcessInterpreter>,
    /// The last bytes of standard error.
    stderr: Vec<u8>,
    cause: ExitCause,
    /// True while output from a time without a daemon is still being read.
    behind: bool,
    /// The position up to which the output has been interpreted.
    heard: watch::Sender<OutputPosition>,
    /// Number of bytes read from each stream.
    fed: OutputOffsets,
    /// Limits the number of journal entries.
    budget: JournalBudget,
}

/// An action that results from output.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SessionAction {
    /// Commit this event.
    Take(RunEvent),
    /// Write these bytes to the process, once for this key.
    Write { key: u64, bytes: Vec<u8> },
    /// The process has finished and should exit soon.
    ExpectExit,
}

/// The stored state of a session, so that earlier output need not be kept (decision 0016). The aliases are the names in
/// checkpoints of processes that a daemon of the first stored format started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SessionCheckpoint {
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
    pub(crate) fn impossible(at: OutputOffsets) -> Self {
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
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Decodes a stored checkpoint; None if it is invalid.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

/// Maximum length of a session or request id in the journal.
const MAX_NAME_BYTES: usize = 4 << 10;

/// Number of bytes kept of standard error.
const STDERR_TAIL: usize = 16 << 10;

impl ProcessSession {
    pub(crate) fn new(
        engine: &str,
        attempt: Attempt,
        turns: Vec<TurnId>,
        interpreter: Box<dyn ProcessInterpreter>,
    ) -> Self {
        let engine = engine.to_owned();
        Self {
            engine,
            attempt,
            turns,
            interpreter,
            stderr: Vec::new(),
            cause: ExitCause::Voluntary,
            behind: false,
            heard: watch::channel(OutputPosition::default()).0,
            fed: OutputOffsets::START,
            budget: JournalBudget::default(),
        }
    }

    /// Interprets bytes of standard output.
    pub(crate) fn heard(&mut self, bytes: &[u8]) -> Vec<SessionAction> {
        self.fed.stdout += bytes.len() as u64;
        let said = self.interpreter.feed(bytes);
        if let Some(last) = said.iter().map(|said| said.position).max() {
            self.heard.send_if_modified(|heard| {
                let further = last > *heard;
                *heard = last.max(*heard);
                further
            });
        }
        said.into_iter().flat_map(|said| self.deeds(said, ProcessAfterTurn::Alive)).collect()
    }

    /// The position up to which the output has been interpreted. After a restart the session replays all output; until
    /// it reaches the run's position, its interpreter must not be asked to write.
    pub(crate) fn progress(&self) -> watch::Receiver<OutputPosition> {
        self.heard.subscribe()
    }

    /// Records bytes of standard error.
    pub(crate) fn complained(&mut self, bytes: &[u8]) {
        self.fed.stderr += bytes.len() as u64;
        self.stderr.extend_from_slice(bytes);
        let excess = self.stderr.len().saturating_sub(STDERR_TAIL);
        self.stderr.drain(..excess);
    }

    /// Number of bytes read from each stream.
    pub(crate) fn fed(&self) -> OutputOffsets {
        self.fed
    }

    /// The state from which a later session can continue, and its offsets. None if it cannot be stored. `committed` is
    /// the position of the last committed fact.
    pub(crate) fn checkpoint(&self, committed: OutputPosition) -> Option<(SessionCheckpoint, OutputOffsets)> {
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
            interpreted_position: self.heard.borrow().0,
            committed: committed.0,
            budget: self.budget,
        };
        Some((checkpoint, from))
    }

    /// Continues from a checkpoint. Returns the offsets at which to read on, or why the session has to begin at the
    /// first byte.
    pub(crate) fn restore(
        &mut self,
        checkpoint: &SessionCheckpoint,
        committed: OutputPosition,
    ) -> Result<OutputOffsets, String> {
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
        self.budget = checkpoint.budget;
        self.heard.send_replace(OutputPosition(checkpoint.interpreted_position));
        Ok(self.fed)
    }

    /// Handles the exit of the process: ends its turn and reports the exit.
    pub(crate) fn departed(&mut self, exit: ExitStatus) -> Vec<SessionAction> {
        let departure = ProcessExit { status: exit, stderr: &self.stderr, cause: self.cause };
        // Without an exit record the outcome of the turn is unknown, and the interpreter is not asked.
        let said = match exit {
            ExitStatus::Unknown => Default::default(),
            ExitStatus::Code(_) => self.interpreter.on_exit(&departure),
        };
        let mut deeds: Vec<SessionAction> =
            said.into_iter().flat_map(|said| self.deeds(said, ProcessAfterTurn::Exited(exit))).collect();
        deeds.push(SessionAction::Take(RunEvent::ProcessExited { attempt: self.attempt, exit }));
        deeds
    }

    /// Marks that output from a time without a daemon has to be read.
    pub(crate) fn falls_behind(&mut self) {
        self.behind = true;
    }

    /// Marks that this output has been read.
    pub(crate) fn caught_up(&mut self) {
        self.behind = false;
    }

    /// Whether the turn may have ended in output that has not been read yet.
    pub(crate) fn is_behind(&self) -> bool {
        self.behind
    }

    /// The bytes that start its next turn.
    pub(crate) fn say(&mut self, turn: TurnId, prompt: &str) -> Result<Vec<u8>, UnsupportedOperation> {
        let bytes = self.interpreter.encode_prompt(prompt)?;
        if self.turns.last() != Some(&turn) {
            self.turns.push(turn);
        }
        Ok(bytes)
    }

    pub(crate) fn answer(&mut self, answer: &GateAnswer<'_>) -> Result<Vec<u8>, UnsupportedOperation> {
        self.interpreter.encode_answer(answer)
    }

    pub(crate) fn steer(&mut self, text: &str) -> Result<Vec<u8>, UnsupportedOperation> {
        self.interpreter.encode_steer(text)
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

    /// Marks that the process is ended because it did not exit after it had finished.
    pub(crate) fn dismiss(&mut self) {
        if self.cause == ExitCause::Voluntary {
            self.cause = ExitCause::TerminatedAfterOutput;
        }
    }

    /// The actions for one fact. The end of a turn also reports omitted entries.
    fn deeds(&mut self, said: EngineFact, aftermath: ProcessAfterTurn) -> Vec<SessionAction> {
        let attempt = self.attempt;
        let ends = matches!(said.kind, FactKind::TurnEnded { .. });
        let left_out = if ends { self.budget.end_turn() } else { None };
        let left_out = left_out
            .map(|(position, text)| SessionAction::Take(RunEvent::Progressed { attempt, position, text }));
        left_out.into_iter().chain(self.deed(said, aftermath)).collect()
    }

    fn deed(&mut self, said: EngineFact, aftermath: ProcessAfterTurn) -> Option<SessionAction> {
        let (attempt, position) = (self.attempt, said.position);
        Some(SessionAction::Take(match said.kind {
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
                    let bytes = self.interpreter.encode_answer(&answer).ok()?;
                    return Some(SessionAction::Write { key: position.0, bytes });
                }
                RunEvent::GateRaised { attempt, turn_id, position, gate, purpose, question }
            }
            FactKind::GateWithdrawn { gate_id: gate } => RunEvent::GateWithdrawn { attempt, position, gate },
            FactKind::TurnEnded { turn, outcome: ending } => {
                let turn_id = *self.turns.get(usize::try_from(turn).ok()?.checked_sub(1)?)?;
                RunEvent::TurnEnded {
                    attempt,
                    turn_id,
                    position,
                    outcome: bounded(ending),
                    process_after: aftermath,
                }
            }
            FactKind::WriteStdin(bytes) => return Some(SessionAction::Write { key: position.0, bytes }),
            FactKind::OutputComplete => return Some(SessionAction::ExpectExit),
            // Not journalled: the text is in the spool and in the answer.
            FactKind::Text(_) | FactKind::UnknownLine(_) => return None,
        }))
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
