//! The frame that all engines which speak in lines share: positions, unfinished lines, and one end for each turn.
//!
//! An adapter writes a [`LineProtocol`], which knows what one line means. What one line means is not known here.

use std::fmt::Debug;

use abide_domain::{
    event::TurnOutcome,
    failure::{FailureCode, RunFailure},
};
use abide_ports::engine::{
    EngineAbility, EngineFact, EngineSessionStatus, FactKind, GateAnswer, IncompatibleCheckpoint,
    InterruptMethod, ProcessExit, ProcessInterpreter, ReaderCheckpoint, ShutdownMethod, UnsupportedOperation,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    asking,
    lines::{LONGEST, OutputLine, OutputLines, OutputLinesCheckpoint},
};

/// What an engine's lines mean, and how it is spoken to.
///
/// All of it is the adapter's state in a checkpoint, so it must be small in the middle of a turn: what has been told is
/// not kept.
pub(crate) trait LineProtocol: Debug + Send + Serialize + DeserializeOwned {
    /// The adapter's name and the version of its state. It changes when a state of before would be misunderstood.
    const VERSION: &'static str;

    /// One line of its output.
    fn line(&mut self, line: &[u8], facts: &mut FactSink);

    /// A line that is longer than what is kept of a line. The engine may wait for an answer to it, or have ended its turn
    /// with it: a turn must not wait for ever because of that. Here for programs that go with their turn, whose exit says
    /// the rest.
    fn long_line(&mut self, line: &LongLine<'_>, facts: &mut FactSink) {
        self.line(line.head, facts);
    }

    /// An empty line. It means nothing to most, but parts the paragraphs of those who speak plainly.
    fn blank_line(&mut self) {}

    /// The process is over. Every turn that it was given and that has not ended must end here.
    fn end(&mut self, departure: &ProcessExit<'_>, facts: &mut FactSink);

    /// See [`ProcessInterpreter::status`]; that the process is over is known without asking.
    fn status(&self) -> EngineSessionStatus;

    /// See [`ProcessInterpreter::say`]. Most processes are over with their turn.
    fn say(&mut self, _prompt: &str) -> Result<Vec<u8>, UnsupportedOperation> {
        Err(UnsupportedOperation::Lacks { ability: EngineAbility::Hold })
    }

    /// See [`ProcessInterpreter::answer`]. Most never ask inside a turn.
    fn answer(&mut self, _answer: &GateAnswer<'_>) -> Result<Vec<u8>, UnsupportedOperation> {
        Err(UnsupportedOperation::Lacks { ability: EngineAbility::Gates })
    }

    /// See [`ProcessInterpreter::steer`]. Most read nothing while they work.
    fn steer(&mut self, _text: &str) -> Result<Vec<u8>, UnsupportedOperation> {
        Err(UnsupportedOperation::Lacks { ability: EngineAbility::Steer })
    }

    /// See [`ProcessInterpreter::interrupt`].
    fn interrupt(&mut self) -> InterruptMethod;

    /// See [`ProcessInterpreter::leave`].
    fn leave(&mut self) -> ShutdownMethod;
}

/// A line of which only the beginning is kept.
#[derive(Debug)]
pub(crate) struct LongLine<'a> {
    /// The engine that printed it.
    engine: &'static str,
    /// Its beginning.
    pub(crate) head: &'a [u8],
}

impl LongLine<'_> {
    /// The failure of a turn that cannot go on without what the line said.
    pub(crate) fn failure(&self, what: &str) -> RunFailure {
        let (engine, most) = (self.engine, LONGEST >> 20);
        let message = format!(
            "{engine} sent {what} in one line of more than {most} MiB, which is the most that is read of a line; give it \
             a smaller task, or keep it from writing such large files and messages at once"
        );
        RunFailure::new(FailureCode::EngineFailed, message)
    }

    /// What the engine is told about a request that was not read.
    pub(crate) fn refusal() -> String {
        format!(
            "The request was declined without asking anybody: it is longer than {} MiB, which is the most that this \
             client reads. Make it smaller.",
            LONGEST >> 20
        )
    }
}

/// Collects what one line says, and gives each fact its place.
#[derive(Debug)]
pub(crate) struct FactSink {
    said: Vec<EngineFact>,
    /// Where the present line ends.
    offset: u64,
    index: u8,
    /// The last turn whose end was said.
    ended: u32,
}

/// An interpreter made of a tongue.
#[derive(Debug)]
pub(crate) struct LineInterpreter<T> {
    lines: OutputLines,
    tongue: T,
    ended: u32,
    over: bool,
}

impl FactSink {
    /// Something was said.
    pub(crate) fn say(&mut self, what: FactKind) {
        // Whoever says more than fits says it at the last place; the domain then takes the first of them.
        let at = EngineFact::position(self.offset, self.index);
        self.index = self.index.saturating_add(1);
        self.said.push(EngineFact { at, what });
    }

    /// The engine has finished a turn with this answer, which may turn out to be a question.
    pub(crate) fn answered(&mut self, turn: u32, text: &str) {
        let heard = asking::recognise(text);
        if let Some(warning) = heard.warning {
            self.say(FactKind::Warning(warning));
        }
        self.ended(turn, heard.ending);
    }

