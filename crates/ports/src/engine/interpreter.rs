//! The interpreter of one process: translates its output to facts, and prompts and answers to its input.

use std::fmt::Debug;

use abide_domain::approval::ApprovalVerdict;

use super::{EngineAbility, EngineFact, ProcessExit};

/// Interprets one process, from the first byte of its output to its exit, over all turns it is given.
///
/// The state is a pure function of the bytes that were fed. After a restart, a new interpreter that is fed the same
/// bytes has the same state, although it was not told about input written in between. The same holds for an interpreter
/// that is restored from a checkpoint and fed the output after it. Only standard output is fed, because two streams
/// have no reproducible order. Standard error is examined when the process has exited.
pub trait ProcessInterpreter: Debug + Send {
    /// Interprets further bytes of standard output. The result does not depend on where the bytes are split.
    fn feed(&mut self, bytes: &[u8]) -> Vec<EngineFact>;

    /// The remaining facts when the process has exited, including those of unfinished output.
    fn on_exit(&mut self, exit: &ProcessExit<'_>) -> Vec<EngineFact>;

    /// The status according to the bytes fed so far.
    fn status(&self) -> EngineSessionStatus;

    /// The bytes that start the next turn of a held process.
    fn encode_prompt(&mut self, prompt: &str) -> Result<Vec<u8>, UnsupportedOperation>;

    /// The bytes that answer a request inside the turn.
    fn encode_answer(&mut self, answer: &GateAnswer<'_>) -> Result<Vec<u8>, UnsupportedOperation>;

    /// The bytes that add a message to the running turn.
    fn encode_steer(&mut self, text: &str) -> Result<Vec<u8>, UnsupportedOperation>;

    /// The way to stop the turn while keeping the session usable.
    fn interrupt_method(&mut self) -> InterruptMethod;

    /// The way to ask the process to exit. A process that does not exit is terminated.
    fn shutdown_method(&mut self) -> ShutdownMethod;

    /// The current state as a checkpoint. None after the process has exited.
    fn checkpoint(&self) -> Option<ReaderCheckpoint>;

    /// Restores a checkpoint, as if all output before it had been fed. The interpreter must be new and created from the
    /// same launch context.
    fn restore(&mut self, checkpoint: &ReaderCheckpoint) -> Result<(), IncompatibleCheckpoint>;
}

/// The state of an interpreter at an offset of standard output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReaderCheckpoint {
    /// The adapter and the version of its state. Other versions are rejected.
    pub version: String,
    /// The offset at which to continue. Bytes that were fed beyond it, such as half a line, must be fed again.
    pub offset: u64,
    /// Opaque to all code but the adapter. Stored only up to [`MAX_CHECKPOINT_BYTES`].
    pub state: String,
}

/// The size limit of a stored state.
pub const MAX_CHECKPOINT_BYTES: usize = 64 << 10;

/// The checkpoint was written by another version of the adapter, or is damaged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a checkpoint of {found} cannot be used by {expected}")]
pub struct IncompatibleCheckpoint {
    /// The version in the checkpoint.
    pub found: String,
    /// The version of the adapter.
    pub expected: String,
}

/// The status of a session (E1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineSessionStatus {
    /// The process has not announced its session yet.
    Starting,
    /// A turn is running.
    Working,
    /// A turn waits for an answer.
    WaitingForAnswer,
    /// The last turn has ended and the process is alive.
    BetweenTurns,
    /// The process has exited.
    Exited,
}

/// An answer to a request inside a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateAnswer<'a> {
    /// The engine's id of the request.
    pub gate_id: &'a str,
    pub text: &'a str,
    /// The decision, if the request was for permission.
    pub verdict: Option<ApprovalVerdict>,
}

/// The way to stop a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InterruptMethod {
    /// By writing these bytes to its standard input.
    Write(Vec<u8>),
    /// By a signal to its process group.
    Signal(ProcessSignal),
}

/// The way to ask a process to exit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShutdownMethod {
    /// By closing its standard input.
    CloseInput,
    /// By a signal to its process group.
    Signal(ProcessSignal),
}

/// A signal that a process can handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessSignal {
    Interrupt,
    Terminate,
}

/// The engine does not support an operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnsupportedOperation {
    /// The engine lacks the ability.
    #[error("the engine cannot do this: it lacks {}", ability.name())]
    MissingAbility { ability: EngineAbility },
    /// The engine has the ability, but not for this request.
    #[error("the engine cannot do this: {reason}")]
    Refused {
        /// The reason and an alternative.
        reason: String,
    },
}
