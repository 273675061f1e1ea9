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
    lines::{MAX_LINE_BYTES, OutputLine, OutputLines, OutputLinesCheckpoint},
};

/// Interprets the lines of an engine, and writes its input.
///
/// The implementation is serialised as the adapter's state in each checkpoint. It must therefore be small during a turn
/// and must not store reported facts.
pub(crate) trait LineProtocol: Debug + Send + Serialize + DeserializeOwned {
    /// The adapter's name and the version of its state. It changes when an older state would be misinterpreted.
    const VERSION: &'static str;

    /// Processes a line of output.
    fn on_line(&mut self, line: &[u8], facts: &mut FactSink);

    /// Processes a line that exceeds the size limit. The engine may wait for a response to it, or may have ended its
    /// turn with it. The implementation must ensure that the turn does not wait forever. The default is for programs
    /// that exit after their turn, whose exit status is enough.
    fn on_long_line(&mut self, line: &LongLine<'_>, facts: &mut FactSink) {
        self.on_line(line.head, facts);
    }

    /// Processes an empty line, which separates paragraphs of plain text. Most engines ignore it.
    fn on_blank_line(&mut self) {}

    /// Processes the exit of the process. All turns that it was given and that have not ended must end here.
    fn on_exit(&mut self, exit: &ProcessExit<'_>, facts: &mut FactSink);

    /// See [`ProcessInterpreter::status`]; not called after the exit of the process.
    fn status(&self) -> EngineSessionStatus;

    /// See [`ProcessInterpreter::encode_prompt`]. Most processes exit after one turn.
    fn encode_prompt(&mut self, _prompt: &str) -> Result<Vec<u8>, UnsupportedOperation> {
        Err(UnsupportedOperation::MissingAbility { ability: EngineAbility::Hold })
    }

    /// See [`ProcessInterpreter::encode_answer`]. Most engines never ask inside a turn.
    fn encode_answer(&mut self, _answer: &GateAnswer<'_>) -> Result<Vec<u8>, UnsupportedOperation> {
        Err(UnsupportedOperation::MissingAbility { ability: EngineAbility::Gates })
    }

    /// See [`ProcessInterpreter::encode_steer`]. Most engines read no input during a turn.
    fn encode_steer(&mut self, _text: &str) -> Result<Vec<u8>, UnsupportedOperation> {
        Err(UnsupportedOperation::MissingAbility { ability: EngineAbility::Steer })
    }

    /// See [`ProcessInterpreter::interrupt_method`].
    fn interrupt_method(&mut self) -> InterruptMethod;

    /// See [`ProcessInterpreter::shutdown_method`].
    fn shutdown_method(&mut self) -> ShutdownMethod;
}

/// A line that exceeds the size limit, of which only the beginning is kept.
#[derive(Debug)]
pub(crate) struct LongLine<'a> {
    /// Name of the engine that printed it.
    engine: &'static str,
    pub(crate) head: &'a [u8],
}

impl LongLine<'_> {
    /// The failure of a turn that depends on the line. `content` names the content of the line, such as "a message".
    pub(crate) fn failure(&self, content: &str) -> RunFailure {
        let (engine, max_mib) = (self.engine, MAX_LINE_BYTES >> 20);
        let message = format!(
            "{engine} sent {content} in a line of more than {max_mib} MiB, the maximum length of a line; give it a \
             smaller task, or tell it to write smaller files and messages"
        );
        RunFailure::new(FailureCode::EngineFailed, message)
    }

    /// The response to a request that was not read.
    pub(crate) fn refusal() -> String {
        format!(
            "The request was declined without asking a person: it is longer than {} MiB, the limit of this \
             client. Make it smaller.",
            MAX_LINE_BYTES >> 20
        )
    }
}

/// Collects the facts of one line, each with its position.
#[derive(Debug)]
pub(crate) struct FactSink {
    facts: Vec<EngineFact>,
    /// Offset of the current line's end.
    offset: u64,
    index: u8,
    /// The last turn whose end was reported.
    last_ended_turn: u32,
}

/// A [`ProcessInterpreter`] for a [`LineProtocol`].
#[derive(Debug)]
pub(crate) struct LineInterpreter<T> {
    lines: OutputLines,
    protocol: T,
    last_ended_turn: u32,
    exited: bool,
}

impl FactSink {
    /// Adds a fact.
    pub(crate) fn push(&mut self, kind: FactKind) {
        // Facts beyond the largest index share the last position; the domain uses the first of them.
        let at = EngineFact::position(self.offset, self.index);
        self.index = self.index.saturating_add(1);
        self.facts.push(EngineFact { position: at, kind });
    }

    /// Ends a turn with this answer, which may be a question.
    pub(crate) fn end_turn_with_answer(&mut self, turn: u32, text: &str) {
        let recognized = asking::recognise(text);
        if let Some(warning) = recognized.warning {
            self.push(FactKind::Warning(warning));
        }
        self.end_turn(turn, recognized.outcome);
    }

    /// Ends a turn. A second end of the same turn is ignored.
    pub(crate) fn end_turn(&mut self, turn: u32, ending: TurnOutcome) {
        if turn > self.last_ended_turn {
            self.last_ended_turn = turn;
            self.push(FactKind::TurnEnded { turn, outcome: ending });
        }
    }

    /// Reports the start of a tool call as progress, with the command or the path that it is about.
    pub(crate) fn push_tool_call(&mut self, tool: &str, command: Option<&str>, path: Option<&str>) {
        self.push(FactKind::Progress(match (command, path) {
            (Some(command), _) => format!("runs {command}"),
            (None, Some(path)) => format!("{} {path}", tool.replace('_', " ")),
            (None, None) => tool.replace('_', " "),
        }));
    }