    /// A turn is over. A second end of the same turn is not said.
    pub(crate) fn ended(&mut self, turn: u32, ending: TurnOutcome) {
        if turn > self.ended {
            self.ended = turn;
            self.say(FactKind::Ended { turn, ending });
        }
    }

    /// A line that nobody knows, kept whole.
    pub(crate) fn unknown(&mut self, line: &[u8]) {
        self.say(FactKind::Unknown(String::from_utf8_lossy(line).into_owned()));
    }
}

impl<T: LineProtocol> LineInterpreter<T> {
    pub(crate) fn new(tongue: T) -> Self {
        Self { lines: OutputLines::default(), tongue, ended: 0, over: false }
    }
}

impl<T: LineProtocol> ProcessInterpreter for LineInterpreter<T> {
    fn feed(&mut self, bytes: &[u8]) -> Vec<EngineFact> {
        let mut facts = FactSink { said: vec![], offset: 0, index: 0, ended: self.ended };
        self.lines.feed(bytes, |line| understand(&mut self.tongue, &line, &mut facts));
        self.ended = facts.ended;
        facts.said
    }

    fn end(&mut self, departure: &ProcessExit<'_>) -> Vec<EngineFact> {
        let mut facts = FactSink { said: vec![], offset: 0, index: 0, ended: self.ended };
        if std::mem::replace(&mut self.over, true) {
            return facts.said;
        }
        self.lines.finish(|line| understand(&mut self.tongue, &line, &mut facts));
        (facts.offset, facts.index) = (self.lines.fed() + 1, 0);
        self.tongue.end(departure, &mut facts);
        self.ended = facts.ended;
        facts.said
    }

    fn status(&self) -> EngineSessionStatus {
        if self.over { EngineSessionStatus::Over } else { self.tongue.status() }
    }

    fn say(&mut self, prompt: &str) -> Result<Vec<u8>, UnsupportedOperation> {
        self.tongue.say(prompt)
    }

    fn answer(&mut self, answer: &GateAnswer<'_>) -> Result<Vec<u8>, UnsupportedOperation> {
        self.tongue.answer(answer)
    }

    fn steer(&mut self, text: &str) -> Result<Vec<u8>, UnsupportedOperation> {
        self.tongue.steer(text)
    }

    fn interrupt(&mut self) -> InterruptMethod {
        self.tongue.interrupt()
    }

    fn leave(&mut self) -> ShutdownMethod {
        self.tongue.leave()
    }

    fn checkpoint(&self) -> Option<ReaderCheckpoint> {
        if self.over {
            return None;
        }
        let lines = self.lines.checkpoint();
        let offset = lines.offset;
        let state =
            serde_json::to_string(&InterpreterState { lines, ended: self.ended, tongue: &self.tongue })
                .ok()?;
        Some(ReaderCheckpoint { version: T::VERSION.to_owned(), offset, state })
    }

    fn restore(&mut self, checkpoint: &ReaderCheckpoint) -> Result<(), IncompatibleCheckpoint> {
        let saved = (checkpoint.version == T::VERSION)
            .then(|| serde_json::from_str::<InterpreterState<T>>(&checkpoint.state).ok())
            .flatten()
            .filter(|saved| saved.lines.offset == checkpoint.offset);
        let Some(InterpreterState { lines, ended, tongue }) = saved else {
            let (found, expected) = (checkpoint.version.clone(), T::VERSION.to_owned());
            return Err(IncompatibleCheckpoint { found, expected });
        };
        *self = Self { lines: OutputLines::restore(lines), tongue, ended, over: false };
        Ok(())
    }
}

/// The state of an interpreter.
#[derive(Serialize, Deserialize)]
struct InterpreterState<T> {
    lines: OutputLinesCheckpoint,
    ended: u32,
    tongue: T,
}

/// Adds to an answer that comes in pieces, up to the longest line of other engines: beyond that, memory would have no
/// bound.
pub(crate) fn extend(answer: &mut String, piece: &str) {
    if answer.len() + piece.len() <= LONGEST {
        answer.push_str(piece);
    } else if !answer.ends_with(CUT) {
        answer.push_str(CUT);
    }
}

const CUT: &str = "\n[the rest of this answer is too long and is not kept]";

fn understand<T: LineProtocol>(tongue: &mut T, line: &OutputLine<'_>, facts: &mut FactSink) {
    (facts.offset, facts.index) = (line.end, 0);
    if line.lost > 0 {
        let lost = line.lost;
        facts.say(FactKind::Warning(format!(
            "a line of the engine's output is too long; {lost} bytes of it are lost"
        )));
    }
    if line.lost > 0 {
        let engine = T::VERSION.split_once('/').map_or(T::VERSION, |(name, _)| name);
        tongue.long_line(&LongLine { engine, head: line.bytes }, facts);
    } else if line.bytes.iter().all(u8::is_ascii_whitespace) {
        tongue.blank_line();
    } else {
        tongue.line(line.bytes, facts);
    }
}
