//! One process and its language: its bytes become facts, our words become its bytes.

use std::fmt::Debug;

use abide_domain::approval::ApprovalVerdict;

use super::{EngineAbility, EngineFact, ProcessExit};

/// The conversation with one process, from its first byte to its exit, over all turns that it is given.
///
/// It is a pure function of what it was fed, so after a restart a new one that is fed the same bytes knows the same,
/// without having been told what was said to the process in between. So does one that is restored from a checkpoint and
/// fed what comes after it. Only standard output is fed: two streams have no
/// order that could be repeated. Complaints on standard error are looked at when the process is over.
pub trait ProcessInterpreter: Debug + Send {
    /// What these further bytes of standard output say. Cutting the bytes elsewhere changes nothing.
    fn feed(&mut self, bytes: &[u8]) -> Vec<EngineFact>;

    /// What remains to be said when the process is over, whatever it left unfinished.
    fn end(&mut self, departure: &ProcessExit<'_>) -> Vec<EngineFact>;

    /// How things stand, as far as has been fed.
    fn status(&self) -> EngineSessionStatus;

    /// The bytes that begin the next turn of a held process.
    fn say(&mut self, prompt: &str) -> Result<Vec<u8>, UnsupportedOperation>;

    /// The bytes that answer a request inside the turn.
    fn answer(&mut self, answer: &GateAnswer<'_>) -> Result<Vec<u8>, UnsupportedOperation>;

    /// The bytes that put a message into the running turn.
    fn steer(&mut self, text: &str) -> Result<Vec<u8>, UnsupportedOperation>;

    /// How the turn is stopped so that the session stays usable.
    fn interrupt(&mut self) -> InterruptMethod;

    /// How the process is asked to go when nothing more is wanted of it. Who does not go is ended.
    fn leave(&mut self) -> ShutdownMethod;

    /// What has been understood so far. None when the process is over.
    fn checkpoint(&self) -> Option<ReaderCheckpoint>;

    /// Goes on from a checkpoint as if everything before it had been fed. For a new interpreter of the same order.
    fn restore(&mut self, checkpoint: &ReaderCheckpoint) -> Result<(), IncompatibleCheckpoint>;
}

/// What an interpreter has understood up to an offset of standard output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReaderCheckpoint {
    /// The adapter and the version of its state. Another version is not read.
    pub version: String,
    /// Where to go on. Everything that was fed beyond it, such as half a line, is to be fed again.
    pub offset: u64,
    /// For the adapter alone. Stored only up to [`MAX_CHECKPOINT_BYTES`].
    pub state: String,
}

/// The largest state that is stored.
pub const MAX_CHECKPOINT_BYTES: usize = 64 << 10;

/// A checkpoint was made by another version of the adapter, or is damaged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a checkpoint of {found} cannot be used by {expected}")]
pub struct IncompatibleCheckpoint {
    /// The version that it was made by.
    pub found: String,
    /// The version that was to use it.
    pub expected: String,
}

/// How things stand with a session (E1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineSessionStatus {
    /// The process has not named its session yet.
    Starting,
    /// A turn is at work.
    Working,
    /// A turn waits for an answer.
    AtGate,
    /// The last turn is over; the process lives.
    BetweenTurns,
    /// The process is over.
    Over,
}

/// An answer to a request inside a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateAnswer<'a> {
    /// The engine's name for the request.
    pub gate: &'a str,
    /// What was answered.
    pub text: &'a str,
    /// What that means, if permission was asked for.
    pub verdict: Option<ApprovalVerdict>,
}

/// How a turn is stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InterruptMethod {
    /// By telling it.
    Write(Vec<u8>),
    /// By a signal to its process group.
    Signal(ProcessSignal),
}

/// How a process is asked to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShutdownMethod {
    /// Its input ends.
    CloseInput,
    /// By a signal to its process group.
    Signal(ProcessSignal),
}

/// A signal that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessSignal {
    /// SIGINT.
    Interrupt,
    /// SIGTERM.
    Terminate,
}

/// The engine cannot do this.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnsupportedOperation {
    /// It lacks the ability.
    #[error("the engine cannot do this: it lacks {}", ability.name())]
    Lacks {
        /// Which.
        ability: EngineAbility,
    },
    /// It has the ability, but not for this.
    #[error("the engine cannot do this: {reason}")]
    Refused {
        /// Why not, and what to do instead.
        reason: String,
    },
}
