//! How the lines of Claude Code look, as far as they are read, and the lines that it is sent. What is not named here is
//! skipped unread.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

/// `system` of the subtypes that are read.
#[derive(Debug, Deserialize)]
pub(super) struct System<'a> {
    #[serde(borrow, default)]
    pub(super) subtype: Word<'a>,
    #[serde(borrow, default)]
    pub(super) session_id: Word<'a>,
    #[serde(borrow, default)]
    pub(super) tool_name: Word<'a>,
    #[serde(borrow, default)]
    pub(super) message: Word<'a>,
    #[serde(borrow, default)]
    pub(super) content: Word<'a>,
    #[serde(borrow, default)]
    pub(super) description: Word<'a>,
    #[serde(borrow, default)]
    pub(super) error: Word<'a>,
    pub(super) error_status: Option<u16>,
    pub(super) attempt: Option<u32>,
    pub(super) max_retries: Option<u32>,
    #[serde(default)]
    pub(super) tasks: Vec<IgnoredAny>,
}

/// `assistant` and `user`
#[derive(Debug, Deserialize)]
pub(super) struct Spoken<'a> {
    #[serde(borrow)]
    pub(super) message: Message<'a>,
    /// Set on everything that a subagent does or says.
    #[serde(borrow, default)]
    pub(super) parent_tool_use_id: Word<'a>,
    /// Not the model's words but the program's, about an error that the result will tell.
    #[serde(default)]
    pub(super) is_api_error_message: bool,
}

/// A message of the model or to it.
#[derive(Debug, Deserialize)]
pub(super) struct Message<'a> {
    #[serde(borrow, default)]
    pub(super) content: Blocks<'a>,
}

/// What a message consists of; a plain text counts as one block.
#[derive(Debug, Default)]
pub(super) struct Blocks<'a>(pub(super) Vec<Block<'a>>);

/// One part of a message.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Block<'a> {
    #[serde(borrow, rename = "type")]
    pub(super) kind: Cow<'a, str>,
    #[serde(borrow, default)]
    pub(super) text: Word<'a>,
    #[serde(borrow, default)]
    pub(super) name: Word<'a>,
    #[serde(borrow, default)]
    pub(super) tool_use_id: Word<'a>,
    #[serde(borrow, default)]
    pub(super) input: ToolInput<'a>,
}

/// What tells a person most about a tool's call.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ToolInput<'a> {
    #[serde(borrow)]
    command: Word<'a>,
    #[serde(borrow)]
    file_path: Word<'a>,
    #[serde(borrow)]
    notebook_path: Word<'a>,
    #[serde(borrow)]
    pattern: Word<'a>,
    #[serde(borrow)]
    path: Word<'a>,
    #[serde(borrow)]
    url: Word<'a>,
    #[serde(borrow)]
    query: Word<'a>,
    #[serde(borrow)]
    description: Word<'a>,
}

/// `result`, the one line whose type comes late
#[derive(Debug, Deserialize)]
pub(super) struct Outcome<'a> {
    #[serde(borrow, rename = "type")]
    pub(super) kind: Cow<'a, str>,
    pub(super) is_error: bool,
    #[serde(borrow, default)]
    pub(super) result: Word<'a>,
    #[serde(borrow, default)]
    pub(super) errors: Vec<Word<'a>>,
    #[serde(borrow, default)]
    pub(super) terminal_reason: Word<'a>,
    pub(super) api_error_status: Option<u16>,
    #[serde(borrow, default)]
    pub(super) permission_denials: Vec<Denial<'a>>,
    #[serde(borrow)]
    pub(super) origin: Option<Origin<'a>>,
}

/// A tool's call that was refused.
#[derive(Debug, Deserialize)]
pub(super) struct Denial<'a> {
    #[serde(borrow, default)]
    pub(super) tool_name: Word<'a>,
    #[serde(borrow, default)]
    pub(super) tool_input: ToolInput<'a>,
}

/// What made a turn begin, if it was no prompt of ours.
#[derive(Debug, Deserialize)]
pub(super) struct Origin<'a> {
    #[serde(borrow, default)]
    pub(super) kind: Word<'a>,
}

/// `control_request`. Rare, so that it may be owned.
#[derive(Debug, Deserialize)]
pub(super) struct ControlRequest {
    pub(super) request_id: String,
    pub(super) request: Request,
}

/// What the program wants from us.
#[derive(Debug, Deserialize)]
pub(super) struct Request {
    pub(super) subtype: String,
    #[serde(default)]
    pub(super) tool_name: String,
    pub(super) tool_use_id: Option<String>,
    pub(super) description: Option<String>,
    pub(super) decision_reason: Option<String>,
    /// As it was sent, so that what is permitted is exactly what was asked for.
    pub(super) input: Option<Box<RawValue>>,
}

/// `control_cancel_request`
#[derive(Debug, Deserialize)]
pub(super) struct ControlCancel {
    pub(super) request_id: String,
}

/// The input of `AskUserQuestion`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, serde::Serialize)]
pub(super) struct Asked {
    pub(super) questions: Vec<AskedQuestion>,
}

