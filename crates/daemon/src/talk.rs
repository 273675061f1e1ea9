//! What one process says, as events of its run; what the run orders, as bytes for the process.
//!
//! Pure: reading, writing and committing are for the performer. A new talk that is fed everything from the first byte, or
//! from a checkpoint on, comes to the same events.

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

/// The conversation with one attempt's process.
#[derive(Debug)]
pub(crate) struct ProcessSession {
    engine: String,
    attempt: Attempt,
    /// The turns that the process was given, in order.
    turns: Vec<TurnId>,
    interpreter: Box<dyn ProcessInterpreter>,
    /// The last of what it complained about.
    stderr: Vec<u8>,
    cause: ExitCause,
    /// Whether it has been speaking while nobody listened, and that has not been heard yet.
    behind: bool,
    /// How far it has been heard.
    heard: watch::Sender<OutputPosition>,
    /// How many bytes of each stream it has been fed.
    fed: OutputOffsets,
    /// How much of what it says may become journal entries.
    budget: JournalBudget,
}

/// Something that has to be done because of what was heard.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SessionAction {
    /// Take this event.
    Take(RunEvent),
    /// Write this to the process, once for this key.
    Write {
        /// The key.
        key: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// It has said its last word and should go soon.
    ExpectExit,
}

/// What is stored of a talk beside the process's output, so that the output before it need not be kept (decision 0016).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SessionCheckpoint {
    /// The adapter and the version of its state.
    version: String,
    /// Where to go on in standard output.
    stdout: u64,
    /// Where to go on in standard error.
    stderr: u64,
    /// The reader's state. None if it was too large to be stored and output had to be released all the same.
    state: Option<String>,
    /// The last of what the process complained about.
    complaints: String,
    /// How far it had been heard.
    said: u64,
    /// The last fact that the run had taken.
    committed: u64,
    /// What of the budgets was used up.
    #[serde(default)]
    budget: JournalBudget,
}

impl SessionCheckpoint {
    /// For output that had to be released although nobody can go on from here.
    pub(crate) fn impossible(at: OutputOffsets) -> Self {
        Self {
            version: String::new(),
            stdout: at.stdout,
            stderr: at.stderr,
            state: None,
            complaints: String::new(),
            said: 0,
            committed: 0,
            budget: JournalBudget::default(),
        }
    }

