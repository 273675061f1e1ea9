//! What one process says, as events of its run; what the run orders, as bytes for the process.
//!
//! Pure: reading, writing and committing are for the performer. A new talk that is fed everything from the first byte
//! comes to the same events, so a restart needs no memory.

use abide_domain::{
    engine::Handle,
    event::{Aftermath, Event},
    id::TurnId,
    process::{Attempt, Exit, Position},
};
use abide_ports::engine::{
    Answer, Cause, Departure, Interpreter, Leave, Said, Status, Stop, Unsupported, What,
};
use tokio::sync::watch;

/// The conversation with one attempt's process.
#[derive(Debug)]
pub(crate) struct Talk {
    engine: String,
    attempt: Attempt,
    /// The turns that the process was given, in order.
    turns: Vec<TurnId>,
    interpreter: Box<dyn Interpreter>,
    /// The last of what it complained about.
    stderr: Vec<u8>,
    cause: Cause,
    /// Whether it has been speaking while nobody listened, and that has not been heard yet.
    behind: bool,
    /// How far it has been heard.
    heard: watch::Sender<Position>,
}

/// Something that has to be done because of what was heard.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    /// Take this event.
    Take(Event),
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

/// How much of standard error is kept.
const STDERR_TAIL: usize = 16 << 10;

impl Talk {
    pub(crate) fn new(
        engine: &str,
        attempt: Attempt,
        turns: Vec<TurnId>,
        interpreter: Box<dyn Interpreter>,
    ) -> Self {
        let engine = engine.to_owned();
        Self {
            engine,
            attempt,
            turns,
            interpreter,
            stderr: Vec::new(),
            cause: Cause::Itself,
            behind: false,
            heard: watch::channel(Position::default()).0,
        }
    }

    /// Further bytes of its standard output.
    pub(crate) fn heard(&mut self, bytes: &[u8]) -> Vec<Deed> {
        let said = self.interpreter.feed(bytes);
        if let Some(last) = said.iter().map(|said| said.at).max() {
            self.heard.send_if_modified(|heard| {
                let further = last > *heard;
                *heard = last.max(*heard);
                further
            });
        }
        said.into_iter().filter_map(|said| self.deed(said, Aftermath::Alive)).collect()
    }

    /// How far it has been heard, now and later. A talk that was begun anew hears everything from the first byte on, and
    /// means nothing to the process before it has heard what its run has.
    pub(crate) fn progress(&self) -> watch::Receiver<Position> {
        self.heard.subscribe()
    }

    /// Further bytes of its standard error.
    pub(crate) fn complained(&mut self, bytes: &[u8]) {
        self.stderr.extend_from_slice(bytes);
        let excess = self.stderr.len().saturating_sub(STDERR_TAIL);
        self.stderr.drain(..excess);
    }

    /// It is over. Whatever turn it had in hand ends; then it is known to be gone.
    pub(crate) fn departed(&mut self, exit: Exit) -> Vec<Deed> {
        let departure = Departure { exit, stderr: &self.stderr, cause: self.cause };
        let said = self.interpreter.end(&departure);
        let mut deeds: Vec<Deed> =
            said.into_iter().filter_map(|said| self.deed(said, Aftermath::Exited(exit))).collect();
        deeds.push(Deed::Take(Event::ProcessExited { attempt: self.attempt, exit }));
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
    pub(crate) fn say(&mut self, turn: TurnId, prompt: &str) -> Result<Vec<u8>, Unsupported> {
        let bytes = self.interpreter.say(prompt)?;
        if self.turns.last() != Some(&turn) {
            self.turns.push(turn);
        }
        Ok(bytes)
    }

    pub(crate) fn answer(&mut self, answer: &Answer<'_>) -> Result<Vec<u8>, Unsupported> {
        self.interpreter.answer(answer)
    }

    pub(crate) fn steer(&mut self, text: &str) -> Result<Vec<u8>, Unsupported> {
        self.interpreter.steer(text)
    }

    /// How its turn is stopped. From now on its end is ours.
    pub(crate) fn interrupt(&mut self) -> Stop {
        self.cause = Cause::Interrupted;
        self.interpreter.interrupt()
    }

    /// How it is asked to go after its last word, if it is not at work.
    pub(crate) fn leave(&mut self) -> Option<Leave> {
        match self.interpreter.status() {
            Status::BetweenTurns => Some(self.interpreter.leave()),
            Status::Starting | Status::Working | Status::AtGate | Status::Over => None,
        }
    }

    /// It does not go although it has said its last word, so it is ended.
    pub(crate) fn dismiss(&mut self) {
        if self.cause == Cause::Itself {
            self.cause = Cause::Dismissed;
        }
    }

    fn deed(&self, said: Said, aftermath: Aftermath) -> Option<Deed> {
        let (attempt, position) = (self.attempt, said.at);
        Some(Deed::Take(match said.what {
            What::Session { handle_type, value } => {
                let engine = self.engine.clone();
                // In which turn it was first announced is the domain's to know.
                let handle = Handle { engine, handle_type, handle_value: value, created_at_turn: 0 };
                Event::HandleAnnounced { attempt, position, handle }
            }
            What::Progress(text) | What::Warning(text) => Event::Progressed { attempt, position, text },
            What::Gate { gate, purpose, question } => {
                let turn_id = *self.turns.last()?;
                Event::GateRaised { attempt, turn_id, position, gate, purpose, question }
            }
            What::Withdrawn { gate } => Event::GateWithdrawn { attempt, position, gate },
            What::Ended { turn, ending } => {
                let turn_id = *self.turns.get(usize::try_from(turn).ok()?.checked_sub(1)?)?;
                Event::TurnEnded { attempt, turn_id, position, ending, aftermath }
            }
            What::Write(bytes) => return Some(Deed::Write { key: position.0, bytes }),
            What::Finishing => return Some(Deed::ExpectExit),
            // For people who watch: it is in the spool, and in the answer.
            What::Text(_) | What::Unknown(_) => return None,
        }))
    }
}
