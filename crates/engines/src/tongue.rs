//! The shared frame of engines with line-based output: positions, unfinished lines, and exactly one end per turn.
//!
//! An adapter implements [`LineProtocol`], which interprets single lines.

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

/// Interprets the lines of an engine, and writes its input.
///
/// The implementation is serialised as the adapter's state in each checkpoint. It must therefore be small during a turn
/// and must not store reported facts.
pub(crate) trait LineProtocol: Debug + Send + Serialize + DeserializeOwned {
    /// The adapter's name and the version of its state. It changes when an older state would be misinterpreted.
    const VERSION: &'static str;

    /// Processes a line of output.
    fn line(&mut self, line: &[u8], facts: &mut FactSink);

    /// Processes a line that exceeds the size limit. The engine may wait for a response to it, or may have ended its
    /// turn with it. The implementation must ensure that the turn does not wait forever. The default is for programs
    /// that exit after their turn, whose exit status is enough.
    fn long_line(&mut self, line: &LongLine<'_>, facts: &mut FactSink) {
        self.line(line.head, facts);
    }

    /// Processes an empty line, which separates paragraphs of plain text. Most engines ignore it.
    fn blank_line(&mut self) {}

    /// Processes the exit of the process. All turns that it was given and that have not ended must end here.
    fn end(&mut self, departure: &ProcessExit<'_>, facts: &mut FactSink);

    /// See [`ProcessInterpreter::status`]; not called after the exit of the process.
    fn status(&self) -> EngineSessionStatus;

    /// See [`ProcessInterpreter::say`]. Most processes exit after one turn.
    fn say(&mut self, _prompt: &str) -> Result<Vec<u8>, UnsupportedOperation> {
        Err(UnsupportedOperation::Lacks { ability: EngineAbility::Hold })
    }

    /// See [`ProcessInterpreter::answer`]. Most engines never ask inside a turn.
    fn answer(&mut self, _answer: &GateAnswer<'_>) -> Result<Vec<u8>, UnsupportedOperation> {
        Err(UnsupportedOperation::Lacks { ability: EngineAbility::Gates })
    }

    /// See [`ProcessInterpreter::steer`]. Most engines read no input during a turn.
    fn steer(&mut self, _text: &str) -> Result<Vec<u8>, UnsupportedOperation> {
        Err(UnsupportedOperation::Lacks { ability: EngineAbility::Steer })
    }

    /// See [`ProcessInterpreter::interrupt`].
    fn interrupt(&mut self) -> InterruptMethod;

    /// See [`ProcessInterpreter::leave`].
    fn leave(&mut self) -> ShutdownMethod;
}

/// A line that exceeds the size limit, of which only the beginning is kept.
#[derive(Debug)]
pub(crate) struct LongLine<'a> {
    /// Name of the engine that printed it.
    engine: &'static str,
    pub(crate) head: &'a [u8],
}

impl LongLine<'_> {
    /// The failure of a turn that depends on the content of the line.
    pub(crate) fn failure(&self, what: &str) -> RunFailure {
        let (engine, most) = (self.engine, LONGEST >> 20);
        let message = format!(
            "{engine} sent {what} in one line of more than {most} MiB, which is the most that is read of a line; give it \
             a smaller task, or keep it from writing such large files and messages at once"
        );
        RunFailure::new(FailureCode::EngineFailed, message)
    }

    /// The response to a request that was not read.
    pub(crate) fn refusal() -> String {
        format!(
            "The request was declined without asking anybody: it is longer than {} MiB, which is the most that this \
             client reads. Make it smaller.",
            LONGEST >> 20
        )
    }
}

/// Collects the facts of one line, each with its position.
#[derive(Debug)]
pub(crate) struct FactSink {
    said: Vec<EngineFact>,
    /// Offset of the present line's end.
    offset: u64,
    index: u8,
    /// The last turn whose end was reported.
    ended: u32,
}

/// A [`ProcessInterpreter`] for a [`LineProtocol`].
#[derive(Debug)]
pub(crate) struct LineInterpreter<T> {
    lines: OutputLines,
    tongue: T,
    ended: u32,
    over: bool,
}

impl FactSink {
    /// Adds a fact.
    pub(crate) fn say(&mut self, what: FactKind) {
        // Facts beyond the largest index share the last position; the domain uses the first of them.
        let at = EngineFact::position(self.offset, self.index);
        self.index = self.index.saturating_add(1);
        self.said.push(EngineFact { at, what });
    }

    /// Ends a turn with this answer, which may be a question.
    pub(crate) fn answered(&mut self, turn: u32, text: &str) {
        let heard = asking::recognise(text);
        if let Some(warning) = heard.warning {
            self.say(FactKind::Warning(warning));
        }
        self.ended(turn, heard.ending);
    }

    /// Ends a turn. A second end of the same turn is ignored.
    pub(crate) fn ended(&mut self, turn: u32, ending: TurnOutcome) {
        if turn > self.ended {
            self.ended = turn;
            self.say(FactKind::Ended { turn, ending });
        }
    }

    /// Reports an unknown line unchanged.
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

/// The checkpoint of an interpreter.
#[derive(Serialize, Deserialize)]
struct InterpreterState<T> {
    lines: OutputLinesCheckpoint,
    ended: u32,
    tongue: T,
}

/// Appends a chunk to an answer, up to the size limit of a line, so that memory is bounded.
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