    /// Reports an unknown line unchanged.
    pub(crate) fn push_unknown_line(&mut self, line: &[u8]) {
        self.push(FactKind::UnknownLine(String::from_utf8_lossy(line).into_owned()));
    }
}

impl<T: LineProtocol> LineInterpreter<T> {
    pub(crate) fn new(protocol: T) -> Self {
        Self { lines: OutputLines::default(), protocol, last_ended_turn: 0, exited: false }
    }
}

impl<T: LineProtocol> ProcessInterpreter for LineInterpreter<T> {
    fn feed(&mut self, bytes: &[u8]) -> Vec<EngineFact> {
        let mut facts =
            FactSink { facts: vec![], offset: 0, index: 0, last_ended_turn: self.last_ended_turn };
        self.lines.feed(bytes, |line| read_line(&mut self.protocol, &line, &mut facts));
        self.last_ended_turn = facts.last_ended_turn;
        facts.facts
    }

    fn on_exit(&mut self, exit: &ProcessExit<'_>) -> Vec<EngineFact> {
        let mut facts =
            FactSink { facts: vec![], offset: 0, index: 0, last_ended_turn: self.last_ended_turn };
        if std::mem::replace(&mut self.exited, true) {
            return facts.facts;
        }
        self.lines.finish(|line| read_line(&mut self.protocol, &line, &mut facts));
        (facts.offset, facts.index) = (self.lines.received_bytes() + 1, 0);
        self.protocol.on_exit(exit, &mut facts);
        self.last_ended_turn = facts.last_ended_turn;
        facts.facts
    }

    fn status(&self) -> EngineSessionStatus {
        if self.exited { EngineSessionStatus::Exited } else { self.protocol.status() }
    }

    fn encode_prompt(&mut self, prompt: &str) -> Result<Vec<u8>, UnsupportedOperation> {
        self.protocol.encode_prompt(prompt)
    }

    fn encode_answer(&mut self, answer: &GateAnswer<'_>) -> Result<Vec<u8>, UnsupportedOperation> {
        self.protocol.encode_answer(answer)
    }

    fn encode_steer(&mut self, text: &str) -> Result<Vec<u8>, UnsupportedOperation> {
        self.protocol.encode_steer(text)
    }

    fn interrupt_method(&mut self) -> InterruptMethod {
        self.protocol.interrupt_method()
    }

    fn shutdown_method(&mut self) -> ShutdownMethod {
        self.protocol.shutdown_method()
    }

    fn checkpoint(&self) -> Option<ReaderCheckpoint> {
        if self.exited {
            return None;
        }
        let lines = self.lines.checkpoint();
        let offset = lines.offset;
        let state = serde_json::to_string(&InterpreterState {
            lines,
            last_ended_turn: self.last_ended_turn,
            protocol: &self.protocol,
        })
        .ok()?;
        Some(ReaderCheckpoint { version: T::VERSION.to_owned(), offset, state })
    }

    fn restore(&mut self, checkpoint: &ReaderCheckpoint) -> Result<(), IncompatibleCheckpoint> {
        let saved = (checkpoint.version == T::VERSION)
            .then(|| serde_json::from_str::<InterpreterState<T>>(&checkpoint.state).ok())
            .flatten()
            .filter(|saved| saved.lines.offset == checkpoint.offset);
        let Some(InterpreterState { lines, last_ended_turn, protocol }) = saved else {
            let (found, expected) = (checkpoint.version.clone(), T::VERSION.to_owned());
            return Err(IncompatibleCheckpoint { found, expected });
        };
        *self = Self { lines: OutputLines::restore(lines), protocol, last_ended_turn, exited: false };
        Ok(())
    }
}

/// The checkpoint of an interpreter.
#[derive(Serialize, Deserialize)]
struct InterpreterState<T> {
    lines: OutputLinesCheckpoint,
    last_ended_turn: u32,
    protocol: T,
}

/// Maximum length of an answer that is collected from chunks, in bytes. The daemon records at most as much of an answer.
const MAX_COLLECTED_BYTES: usize = 2 << 20;

/// Appends a chunk to an answer, up to the size limit, so that memory is bounded.
pub(crate) fn append_bounded(answer: &mut String, piece: &str) {
    if answer.len() + piece.len() <= MAX_COLLECTED_BYTES {
        answer.push_str(piece);
    } else if !answer.ends_with(TRUNCATION_NOTE) {
        answer.push_str(TRUNCATION_NOTE);
    }
}

const TRUNCATION_NOTE: &str = "\n[the rest of this answer is too long and is not kept]";

fn read_line<T: LineProtocol>(protocol: &mut T, line: &OutputLine<'_>, facts: &mut FactSink) {
    (facts.offset, facts.index) = (line.end, 0);
    if line.discarded_bytes > 0 {
        let lost_bytes = line.discarded_bytes;
        facts.push(FactKind::Warning(format!(
            "a line of the engine's output is too long; {lost_bytes} bytes of it are lost"
        )));
    }
    if line.discarded_bytes > 0 {
        let engine = T::VERSION.split_once('/').map_or(T::VERSION, |(name, _)| name);
        protocol.on_long_line(&LongLine { engine, head: line.bytes }, facts);
    } else if line.bytes.iter().all(u8::is_ascii_whitespace) {
        protocol.on_blank_line();
    } else {
        protocol.on_line(line.bytes, facts);
    }
}
