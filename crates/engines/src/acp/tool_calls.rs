//! The subject of a permission request: the tool call in it, completed from earlier updates about the call.
//!
//! The protocol allows a request to omit fields that an earlier update contained. Updates are therefore remembered,
//! within a limit. A request about a call whose input was dropped cannot be shown completely, so it is not put to a
//! person.

use std::collections::BTreeMap;

use abide_domain::context::{
    ApprovalContext, ApprovalSubject, ChangeKind, CommandLine, FieldValue, FileChange, RequestField,
};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::messages::parse_part;
use crate::request_fields::{self, JsonFields, JsonItems};

/// Size limit of all remembered calls, in bytes.
const MAX_REMEMBERED_BYTES: usize = 4 << 20;
/// Maximum number of remembered calls.
const MAX_REMEMBERED_CALLS: usize = 1_000;

/// Maximum length of a remembered call's id, in bytes.
const MAX_ID_BYTES: usize = 1 << 10;

/// Announced calls that have not ended, by their ids.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct AnnouncedCalls {
    calls: BTreeMap<String, AnnouncedCall>,
    /// Whether calls of this turn were dropped because of the limits.
    lost: bool,
}

#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
struct AnnouncedCall {
    raw_input: Option<Box<RawValue>>,
    content: Option<Box<RawValue>>,
    /// Whether a part of the call was dropped because of the limits.
    #[serde(default)]
    lost: bool,
}

/// A request omits fields that were dropped because of the limits.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct IncompleteRequest;

impl AnnouncedCalls {
    /// Remembers an update about a call.
    pub(super) fn record(&mut self, id: &str, raw_input: Option<&RawValue>, content: Option<&RawValue>) {
        if raw_input.is_none() && content.is_none() {
            return;
        }
        let size = |raw: Option<&RawValue>| raw.map_or(0, |raw| raw.get().len());
        let held: usize = self
            .calls
            .iter()
            .map(|(id, call)| id.len() + size(call.raw_input.as_deref()) + size(call.content.as_deref()))
            .sum();
        let more = id.len() + size(raw_input) + size(content);
        let is_new = !self.calls.contains_key(id);
        if id.len() > MAX_ID_BYTES || (is_new && self.calls.len() >= MAX_REMEMBERED_CALLS) {
            self.lost = true;
            return;
        }
        let call = self.calls.entry(id.to_owned()).or_default();
        if held + more > MAX_REMEMBERED_BYTES {
            *call = AnnouncedCall { lost: true, ..AnnouncedCall::default() };
            return;
        }
        if let Some(raw) = raw_input {
            call.raw_input = Some(raw.to_owned());
        }
        if let Some(raw) = content {
            call.content = Some(raw.to_owned());
        }
    }

    /// Removes a call that has ended.
    pub(super) fn remove(&mut self, id: &str) {
        self.calls.remove(id);
    }

    /// Removes all calls at the end of a turn.
    pub(super) fn clear(&mut self) {
        self.calls.clear();
        self.lost = false;
    }
}

/// A text block in the content of a call.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AcpTextContent {
    #[serde(rename = "type")]
    _type: String,
    content: AcpTextBlock,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AcpTextBlock {
    #[serde(rename = "type")]
    _type: String,
    text: String,
}

