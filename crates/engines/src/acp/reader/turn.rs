//! The state of one turn: its answer, and the progress texts.

use std::{borrow::Cow, collections::BTreeMap};

use abide_ports::engine::FactKind;

use crate::{
    acp::messages::{ContentBlock, PlanEntry, SessionUpdate, parse_part},
    line_protocol::{FactSink, append_bounded},
    request_fields::JsonItems,
};

/// Maximum number of running tools whose titles are remembered.
const MAX_RUNNING_TOOLS: usize = 1_000;

/// The state of the current turn.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct AcpTurn {
    pub(super) has_output: bool,
    pub(super) answer: String,
    /// The message that becomes the answer.
    message: Option<String>,
    /// Whether the next chunk of text begins another message.
    interrupted: bool,
    pub(super) is_thinking: bool,
    /// Whether the agent has reported an error of its thread.
    pub(super) is_broken: bool,
    /// The titles of running tools, by id.
    tools: BTreeMap<String, String>,
}

impl AcpTurn {
    pub(super) fn on_update(&mut self, update: &SessionUpdate<'_>, facts: &mut FactSink) {
        let thinks = update.session_update == "agent_thought_chunk";
        if thinks && !self.is_thinking {
            facts.push(FactKind::Progress("thinks".to_owned()));
        }
        self.is_thinking = thinks;
        match &*update.session_update {
            "agent_message_chunk" => {
                let text = parse_part::<ContentBlock<'_>>(update.content)
                    .map(|block| block.text)
                    .unwrap_or_default();
                self.on_text(text, update.message_id.as_deref(), facts);
            }
            "tool_call" | "tool_call_update" => {
                self.interrupted = true;
                if let Some(progress) = self.tool_progress(update) {
                    facts.push(FactKind::Progress(progress));
                }
            }
            "plan" => {
                let entries = update.entries.and_then(JsonItems::of).unwrap_or_default().0;
                let entries = entries.into_iter().filter_map(|raw| parse_part::<PlanEntry<'_>>(Some(raw)));
                let present = entries.filter(|entry| entry.status.as_deref() == Some("in_progress"));
                if let Some(text) = present.filter_map(|entry| entry.content).next() {
                    facts.push(FactKind::Progress(text.into_owned()));
                }
            }
            _ => {}
        }
    }

    pub(super) fn on_text(&mut self, text: Cow<'_, str>, message: Option<&str>, facts: &mut FactSink) {
        if text.is_empty() {
            return;
        }
        let another = message.is_some() && self.message.is_some() && self.message.as_deref() != message;
        if self.interrupted || another {
            self.answer.clear();
        }
        self.interrupted = false;
        if self.message.as_deref() != message {
            self.message = message.map(str::to_owned);
        }
        append_bounded(&mut self.answer, &text);
        facts.push(FactKind::Text(text.into_owned()));
    }

    /// The progress text of a tool update.
    fn tool_progress(&mut self, update: &SessionUpdate<'_>) -> Option<String> {
        let id = update.tool_call_id.as_deref().unwrap_or_default();
        let title = update.title.as_deref().filter(|title| !title.is_empty());
        let known_title = self.tools.get(id).map(String::as_str);
        match update.status.as_deref() {
            Some(status @ ("completed" | "failed")) => {
                let title = title.or(known_title).unwrap_or("a tool").to_owned();
                self.tools.remove(id);
                Some(format!("{title}: {status}"))
            }
            Some(_) | None => {
                let title = title.filter(|title| Some(*title) != known_title)?.to_owned();
                if self.tools.len() < MAX_RUNNING_TOOLS && id.len() + title.len() <= 1 << 10 {
                    self.tools.insert(id.to_owned(), title.clone());
                }
                Some(title)
            }
        }
    }

    pub(super) fn reset_answer(&mut self) {
        self.answer.clear();
        self.interrupted = true;
    }
}
