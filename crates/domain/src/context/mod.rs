//! What an approval covers, complete, and the one text that people read of it (SECURITY finding 8).
//!
//! An adapter fills a [`ApprovalContext`] with everything that a yes would permit. The prompt of the question is the text of the
//! context and nothing else, so no surface can show less than another. How characters are made visible is in [`visible`].

mod text;
pub mod visible;

use alloc::{boxed::Box, string::String, vec::Vec};
use core::fmt;

use serde::{Deserialize, Serialize};

use crate::interaction::{DecisionPolicy, InteractionKind, InteractionOption, Question};

/// The longest prompt of a question, in bytes, and the most that a question's context may hold. What is longer is kept
/// as content of its own and read separately.
pub const MAX_SHOWN_BYTES: usize = 64 << 10;

/// What an approval covers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalContext {
    /// What would be done.
    pub subject: ApprovalSubject,
    /// The engine's name for the tool that would do it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// What the engine says about it in its own words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
    /// Every other part of the request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rest: Vec<RequestField>,
    /// Whether texts were shortened because the whole is too large; it is then the interaction's content.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub cut: bool,
}

/// What would be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ApprovalSubject {
    /// A command is run.
    Command {
        /// The command.
        line: CommandLine,
        /// The directory that it is run in, if the engine tells it.
        cwd: Option<String>,
    },
    /// Files are changed.
    FileChange {
        /// Each file with its change.
        files: Vec<FileChange>,
    },
    /// A tool is used.
    Tool {
        /// Its name.
        name: String,
        /// What it is called with.
        input: Vec<RequestField>,
    },
}

/// A command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommandLine {
    /// A text that a shell reads.
    Shell(String),
    /// A program and its arguments.
    Argv(Vec<String>),
}

/// The change of one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileChange {
    /// The path as the engine gives it.
    pub path: String,
    /// What happens to the file.
    pub change: ChangeKind,
    /// The lines that go, with `-`, and those that come, with `+`.
    pub diff: String,
    /// Whether the diff was shortened.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub cut: bool,
}

/// What happens to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// It is written whole; whatever was there is replaced.
    Write,
    /// A part of it is replaced.
    Edit,
    /// It is removed.
    Delete,
}

/// A named value of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestField {
    /// The engine's name for it.
    pub name: String,
    /// The value.
    pub value: FieldValue,
}

/// A value of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FieldValue {
    /// A text.
    Text(String),
    /// Anything else, as JSON text.
    Json(String),
}

/// Content that is too long for a question and is kept apart from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HiddenContent {
    /// How many bytes of the content the prompt does not show.
    pub bytes: u64,
    /// How many bytes the content has.
    pub content_bytes: u64,
    /// The SHA-256 of the content, 64 hexadecimal digits.
    pub sha256: String,
}

impl HiddenContent {
    /// The digits that a yes to this content must name.
    pub fn digits(&self) -> &str {
        self.sha256.get(..8).unwrap_or(&self.sha256)
    }
}

impl ApprovalContext {
    /// A context about this and nothing else.
    pub fn new(subject: ApprovalSubject) -> Self {
        Self { subject, tool: None, remarks: Vec::new(), rest: Vec::new(), cut: false }
    }

    /// The question whether a person permits this. Its prompt is the text of the context, or the beginning of it; see
    /// [`MAX_SHOWN_BYTES`].
    pub fn into_question(self, options: Vec<InteractionOption>, ui_hints: Option<String>) -> Question {
        Question {
            kind: InteractionKind::Confirm,
            prompt: self.beginning(),
            options,
            ui_hints,
            default_decision_policy: DecisionPolicy::SafeDefault,
            context: Some(Box::new(self)),
            hidden: None,
        }
    }

    /// The text, up to [`MAX_SHOWN_BYTES`].
    fn beginning(&self) -> String {
        let mut room = BoundedWriter { text: String::new(), left: MAX_SHOWN_BYTES };
        // It ends early where there is no more room.
        fmt::Write::write_fmt(&mut room, format_args!("{self}")).ok();
        room.text
    }