/// The subject of a request, completed from the announced call.
pub(super) fn approval_context(
    call: Option<&RawValue>,
    announced: &AnnouncedCalls,
) -> Result<ApprovalContext, IncompleteRequest> {
    let mut call_fields = match call {
        Some(raw) => match JsonFields::of(raw) {
            Some(fields) => fields,
            None => return Ok(ApprovalContext::new(unnamed_tool(request_fields::fields("tool call", raw)))),
        },
        None => JsonFields::default(),
    };
    let id = call_fields.take_texts(["toolCallId"]).map(|[id]| id).unwrap_or_default();
    // The status of a requested call is always pending and carries no information.
    let _status = call_fields.take_texts(["status"]);
    let announced_call = announced.calls.get(&id);
    let own_input = call_fields.take("rawInput").filter(|raw| raw.get() != "null");
    let own_content = call_fields.take("content").filter(|raw| !matches!(raw.get(), "null" | "[]"));
    let is_lost = match announced_call {
        Some(announced_call) => announced_call.lost,
        None => announced.lost && own_content.is_none(),
    };
    if own_input.is_none() && is_lost {
        return Err(IncompleteRequest);
    }
    let input =
        own_input.or_else(|| announced_call.and_then(|announced_call| announced_call.raw_input.as_deref()));
    let content =
        own_content.or_else(|| announced_call.and_then(|announced_call| announced_call.content.as_deref()));
    let [title, kind, name] =
        ["title", "kind", "name"].map(|part| call_fields.take_texts([part]).map(|[text]| text));

    let (files, mut rest) = content.map(split_content).unwrap_or_default();
    let mut input_fields = input.map(|raw| JsonFields::of(raw).ok_or(raw));
    let subject = if !files.is_empty() {
        rest.extend(input.map(|raw| request_fields::field("rawInput", raw)));
        ApprovalSubject::FileChange { files }
    } else if let Some(line) = input_fields.as_mut().and_then(|fields| command(fields.as_mut().ok()?)) {
        let Some(Ok(mut fields)) = input_fields else { return Err(IncompleteRequest) };
        let cwd = fields.take_texts(["cwd"]).map(|[cwd]| cwd);
        rest.splice(0..0, fields.into_rest());
        ApprovalSubject::Command { line, cwd }
    } else {
        let input = match input_fields {
            Some(Ok(fields)) => fields.into_rest(),
            Some(Err(raw)) => vec![request_fields::field("rawInput", raw)],
            None => vec![],
        };
        let name = name.clone().or_else(|| kind.clone()).unwrap_or_else(|| "this tool".to_owned());
        ApprovalSubject::Tool { name, input }
    };
    let is_command = |text: &String| match &subject {
        ApprovalSubject::Command { line: CommandLine::Shell(shell), .. } => shell == text,
        ApprovalSubject::Command { .. }
        | ApprovalSubject::FileChange { .. }
        | ApprovalSubject::Tool { .. } => false,
    };
    let remarks = title.into_iter().filter(|title| !title.trim().is_empty() && !is_command(title)).collect();
    rest.extend(call_fields.into_rest().into_iter().filter(|field| field.value.text() != "[]"));
    let tool = match &subject {
        ApprovalSubject::Tool { .. } => None,
        ApprovalSubject::Command { .. } | ApprovalSubject::FileChange { .. } => name.or(kind),
    };
    Ok(ApprovalContext { tool, remarks, other_fields: rest, ..ApprovalContext::new(subject) })
}

fn unnamed_tool(input: Vec<RequestField>) -> ApprovalSubject {
    ApprovalSubject::Tool { name: "this tool".to_owned(), input }
}

/// The command in the input of a call, if there is one.
fn command(fields: &mut JsonFields<'_>) -> Option<CommandLine> {
    if let Some([shell]) = fields.take_texts(["command"]) {
        return Some(CommandLine::Shell(shell));
    }
    let argv = fields.take_list("command")?;
    Some(CommandLine::Argv(argv))
}

/// The file changes in the content of a call, and its other parts.
fn split_content(content: &RawValue) -> (Vec<FileChange>, Vec<RequestField>) {
    let Some(items) = JsonItems::of(content) else {
        return (vec![], vec![request_fields::field("content", content)]);
    };
    let (mut files, mut rest) = (vec![], vec![]);
    for item in items.0 {
        if let Some((file, more)) = file_change(item) {
            files.push(file);
            rest.extend(more);
        } else if let Some(block) = parse_part::<AcpTextContent>(Some(item)) {
            rest.push(RequestField {
                name: "content".to_owned(),
                value: FieldValue::Text(block.content.text),
            });
        } else {
            rest.push(request_fields::field("content", item));
        }
    }
    (files, rest)
}

/// The change of a file, and the remaining fields.
fn file_change(item: &RawValue) -> Option<(FileChange, Vec<RequestField>)> {
    let mut fields = JsonFields::of(item)?;
    let [kind, path, new] = fields.take_texts(["type", "path", "newText"])?;
    if kind != "diff" {
        return None;
    }
    let old = fields.take_texts(["oldText"]).map(|[old]| old);
    let change = if old.is_some() { ChangeKind::Edit } else { ChangeKind::Write };
    let diff = request_fields::diff(old.as_deref().unwrap_or_default(), &new);
    let more = fields.into_rest().into_iter().filter(|field| field.value.text() != "null");
    Some((FileChange { path, change, diff, truncated: false }, more.collect()))
}