/// One of its questions.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AskedQuestion {
    pub(super) question: String,
    #[serde(default)]
    pub(super) multi_select: bool,
    #[serde(default)]
    pub(super) options: Vec<AskedOption>,
}

/// One of a question's suggestions.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, serde::Serialize)]
pub(super) struct AskedOption {
    pub(super) label: String,
    #[serde(default)]
    pub(super) description: String,
}

/// The line that begins a turn.
pub(super) fn prompt(text: &str) -> Vec<u8> {
    #[derive(Serialize)]
    struct Line<'a> {
        r#type: &'a str,
        message: Said<'a>,
    }
    #[derive(Serialize)]
    struct Said<'a> {
        role: &'a str,
        content: [Part<'a>; 1],
    }
    #[derive(Serialize)]
    struct Part<'a> {
        r#type: &'a str,
        text: &'a str,
    }
    let content = [Part { r#type: "text", text }];
    line(&Line { r#type: "user", message: Said { role: "user", content } })
}

/// The line that stops a turn.
pub(super) fn interruption(request_id: &str) -> Vec<u8> {
    #[derive(Serialize)]
    struct Line<'a> {
        r#type: &'a str,
        request_id: &'a str,
        request: Subtype<'a>,
    }
    #[derive(Serialize)]
    struct Subtype<'a> {
        subtype: &'a str,
    }
    line(&Line { r#type: "control_request", request_id, request: Subtype { subtype: "interrupt" } })
}

/// What a request for permission is answered with.
#[derive(Debug, Serialize)]
#[serde(tag = "behavior", rename_all = "lowercase")]
pub(super) enum Permission<'a> {
    Allow {
        #[serde(rename = "updatedInput")]
        updated_input: &'a RawValue,
    },
    Deny {
        message: &'a str,
    },
}

/// The line that answers a request.
pub(super) fn response(request_id: &str, response: &Permission<'_>) -> Vec<u8> {
    control_response(&Reply::Success { request_id, response })
}

/// The line that says that a request is not understood. Without it the turn would wait for ever.
pub(super) fn refusal(request_id: &str, error: &str) -> Vec<u8> {
    control_response(&Reply::Error { request_id, error })
}

#[derive(Serialize)]
#[serde(tag = "subtype", rename_all = "lowercase")]
enum Reply<'a> {
    Success { request_id: &'a str, response: &'a Permission<'a> },
    Error { request_id: &'a str, error: &'a str },
}

fn control_response(response: &Reply<'_>) -> Vec<u8> {
    #[derive(Serialize)]
    struct Line<'a> {
        r#type: &'a str,
        response: &'a Reply<'a>,
    }
    line(&Line { r#type: "control_response", response })
}

fn line(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(value).expect("texts and JSON values can always be written as JSON");
    bytes.push(b'\n');
    bytes
}

impl ToolInput<'_> {
    /// The first line of what tells most, short enough to be shown.
    pub(super) fn gist(&self) -> Option<String> {
        let told = [
            &self.command,
            &self.file_path,
            &self.notebook_path,
            &self.pattern,
            &self.path,
            &self.url,
            &self.query,
            &self.description,
        ];
        told.into_iter().find_map(Word::get).and_then(|text| text.lines().next()).map(|line| shown(line, 200))
    }
}

/// At most so many characters of a text, and a sign if there are more.
pub(super) fn shown(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some((at, _)) => format!("{}…", text.get(..at).unwrap_or_default()),
    }
}

/// A text where there may be none, or anything else, which then counts as none: one odd field must not cost the line.
#[derive(Debug, Default)]
pub(super) struct Word<'a>(Option<Cow<'a, str>>);

impl Word<'_> {
    pub(super) fn get(&self) -> Option<&str> {
        self.0.as_deref()
    }

    pub(super) fn or_empty(&self) -> &str {
        self.get().unwrap_or_default()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Word<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WordVisitor)
    }
}

struct WordVisitor;

impl<'de> Visitor<'de> for WordVisitor {
    type Value = Word<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("anything")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Word(Some(Cow::Borrowed(text))))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Word(Some(Cow::Owned(text.to_owned()))))
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Word(None))
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
        Ok(Word(None))
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Self::Value, E> {
        Ok(Word(None))
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Self::Value, E> {
        Ok(Word(None))
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
        Ok(Word(None))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Word(None))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Word(None))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Blocks<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(BlocksVisitor)
    }
}

struct BlocksVisitor;

impl<'de> Visitor<'de> for BlocksVisitor {
    type Value = Blocks<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a text or a list of blocks")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(plain(Cow::Borrowed(text)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(plain(Cow::Owned(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut blocks = vec![];
        while let Some(block) = items.next_element()? {
            blocks.push(block);
        }
        Ok(Blocks(blocks))
    }
}

fn plain(text: Cow<'_, str>) -> Blocks<'_> {
    Blocks(vec![Block { kind: Cow::Borrowed("text"), text: Word(Some(text)), ..Block::default() }])
}
