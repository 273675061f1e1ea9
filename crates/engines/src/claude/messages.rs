//! The lines of Claude Code, as far as they are read, and the lines that are sent to it. Other fields are skipped.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

/// `system`, for the subtypes that are read.
#[derive(Debug, Deserialize)]
pub(super) struct ClaudeSystemLine<'a> {
    #[serde(borrow, default)]
    pub(super) subtype: LenientText<'a>,
    #[serde(borrow, default)]
    pub(super) session_id: LenientText<'a>,
    #[serde(borrow, default)]
    pub(super) tool_name: LenientText<'a>,
    #[serde(borrow, default)]
    pub(super) message: LenientText<'a>,
    #[serde(borrow, default)]
    pub(super) content: LenientText<'a>,
    #[serde(borrow, default)]
    pub(super) description: LenientText<'a>,
    #[serde(borrow, default)]
    pub(super) error: LenientText<'a>,
    pub(super) error_status: Option<u16>,
    pub(super) attempt: Option<u32>,
    pub(super) max_retries: Option<u32>,
    #[serde(default)]
    pub(super) tasks: Vec<IgnoredAny>,
}

/// `assistant` and `user`
#[derive(Debug, Deserialize)]
pub(super) struct ClaudeMessageLine<'a> {
    #[serde(borrow)]
    pub(super) message: ClaudeMessage<'a>,
    /// Set on all lines of a subagent.
    #[serde(borrow, default)]
    pub(super) parent_tool_use_id: LenientText<'a>,
    /// Whether the text is the program's own, about an error that the result will report.
    #[serde(default)]
    pub(super) is_api_error_message: bool,
}

/// A message from or to the model.
#[derive(Debug, Deserialize)]
pub(super) struct ClaudeMessage<'a> {
    #[serde(borrow, default)]
    pub(super) content: ClaudeBlocks<'a>,
}

/// The blocks of a message; plain text becomes one block.
#[derive(Debug, Default)]
pub(super) struct ClaudeBlocks<'a>(pub(super) Vec<ClaudeBlock<'a>>);

#[derive(Debug, Default, Deserialize)]
pub(super) struct ClaudeBlock<'a> {
    #[serde(borrow, rename = "type")]
    pub(super) kind: Cow<'a, str>,
    #[serde(borrow, default)]
    pub(super) text: LenientText<'a>,
    #[serde(borrow, default)]
    pub(super) name: LenientText<'a>,
    #[serde(borrow, default)]
    pub(super) tool_use_id: LenientText<'a>,
    #[serde(borrow, default)]
    pub(super) input: ClaudeToolInput<'a>,
}

/// The fields of a tool's input that are shown as progress.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ClaudeToolInput<'a> {
    #[serde(borrow)]
    command: LenientText<'a>,
    #[serde(borrow)]
    file_path: LenientText<'a>,
    #[serde(borrow)]
    notebook_path: LenientText<'a>,
    #[serde(borrow)]
    pattern: LenientText<'a>,
    #[serde(borrow)]
    path: LenientText<'a>,
    #[serde(borrow)]
    url: LenientText<'a>,
    #[serde(borrow)]
    query: LenientText<'a>,
    #[serde(borrow)]
    description: LenientText<'a>,
}

/// `result`, the only line whose type is not at the beginning.
#[derive(Debug, Deserialize)]
pub(super) struct ClaudeResultLine<'a> {
    #[serde(borrow, rename = "type")]
    pub(super) kind: Cow<'a, str>,
    pub(super) is_error: bool,
    #[serde(borrow, default)]
    pub(super) result: LenientText<'a>,
    #[serde(borrow, default)]
    pub(super) errors: Vec<LenientText<'a>>,
    #[serde(borrow, default)]
    pub(super) terminal_reason: LenientText<'a>,
    pub(super) api_error_status: Option<u16>,
    #[serde(borrow, default)]
    pub(super) permission_denials: Vec<PermissionDenial<'a>>,
    #[serde(borrow)]
    pub(super) origin: Option<TurnOrigin<'a>>,
}

/// A tool call that was refused.
#[derive(Debug, Deserialize)]
pub(super) struct PermissionDenial<'a> {
    #[serde(borrow, default)]
    pub(super) tool_name: LenientText<'a>,
    #[serde(borrow, default)]
    pub(super) tool_input: ClaudeToolInput<'a>,
}

/// The origin of a turn that was not started by a prompt.
#[derive(Debug, Deserialize)]
pub(super) struct TurnOrigin<'a> {
    #[serde(borrow, default)]
    pub(super) kind: LenientText<'a>,
}

/// `control_request`. It owns its data, because it is rare.
#[derive(Debug, Deserialize)]
pub(super) struct ControlRequest {
    pub(super) request_id: String,
    pub(super) request: ControlRequestBody,
}

/// The request in a `control_request`.
#[derive(Debug, Deserialize)]
pub(super) struct ControlRequestBody {
    pub(super) subtype: String,
    #[serde(default)]
    pub(super) tool_name: String,
    pub(super) tool_use_id: Option<String>,
    pub(super) description: Option<String>,
    pub(super) decision_reason: Option<String>,
    /// Raw JSON, so that exactly the requested input is permitted.
    pub(super) input: Option<Box<RawValue>>,
}

/// `control_cancel_request`
#[derive(Debug, Deserialize)]
pub(super) struct ControlCancel {
    pub(super) request_id: String,
}