    /// As it is stored.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// As it was stored; none if that cannot be read.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

/// The longest name of a session or a request that is journalled.
const MAX_NAME_BYTES: usize = 4 << 10;

/// How much of standard error is kept.
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
            cause: ExitCause::Itself,
            behind: false,
            heard: watch::channel(OutputPosition::default()).0,
            fed: OutputOffsets::START,
            budget: JournalBudget::default(),
        }
    }

    /// Further bytes of its standard output.
    pub(crate) fn heard(&mut self, bytes: &[u8]) -> Vec<SessionAction> {
        self.fed.stdout += bytes.len() as u64;
        let said = self.interpreter.feed(bytes);
        if let Some(last) = said.iter().map(|said| said.at).max() {
            self.heard.send_if_modified(|heard| {
                let further = last > *heard;
                *heard = last.max(*heard);
                further
            });
        }
        said.into_iter().flat_map(|said| self.deeds(said, ProcessAfterTurn::Alive)).collect()
    }

    /// How far it has been heard, now and later. A talk that was begun anew hears everything from the first byte on, and
    /// means nothing to the process before it has heard what its run has.
    pub(crate) fn progress(&self) -> watch::Receiver<OutputPosition> {
        self.heard.subscribe()
    }

    /// Further bytes of its standard error.
    pub(crate) fn complained(&mut self, bytes: &[u8]) {
        self.fed.stderr += bytes.len() as u64;
        self.stderr.extend_from_slice(bytes);
        let excess = self.stderr.len().saturating_sub(STDERR_TAIL);
        self.stderr.drain(..excess);
    }

    /// How many bytes of each stream it has been fed.
    pub(crate) fn fed(&self) -> OutputOffsets {
        self.fed
    }

    /// What a later talk needs in order to go on from here, and where that is. None if there is nothing that could be
    /// stored. `committed` is the last fact that the run has taken.
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
            complaints: String::from_utf8_lossy(&self.stderr).into_owned(),
            said: self.heard.borrow().0,
            committed: committed.0,
            budget: self.budget,
        };
        Some((checkpoint, from))
    }

    /// Goes on from a checkpoint, if that can be: says from where on it has to be fed, or why from the first byte.
    pub(crate) fn restore(
        &mut self,
        checkpoint: &SessionCheckpoint,
        committed: OutputPosition,
    ) -> Result<OutputOffsets, String> {
        let Some(state) = &checkpoint.state else {
            return Err("more had been understood than a checkpoint may hold".to_owned());
        };
        // The facts before the checkpoint would not be told again.
        if checkpoint.committed > committed.0 {
            return Err("the run's ledger is older than the reader's checkpoint".to_owned());
        }
        let (version, state) = (checkpoint.version.clone(), state.clone());
        let reader = ReaderCheckpoint { version, offset: checkpoint.stdout, state };
        self.interpreter.restore(&reader).map_err(|error| error.to_string())?;
        self.stderr = checkpoint.complaints.clone().into_bytes();
        self.fed = OutputOffsets { stdout: checkpoint.stdout, stderr: checkpoint.stderr };
        self.budget = checkpoint.budget;
        self.heard.send_replace(OutputPosition(checkpoint.said));
        Ok(self.fed)
    }

    /// It is over. Whatever turn it had in hand ends; then it is known to be gone.
    pub(crate) fn departed(&mut self, exit: ExitStatus) -> Vec<SessionAction> {
        let departure = ProcessExit { exit, stderr: &self.stderr, cause: self.cause };
        // Without a record of its end, a turn in hand has an unknown outcome, which the interpreter cannot tell.
        let said = match exit {
            ExitStatus::Unseen => Default::default(),
            ExitStatus::Code(_) => self.interpreter.end(&departure),
        };
        let mut deeds: Vec<SessionAction> =
            said.into_iter().flat_map(|said| self.deeds(said, ProcessAfterTurn::Exited(exit))).collect();
        deeds.push(SessionAction::Take(RunEvent::ProcessExited { attempt: self.attempt, exit }));
        deeds
    }

    /// It was speaking while nobody listened.
    pub(crate) fn falls_behind(&mut self) {
        self.behind = true;
    }

    /// What it said then has been heard.
    pub(crate) fn caught_up(&mut self) {
        self.behind = false;
    }

    /// Whether its turn may have ended long ago, for all we know.
    pub(crate) fn is_behind(&self) -> bool {
        self.behind
    }

    /// The bytes that begin its next turn.
    pub(crate) fn say(&mut self, turn: TurnId, prompt: &str) -> Result<Vec<u8>, UnsupportedOperation> {
        let bytes = self.interpreter.say(prompt)?;
        if self.turns.last() != Some(&turn) {
            self.turns.push(turn);
        }
        Ok(bytes)
    }

    pub(crate) fn answer(&mut self, answer: &GateAnswer<'_>) -> Result<Vec<u8>, UnsupportedOperation> {
        self.interpreter.answer(answer)
    }

    pub(crate) fn steer(&mut self, text: &str) -> Result<Vec<u8>, UnsupportedOperation> {
        self.interpreter.steer(text)
    }

    /// How its turn is stopped. From now on its end is ours.
    pub(crate) fn interrupt(&mut self) -> InterruptMethod {
        self.cause = ExitCause::Interrupted;
        self.interpreter.interrupt()
    }

    /// How it is asked to go after its last word, if it is not at work.
    pub(crate) fn leave(&mut self) -> Option<ShutdownMethod> {
        match self.interpreter.status() {
            EngineSessionStatus::BetweenTurns => Some(self.interpreter.leave()),
            EngineSessionStatus::Starting
            | EngineSessionStatus::Working
            | EngineSessionStatus::AtGate
            | EngineSessionStatus::Over => None,
        }
    }

    /// It does not go although it has said its last word, so it is ended.
    pub(crate) fn dismiss(&mut self) {
        if self.cause == ExitCause::Itself {
            self.cause = ExitCause::Dismissed;
        }
    }

    /// What is to be done because of one thing that was said. The end of a turn also tells what was left out of it.
    fn deeds(&mut self, said: EngineFact, aftermath: ProcessAfterTurn) -> Vec<SessionAction> {
        let attempt = self.attempt;
        let ends = matches!(said.what, FactKind::Ended { .. });
        let left_out = if ends { self.budget.end_turn() } else { None };
        let left_out = left_out
            .map(|(position, text)| SessionAction::Take(RunEvent::Progressed { attempt, position, text }));
        left_out.into_iter().chain(self.deed(said, aftermath)).collect()
    }

    fn deed(&mut self, said: EngineFact, aftermath: ProcessAfterTurn) -> Option<SessionAction> {
        let (attempt, position) = (self.attempt, said.at);
        Some(SessionAction::Take(match said.what {
            // No engine has a name this long, and without a name the run is told so.
            FactKind::Session { value, .. } if value.len() > MAX_NAME_BYTES => return None,
            FactKind::Session { handle_type, value } => {
                let engine = self.engine.clone();
                // In which turn it was first announced is the domain's to know.
                let handle =
                    EngineSessionHandle { engine, handle_type, handle_value: value, created_at_turn: 0 };
                RunEvent::HandleAnnounced { attempt, position, handle }
            }
            FactKind::Progress(text) | FactKind::Warning(text) => {
                let text = self.budget.progress(text, position)?;
                RunEvent::Progressed { attempt, position, text }
            }
            FactKind::Gate { gate, purpose, question } => {
                let turn_id = *self.turns.last()?;
                if gate.len() > MAX_NAME_BYTES || !self.budget.admits(&question) {
                    let answer = GateAnswer {
                        gate: &gate,
                        text: "Declined without asking anybody: this turn has asked too much already.",
                        verdict: Some(ApprovalVerdict::Declined),
                    };
                    let bytes = self.interpreter.answer(&answer).ok()?;
                    return Some(SessionAction::Write { key: position.0, bytes });
                }
                RunEvent::GateRaised { attempt, turn_id, position, gate, purpose, question }
            }
            FactKind::Withdrawn { gate } => RunEvent::GateWithdrawn { attempt, position, gate },
            FactKind::Ended { turn, ending } => {
                let turn_id = *self.turns.get(usize::try_from(turn).ok()?.checked_sub(1)?)?;
                RunEvent::TurnEnded { attempt, turn_id, position, ending: bounded(ending), aftermath }
            }
            FactKind::Write(bytes) => return Some(SessionAction::Write { key: position.0, bytes }),
            FactKind::Finishing => return Some(SessionAction::ExpectExit),
            // For people who watch: it is in the spool, and in the answer.
            FactKind::Text(_) | FactKind::Unknown(_) => return None,
        }))
    }
}
