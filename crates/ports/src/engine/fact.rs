//! The facts that an engine's output conveys, in terms that are the same for all engines.

use abide_domain::{
    engine::HandleType,
    event::TurnOutcome,
    interaction::{GatePurpose, Question},
    process::{ExitStatus, OutputPosition},
};

/// A fact and its position in the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineFact {
    /// Increases with every fact of a process and depends on its output only. Facts that were committed before a
    /// restart are recognised by their position. See [`EngineFact::position`].
    pub position: OutputPosition,
    pub kind: FactKind,
}

/// The content of a fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FactKind {
    /// The session id. Reported before any question and again in every process. It is the id that the engine announced,
    /// even if another one was requested; the domain compares them (A4).
    Session { handle_type: HandleType, value: String },
    /// A part of the answer while it is generated, for live display.
    Text(String),
    /// The current activity, for live display.
    Progress(String),
    /// A problem that does not end the turn.
    Warning(String),
    /// The engine asks inside its turn and waits.
    Gate {
        /// The engine's id of the request, unique within the process.
        gate_id: String,
        purpose: GatePurpose,
        question: Question,
    },
    /// The engine no longer needs the answer.
    GateWithdrawn {
        /// The engine's id of the request.
        gate_id: String,
    },
    /// Bytes that the protocol requires on standard input. They are written once; the position is the idempotency key.
    WriteStdin(Vec<u8>),
    /// A one-shot turn has printed its last output and the process should exit. The exit determines how the turn ended.
    OutputComplete,
    /// A turn has ended. Reported exactly once per turn, after all other facts of the turn.
    TurnEnded {
        /// The number of the prompt within this process, counted from 1.
        turn: u32,
        outcome: TurnOutcome,
    },
    /// A complete line that the adapter does not know.
    UnknownLine(String),
}

/// The exit of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessExit<'a> {
    pub status: ExitStatus,
    /// The end of its standard error.
    pub stderr: &'a [u8],
    /// The daemon's part in the exit.
    pub cause: ExitCause,
}

/// The cause of a process's exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitCause {
    /// The process exited by itself.
    Voluntary,
    /// The process had finished its output but did not exit, so it was terminated.
    TerminatedAfterOutput,
    /// The turn was interrupted by request.
    Interrupted,
}

impl EngineFact {
    /// The position of the `index`-th fact of the line that ends at byte `offset` of the output.
    ///
    /// Positions are offsets and not counts. A later version can therefore derive more facts from a line without moving
    /// the positions after it.
    pub fn position(offset: u64, index: u8) -> OutputPosition {
        OutputPosition((offset << 8) | u64::from(index))
    }

    /// The byte offset at which the line with this position ends.
    pub fn offset(at: OutputPosition) -> u64 {
        at.0 >> 8
    }
}
