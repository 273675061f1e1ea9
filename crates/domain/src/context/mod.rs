//! The complete scope of an approval, and its only textual form (SECURITY finding 8).
//!
//! An adapter fills an [`ApprovalContext`] with everything that a yes would permit. The prompt of the question is the
//! text of the context, so no surface can show less than another. Escaping is in [`visible`].

mod text;
pub mod visible;

use alloc::{boxed::Box, string::String, vec::Vec};
use core::fmt;

use serde::{Deserialize, Serialize};

use crate::interaction::{DecisionPolicy, InteractionKind, InteractionOption, Question};

/// The size limit of a question's prompt and of its context, in bytes. Longer texts are stored as separate content.
pub const MAX_SHOWN_BYTES: usize = 64 << 10;

/// The scope of an approval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalContext {
    /// The action to be permitted.
    pub subject: ApprovalSubject,
    /// The engine's name for the tool that performs the action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// The engine's own description of the action.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
    /// All other fields of the request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_fields: Vec<RequestField>,
    /// Whether texts were shortened because the request is too large. The complete text is then the interaction's
    /// content.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub truncated: bool,
}

/// The action to be permitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ApprovalSubject {
    /// Running a command.
    Command {
        line: CommandLine,
        /// The working directory, if the engine reports it.
        cwd: Option<String>,
    },
    FileChange {
        /// One entry per file.
        files: Vec<FileChange>,
    },
    /// Using a tool.
    Tool {
        name: String,
        /// The arguments of the tool.
        input: Vec<RequestField>,
    },
}

/// A command in one of two forms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommandLine {
    /// A text that is parsed by a shell.
    Shell(String),
    /// A program and its arguments.
    Argv(Vec<String>),
}

/// The change of one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileChange {
    /// The path as reported by the engine.
    pub path: String,
    pub change: ChangeKind,
    /// Removed lines begin with `-`, added lines with `+`.
    pub diff: String,
    /// Whether the diff was shortened.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub truncated: bool,
}

/// The kind of change to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// The whole file is written; previous contents are replaced.
    Write,
    /// A part of the file is replaced.
    Edit,
    /// The file is deleted.
    Delete,
}

/// A named value of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestField {
    /// The engine's name for the field.
    pub name: String,
    pub value: FieldValue,
}

/// The value of a field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FieldValue {
    Text(String),
    /// Any other value, as JSON text.
    Json(String),
}

/// Content that is too long for a question and is stored separately.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HiddenContent {
    /// The number of bytes that the prompt does not show.
    pub bytes: u64,
    /// The total number of bytes.
    pub content_bytes: u64,
    /// 64 hexadecimal digits.
    pub sha256: String,
}

impl HiddenContent {
    /// The digits that a yes to this content must include.
    pub fn approval_digits(&self) -> &str {
        self.sha256.get(..8).unwrap_or(&self.sha256)
    }
}

impl ApprovalContext {
    /// A context with this action and no further fields.
    pub fn new(subject: ApprovalSubject) -> Self {
        Self { subject, tool: None, remarks: Vec::new(), other_fields: Vec::new(), truncated: false }
    }

    /// The question that asks for this permission. Its prompt is the text of the context, cut at [`MAX_SHOWN_BYTES`].
    pub fn into_question(self, options: Vec<InteractionOption>, ui_hints: Option<String>) -> Question {
        Question {
            kind: InteractionKind::Confirm,
            prompt: self.truncated_text(),
            options,
            ui_hints,
            default_decision_policy: DecisionPolicy::SafeDefault,
            context: Some(Box::new(self)),
            hidden: None,
        }
    }

    /// The text, cut at [`MAX_SHOWN_BYTES`].
    fn truncated_text(&self) -> String {
        let mut remaining_bytes = BoundedWriter { text: String::new(), remaining_bytes: MAX_SHOWN_BYTES };
        // The writer fails when the limit is reached; the text is then cut.
        fmt::Write::write_fmt(&mut remaining_bytes, format_args!("{self}")).ok();
        remaining_bytes.text
    }