/// The input of `AskUserQuestion`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, serde::Serialize)]
pub(super) struct AskUserQuestionInput {
    pub(super) questions: Vec<AskedQuestion>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AskedQuestion {
    pub(super) question: String,
    #[serde(default)]
    pub(super) multi_select: bool,
    #[serde(default)]
    pub(super) options: Vec<AskedOption>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, serde::Serialize)]
pub(super) struct AskedOption {
    pub(super) label: String,
    #[serde(default)]
    pub(super) description: String,
}

/// The line that starts a turn.
pub(super) fn prompt_line(text: &str) -> Vec<u8> {
    #[derive(Serialize)]
    struct PromptLine<'a> {
        r#type: &'a str,
        message: PromptMessage<'a>,
    }
    #[derive(Serialize)]
    struct PromptMessage<'a> {
        role: &'a str,
        content: [PromptPart<'a>; 1],
    }
    #[derive(Serialize)]
    struct PromptPart<'a> {
        r#type: &'a str,
        text: &'a str,
    }
    let content = [PromptPart { r#type: "text", text }];
    line(&PromptLine { r#type: "user", message: PromptMessage { role: "user", content } })
}

/// The line that interrupts a turn.
pub(super) fn interrupt_request(request_id: &str) -> Vec<u8> {
    #[derive(Serialize)]
    struct InterruptLine<'a> {
        r#type: &'a str,
        request_id: &'a str,
        request: InterruptBody<'a>,
    }
    #[derive(Serialize)]
    struct InterruptBody<'a> {
        subtype: &'a str,
    }
    line(&InterruptLine {
        r#type: "control_request",
        request_id,
        request: InterruptBody { subtype: "interrupt" },
    })
}

/// The response to a permission request.
#[derive(Debug, Serialize)]
#[serde(tag = "behavior", rename_all = "lowercase")]
pub(super) enum PermissionDecision<'a> {
    Allow {
        #[serde(rename = "updatedInput")]
        updated_input: &'a RawValue,
    },
    Deny {
        message: &'a str,
    },
}

/// The line that answers a request.
pub(super) fn permission_response(request_id: &str, response: &PermissionDecision<'_>) -> Vec<u8> {
    control_response(&ControlResponse::Success { request_id, response })
}

/// The line that refuses an unknown request. Without it the turn would wait forever.
pub(super) fn error_response(request_id: &str, error: &str) -> Vec<u8> {
    control_response(&ControlResponse::Error { request_id, error })
}

#[derive(Serialize)]
#[serde(tag = "subtype", rename_all = "lowercase")]
enum ControlResponse<'a> {
    Success { request_id: &'a str, response: &'a PermissionDecision<'a> },
    Error { request_id: &'a str, error: &'a str },
}

fn control_response(response: &ControlResponse<'_>) -> Vec<u8> {
    #[derive(Serialize)]
    struct ControlResponseLine<'a> {
        r#type: &'a str,
        response: &'a ControlResponse<'a>,
    }
    line(&ControlResponseLine { r#type: "control_response", response })
}

fn line(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(value).expect("texts and JSON values can always be written as JSON");
    bytes.push(b'\n');
    bytes
}

impl ClaudeToolInput<'_> {
    /// The first line of the most informative field, truncated for display.
    pub(super) fn summary(&self) -> Option<String> {
        let fields = [
            &self.command,
            &self.file_path,
            &self.notebook_path,
            &self.pattern,
            &self.path,
            &self.url,
            &self.query,
            &self.description,
        ];
        fields
            .into_iter()
            .find_map(LenientText::get)
            .and_then(|text| text.lines().next())
            .map(|line| truncate_for_display(line, 200))
    }
}

/// The first `max_chars` characters of a text, with an ellipsis if there are more.
pub(super) fn truncate_for_display(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        None => text.to_owned(),
        Some((at, _)) => format!("{}…", text.get(..at).unwrap_or_default()),
    }
}

/// An optional text that treats any other type as absent, so that one unexpected field does not invalidate the line.
#[derive(Debug, Default)]
pub(super) struct LenientText<'a>(Option<Cow<'a, str>>);

impl LenientText<'_> {
    pub(super) fn get(&self) -> Option<&str> {
        self.0.as_deref()
    }

    pub(super) fn or_empty(&self) -> &str {
        self.get().unwrap_or_default()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for LenientText<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LenientTextVisitor)
    }
}

struct LenientTextVisitor;

impl<'de> Visitor<'de> for LenientTextVisitor {
    type Value = LenientText<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("anything")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(LenientText(Some(Cow::Borrowed(text))))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(LenientText(Some(Cow::Owned(text.to_owned()))))
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(LenientText(None))
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
        Ok(LenientText(None))
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Self::Value, E> {
        Ok(LenientText(None))
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Self::Value, E> {
        Ok(LenientText(None))
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
        Ok(LenientText(None))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(LenientText(None))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(LenientText(None))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for ClaudeBlocks<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ClaudeBlocksVisitor)
    }
}

struct ClaudeBlocksVisitor;

impl<'de> Visitor<'de> for ClaudeBlocksVisitor {
    type Value = ClaudeBlocks<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a text or a list of blocks")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(text_block(Cow::Borrowed(text)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(text_block(Cow::Owned(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut blocks = vec![];
        while let Some(block) = items.next_element()? {
            blocks.push(block);
        }
        Ok(ClaudeBlocks(blocks))
    }
}

fn text_block(text: Cow<'_, str>) -> ClaudeBlocks<'_> {
    ClaudeBlocks(vec![ClaudeBlock {
        kind: Cow::Borrowed("text"),
        text: LenientText(Some(text)),
        ..ClaudeBlock::default()
    }])
}