    /// How many bytes the texts in it have.
    pub fn text_bytes(&self) -> usize {
        let fields = |fields: &[RequestField]| -> usize {
            fields.iter().map(|field| field.name.len() + field.value.text().len() + FIELD_BYTES).sum()
        };
        let subject = match &self.subject {
            ApprovalSubject::Command { line: CommandLine::Shell(shell), cwd } => {
                shell.len() + cwd.as_ref().map_or(0, String::len)
            }
            ApprovalSubject::Command { line: CommandLine::Argv(argv), cwd } => {
                argv.iter().map(|word| word.len() + 1).sum::<usize>() + cwd.as_ref().map_or(0, String::len)
            }
            ApprovalSubject::FileChange { files } => {
                files.iter().map(|file| file.path.len() + file.diff.len() + FIELD_BYTES).sum()
            }
            ApprovalSubject::Tool { name, input } => name.len() + fields(input),
        };
        subject
            + self.tool.as_ref().map_or(0, String::len)
            + self.remarks.iter().map(|remark| remark.len() + 1).sum::<usize>()
            + fields(&self.rest)
    }

    /// The same with every text shortened, so that all of them together stay below `bytes`. Says so in
    /// [`ApprovalContext::cut`].
    #[must_use]
    pub fn shortened(mut self, bytes: usize) -> Self {
        let mut room = bytes;
        let files = match &mut self.subject {
            ApprovalSubject::Command { line, cwd } => {
                match line {
                    CommandLine::Shell(shell) => shorten(shell, &mut room),
                    CommandLine::Argv(argv) => {
                        argv.truncate(MAX_ITEMS);
                        argv.iter_mut().for_each(|word| shorten(word, &mut room));
                    }
                }
                if let Some(cwd) = cwd {
                    shorten(cwd, &mut room);
                }
                None
            }
            ApprovalSubject::FileChange { files } => Some(files),
            ApprovalSubject::Tool { name, input } => {
                shorten(name, &mut room);
                shorten_fields(input, &mut room);
                None
            }
        };
        if let Some(files) = files {
            files.truncate(MAX_ITEMS);
            for file in files {
                shorten(&mut file.path, &mut room);
                let whole = file.diff.len();
                shorten(&mut file.diff, &mut room);
                file.cut |= file.diff.len() < whole;
            }
        }
        if let Some(tool) = &mut self.tool {
            shorten(tool, &mut room);
        }
        self.remarks.truncate(MAX_ITEMS);
        self.remarks.iter_mut().for_each(|remark| shorten(remark, &mut room));
        shorten_fields(&mut self.rest, &mut room);
        self.cut = true;
        self
    }
}

/// What a field costs beside its texts.
const FIELD_BYTES: usize = 32;
/// How many parts of one kind a shortened context has.
const MAX_ITEMS: usize = 100;

fn shorten_fields(fields: &mut Vec<RequestField>, room: &mut usize) {
    fields.truncate(MAX_ITEMS);
    for field in fields {
        shorten(&mut field.name, room);
        let whole = field.value.text().len();
        let (FieldValue::Text(text) | FieldValue::Json(text)) = &mut field.value;
        shorten(text, room);
        // A piece of JSON is no JSON.
        if text.len() < whole {
            field.value = FieldValue::Text(core::mem::take(text));
        }
    }
}

/// Cuts a text to at most half of the room that is left, so that later texts get some too.
fn shorten(text: &mut String, room: &mut usize) {
    let most = (*room / 2).min(text.len());
    text.truncate(text.floor_char_boundary(most));
    text.shrink_to_fit();
    *room -= text.len();
}

impl FieldValue {
    /// The text, or the JSON.
    pub fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Json(text) => text,
        }
    }
}

/// Takes text up to a number of bytes, and then no more.
struct BoundedWriter {
    text: String,
    left: usize,
}

impl fmt::Write for BoundedWriter {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        let fits = piece.floor_char_boundary(self.left.min(piece.len()));
        self.text.push_str(piece.get(..fits).unwrap_or_default());
        self.left -= fits;
        if fits < piece.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