    /// The total number of bytes of all texts.
    pub fn text_bytes(&self) -> usize {
        let fields = |fields: &[RequestField]| -> usize {
            fields
                .iter()
                .map(|field| field.name.len() + field.value.text().len() + FIELD_OVERHEAD_BYTES)
                .sum()
        };
        let subject = match &self.subject {
            ApprovalSubject::Command { line: CommandLine::Shell(shell), cwd } => {
                shell.len() + cwd.as_ref().map_or(0, String::len)
            }
            ApprovalSubject::Command { line: CommandLine::Argv(argv), cwd } => {
                argv.iter().map(|word| word.len() + 1).sum::<usize>() + cwd.as_ref().map_or(0, String::len)
            }
            ApprovalSubject::FileChange { files } => {
                files.iter().map(|file| file.path.len() + file.diff.len() + FIELD_OVERHEAD_BYTES).sum()
            }
            ApprovalSubject::Tool { name, input } => name.len() + fields(input),
        };
        subject
            + self.tool.as_ref().map_or(0, String::len)
            + self.remarks.iter().map(|remark| remark.len() + 1).sum::<usize>()
            + fields(&self.other_fields)
    }

    /// The same context with its texts shortened, so that their total stays below `bytes`. Sets
    /// [`ApprovalContext::truncated`].
    #[must_use]
    pub fn shortened(mut self, bytes: usize) -> Self {
        let mut remaining_bytes = bytes;
        let files = match &mut self.subject {
            ApprovalSubject::Command { line, cwd } => {
                match line {
                    CommandLine::Shell(shell) => shorten(shell, &mut remaining_bytes),
                    CommandLine::Argv(argv) => {
                        argv.truncate(MAX_LIST_ITEMS);
                        argv.iter_mut().for_each(|word| shorten(word, &mut remaining_bytes));
                    }
                }
                if let Some(cwd) = cwd {
                    shorten(cwd, &mut remaining_bytes);
                }
                None
            }
            ApprovalSubject::FileChange { files } => Some(files),
            ApprovalSubject::Tool { name, input } => {
                shorten(name, &mut remaining_bytes);
                shorten_fields(input, &mut remaining_bytes);
                None
            }
        };
        if let Some(files) = files {
            files.truncate(MAX_LIST_ITEMS);
            for file in files {
                shorten(&mut file.path, &mut remaining_bytes);
                let full_bytes = file.diff.len();
                shorten(&mut file.diff, &mut remaining_bytes);
                file.truncated |= file.diff.len() < full_bytes;
            }
        }
        if let Some(tool) = &mut self.tool {
            shorten(tool, &mut remaining_bytes);
        }
        self.remarks.truncate(MAX_LIST_ITEMS);
        self.remarks.iter_mut().for_each(|remark| shorten(remark, &mut remaining_bytes));
        shorten_fields(&mut self.other_fields, &mut remaining_bytes);
        self.truncated = true;
        self
    }
}

/// The overhead that is counted per field, in bytes.
const FIELD_OVERHEAD_BYTES: usize = 32;
/// The maximum number of entries per list in a shortened context.
const MAX_LIST_ITEMS: usize = 100;

fn shorten_fields(fields: &mut Vec<RequestField>, remaining_bytes: &mut usize) {
    fields.truncate(MAX_LIST_ITEMS);
    for field in fields {
        shorten(&mut field.name, remaining_bytes);
        let full_bytes = field.value.text().len();
        let (FieldValue::Text(text) | FieldValue::Json(text)) = &mut field.value;
        shorten(text, remaining_bytes);
        // A part of a JSON text is not valid JSON, so it becomes a text.
        if text.len() < full_bytes {
            field.value = FieldValue::Text(core::mem::take(text));
        }
    }
}

/// Cuts a text to at most half of the remaining space, so that later texts are shown too.
fn shorten(text: &mut String, remaining_bytes: &mut usize) {
    let most = (*remaining_bytes / 2).min(text.len());
    text.truncate(text.floor_char_boundary(most));
    text.shrink_to_fit();
    *remaining_bytes -= text.len();
}

impl FieldValue {
    /// The text or the JSON text.
    pub fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Json(text) => text,
        }
    }
}

/// A writer that fails when a number of bytes is exceeded.
struct BoundedWriter {
    text: String,
    remaining_bytes: usize,
}

impl fmt::Write for BoundedWriter {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        let fits = piece.floor_char_boundary(self.remaining_bytes.min(piece.len()));
        self.text.push_str(piece.get(..fits).unwrap_or_default());
        self.remaining_bytes -= fits;
        if fits < piece.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
