//! What an engine's process said, in words that mean the same for every engine.

use abide_domain::{
    engine::HandleType,
    event::TurnOutcome,
    interaction::{GatePurpose, Question},
    process::{ExitStatus, OutputPosition},
};

/// Something that was said, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineFact {
    /// Where: it grows with every fact of a process and depends on its bytes alone, so that facts which were
    /// committed before a restart are known by it. See [`EngineFact::position`].
    pub at: OutputPosition,
    /// What.
    pub what: FactKind,
}

/// What was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FactKind {
    /// The session's name. Said before any question, again in every process, and as the engine says it, even if it is
    /// not the one that was asked for: comparing is for the domain (A4).
    Session {
        /// What kind of thing the name is.
        handle_type: HandleType,
        /// The name.
        value: String,
    },
    /// A piece of the answer as it is being made, for people who watch.
    Text(String),
    /// What it is doing, for people who watch.
    Progress(String),
    /// Something is odd but not fatal.
    Warning(String),
    /// It asks inside its turn and waits.
    Gate {
        /// Its name for the request, unique within the process.
        gate: String,
        /// What it wants.
        purpose: GatePurpose,
        /// What it asks.
        question: Question,
    },
    /// It no longer wants that answer.
    Withdrawn {
        /// Its name for the request.
        gate: String,
    },
    /// Its protocol wants these bytes on its standard input, once: the position is the key.
    Write(Vec<u8>),
    /// It has said the last word of a one-shot turn and should exit by itself; how the turn ended is known then.
    Finishing,
    /// A turn is over. Said exactly once for each turn, after everything else of that turn.
    Ended {
        /// Which prompt of this process, counted from 1.
        turn: u32,
        /// How.
        ending: TurnOutcome,
    },
    /// Something that this adapter does not know, whole.
    Unknown(String),
}

/// How a process went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessExit<'a> {
    /// With which code.
    pub exit: ExitStatus,
    /// The last of what it complained about on standard error.
    pub stderr: &'a [u8],
    /// Why it went, as far as we had a hand in it.
    pub cause: ExitCause,
}

/// Who made a process go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitCause {
    /// It went by itself.
    Itself,
    /// It had said its last word and did not go, so it was ended.
    Dismissed,
    /// Its turn was interrupted on somebody's order.
    Interrupted,
}

impl EngineFact {
    /// The position of the `index`-th fact that follows from the line which ends at byte `offset` of the output.
    ///
    /// Offsets, not counts: a later version may read more out of the same line without moving what comes after it.
    pub fn position(offset: u64, index: u8) -> OutputPosition {
        OutputPosition((offset << 8) | u64::from(index))
    }

    /// The byte of the output at which the line ends that said something at this position.
    pub fn offset(at: OutputPosition) -> u64 {
        at.0 >> 8
    }
}
