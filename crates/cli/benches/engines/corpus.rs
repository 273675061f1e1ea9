//! Large output of each agent program, built from recorded output: lines from the middle of turns, unchanged and
//! extended to the lengths of long messages and tool output.
//!
//! Lines are extended as text: serialising parsed JSON would reorder the keys, and interpreters look at the first one.

use std::{fs, path::Path};

use abide_domain::{
    effect::LaunchSession,
    engine::{EngineSessionHandle, HandleType, ProfileKind},
};
use abide_ports::engine::{Engine, EngineFact, FactKind, LaunchContext, ProcessInterpreter, PromptSource};
use abide_testkit::engine::RecordedProcess;

/// The lengths to which lines are extended, in bytes.
const LENGTHS: [usize; 7] = [200, 500, 1_000, 2_000, 5_000, 10_000, 20_000];

/// The input of one interpreter.
pub(crate) struct RecordedPassage {
    recording: RecordedProcess,
    /// Output before the middle; not timed.
    opening: Vec<u8>,
    /// Recorded lines of the middle.
    middle: Vec<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineLength {
    Recorded,
    Stretched,
}

impl RecordedPassage {
    /// Returns all passages of an engine.
    pub(crate) fn all(engine: &dyn Engine) -> Vec<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engines/transcripts").join(engine.name());
        let files = sorted(&folder).into_iter().flat_map(|version| sorted(&version));
        let recorded = files.filter(|file| file.extension().is_some_and(|kind| kind == "jsonl"));
        recorded.filter_map(|file| Self::of(engine, &file)).collect()
    }

    /// Returns the middle of one recorded process, if it has one.
    fn of(engine: &dyn Engine, file: &Path) -> Option<Self> {
        let story = RecordedProcess::new("", &fs::read(file).ok()?);
        let story = story.with_notes(&fs::read_to_string(file.with_extension("notes")).unwrap_or_default());
        let mut passage = Self { recording: story, opening: Vec::new(), middle: Vec::new() };
        let stdout = passage.recording.stdout.clone();
        let mut interpreter = passage.interpreter(engine, |_| {});
        let mut named = false;
        for line in stdout.split_inclusive(|byte| *byte == b'\n') {
            let facts = interpreter.feed(line);
            let has =
                |matches_kind: fn(&FactKind) -> bool| facts.iter().any(|facts| matches_kind(&facts.kind));
            if has(|kind| matches!(kind, FactKind::TurnEnded { .. } | FactKind::OutputComplete)) {
                break;
            }
            named = named || has(|kind| matches!(kind, FactKind::Session { .. }));
            let talk = |facts: &EngineFact| matches!(facts.kind, FactKind::Text(_) | FactKind::Progress(_));
            if named && facts.iter().all(talk) && !passage.is_answer(line) {
                passage.middle.push(line.to_vec());
            } else if passage.middle.is_empty() {
                passage.opening.extend_from_slice(line);
            }
        }
        (!passage.middle.is_empty()).then_some(passage)
    }

    /// Responses to our own requests occur once; repeated ones would be unknown.
    fn is_answer(&self, line: &[u8]) -> bool {
        let text = String::from_utf8_lossy(line);
        text.contains("\"jsonrpc\"") && !text.contains("\"method\"")
    }

    /// Creates an interpreter that has read the opening.
    pub(crate) fn interpreter_after_opening(&self, engine: &dyn Engine) -> Box<dyn ProcessInterpreter> {
        self.interpreter(engine, |interpreter| drop(interpreter.feed(&self.opening)))
    }

    fn interpreter(
        &self,
        engine: &dyn Engine,
        first: impl FnOnce(&mut dyn ProcessInterpreter),
    ) -> Box<dyn ProcessInterpreter> {
        let installation = engine.installation();
        let session = self.recording.resumes.as_ref().map_or(LaunchSession::New, |id| {
            LaunchSession::Resumed(EngineSessionHandle {
                engine: engine.name().to_owned(),
                handle_type: HandleType::SessionId,
                handle_value: id.clone(),
                created_at_turn: 1,
            })
        });
        let mut interpreter = engine.interpreter(&LaunchContext {
            installation: &installation,
            kind: self.recording.kind,
            session: &session,
            prompt: "hello",
            workspace: "/somewhere",
            private_dir: "/elsewhere",
            mode: self.recording.mode,
            model: None,
            sandbox: None,
            isolation: Default::default(),
            session_started_at: None,
            resume_detail: "",
            prompt_source: PromptSource::Message,
            skill: None,
        });
        first(&mut *interpreter);
        interpreter
    }

    /// Returns at least this many bytes of the middle, repeated; empty if none of its lines can have this length.
    pub(crate) fn repeated(&self, size: LineLength, min_bytes: usize) -> Vec<u8> {
        let lines: Vec<Vec<u8>> = match size {
            LineLength::Recorded => self.middle.clone(),
            LineLength::Stretched => {
                let stretched =
                    self.middle.iter().flat_map(|line| LENGTHS.map(|length| stretch_line(line, length)));
                stretched.filter(|line| line.len() >= LENGTHS[0]).collect()
            }
        };
        let bytes = lines.concat();
        if bytes.is_empty() { bytes } else { bytes.repeat(min_bytes.div_ceil(bytes.len())) }
    }

    pub(crate) fn is_held(&self) -> bool {
        self.recording.kind == ProfileKind::StickyProcess
    }
}

/// Extends a line by repeating its longest text, each time on a new line of the text.
fn stretch_line(line: &[u8], length: usize) -> Vec<u8> {
    let Some((from, to)) = longest_text(line) else { return line.to_vec() };
    let (Some(text), Some(before), Some(after)) = (line.get(from..to), line.get(..from), line.get(to..))
    else {
        return line.to_vec();
    };
    let text = if text.is_empty() { b"something to be said" } else { text };
    let mut stretched = before.to_vec();
    loop {
        stretched.extend_from_slice(text);
        if stretched.len() + after.len() >= length {
            break;
        }
        stretched.extend_from_slice(b"\\n");
    }
    stretched.extend_from_slice(after);
    stretched
}

/// Returns the position of the line's longest string value with text for people.
fn longest_text(line: &[u8]) -> Option<(usize, usize)> {
    let (mut best, mut at): (Option<(usize, usize)>, usize) = (None, 0);
    let mut key: &[u8] = b"";
    while let Some(quote) = line.get(at..)?.iter().position(|byte| *byte == b'"') {
        let from = at + quote + 1;
        let mut to = from;
        while *line.get(to)? != b'"' {
            to += if line.get(to) == Some(&b'\\') { 2 } else { 1 };
        }
        at = to + 1;
        if line.get(at) == Some(&b':') {
            key = line.get(from..to)?;
        } else if TEXT_KEYS.iter().any(|text_key| text_key.as_bytes() == key)
            && best.is_none_or(|(start, end)| to - from > end - start)
        {
            best = Some((from, to));
        }
    }
    best
}

/// The keys under which programs put long texts.
const TEXT_KEYS: [&str; 8] =
    ["text", "content", "output", "aggregated_output", "command", "rawOutput", "message", "snapshot"];

fn sorted(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut entries: Vec<_> =
        fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path()).collect();
    entries.sort();
    entries
}
