//! A request of an agent program to the model, in one format for all protocols.
//!
//! All text is kept. `user_text` decides which of it a person wrote; the protocol modules parse the formats.

use serde_json::Value;

use super::{user_text, wire::ModelProtocol};

/// One request to the model.
#[derive(Debug, Clone, PartialEq)]
pub struct ReceivedRequest {
    /// The index among all requests to this server, from 0.
    pub index: usize,
    pub protocol: ModelProtocol,
    /// Whether a streamed answer is requested.
    pub streaming: bool,
    /// The API key, from the header or parameter that the protocol uses.
    pub key: Option<String>,
    pub model: String,
    /// The instructions, joined if there are several.
    pub system: String,
    pub messages: Vec<ReceivedMessage>,
    /// The names of the offered tools.
    pub tools: Vec<String>,
    /// The JSON schema for the answer, if one was given.
    pub schema: Option<Value>,
    /// The unchanged request body.
    pub raw: Value,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ReceivedMessage {
    pub role: MessageRole,
    /// The text blocks, as split by the program.
    pub blocks: Vec<String>,
    pub tool_calls: Vec<ReceivedToolCall>,
    pub tool_results: Vec<ReceivedToolResult>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageRole {
    /// Instructions among the messages; some protocols use the role "developer".
    System,
    /// A person, or the program on their behalf.
    User,
    Assistant,
    /// A tool result, if the protocol has a role for it.
    Tool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ReceivedToolCall {
    pub id: String,
    pub tool: String,
    /// Parsed JSON, or a JSON string if the arguments are not JSON.
    pub args: Value,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedToolResult {
    pub id: String,
    pub text: String,
}

impl ReceivedRequest {
    /// Returns the texts that people wrote, oldest first, one entry per message. The program's own additions are left
    /// out.
    pub fn user_texts(&self) -> Vec<String> {
        self.messages.iter().filter_map(ReceivedMessage::user_text).collect()
    }

    /// Returns the number of messages that people wrote.
    pub fn user_count(&self) -> usize {
        self.user_texts().len()
    }

    /// Returns the newest text that a person wrote, or an empty string.
    pub fn last_user_text(&self) -> String {
        self.user_texts().pop().unwrap_or_default()
    }

    /// Returns the prompt to be answered now: the newest text of a person, unless a tool result came after it.
    pub fn current_prompt(&self) -> Option<String> {
        self.newest_user_message().filter(|at| self.newest_result() <= Some(*at))?;
        Some(self.last_user_text())
    }

    /// Whether the prompt to be answered now contains `text`.
    pub fn prompt_contains(&self, text: &str) -> bool {
        self.current_prompt().is_some_and(|prompt| prompt.contains(text))
    }

    /// Returns the tool results since the last message of the model, unless a person wrote after them.
    pub fn new_tool_results(&self) -> Vec<ReceivedToolResult> {
        if self.newest_result().is_none() || self.current_prompt().is_some() {
            return Vec::new();
        }
        let spoke = self.messages.iter().rposition(|message| message.role == MessageRole::Assistant);
        let since = spoke.map_or(0, |at| at + 1);
        self.messages[since..].iter().flat_map(|message| message.tool_results.clone()).collect()
    }

    /// Returns all tool results, oldest first.
    pub fn tool_results(&self) -> Vec<ReceivedToolResult> {
        self.messages.iter().flat_map(|message| message.tool_results.clone()).collect()
    }

    /// Returns all tool calls attributed to the model, oldest first.
    pub fn tool_calls(&self) -> Vec<ReceivedToolCall> {
        self.messages.iter().flat_map(|message| message.tool_calls.clone()).collect()
    }

    /// Returns all texts attributed to the model, oldest first.
    pub fn assistant_texts(&self) -> Vec<String> {
        let replies = self.messages.iter().filter(|message| message.role == MessageRole::Assistant);
        replies.map(ReceivedMessage::text).filter(|text| !text.is_empty()).collect()
    }

    /// Whether the request offers a tool of this name.
    pub fn offers(&self, tool: &str) -> bool {
        self.tools.iter().any(|offered| offered == tool)
    }

    /// Whether `text` occurs anywhere in the request.
    pub fn contains(&self, text: &str) -> bool {
        let contains_text = |message: &ReceivedMessage| {
            message.blocks.iter().any(|block| block.contains(text))
                || message.tool_results.iter().any(|result| result.text.contains(text))
        };
        self.system.contains(text) || self.messages.iter().any(contains_text)
    }

    /// Returns the newest text block that a person wrote. The prompt of a killed turn may be another block of the same
    /// message.
    pub(super) fn last_block(&self) -> String {
        let message = self.newest_user_message().map(|at| &self.messages[at]);
        let mut blocks = message.into_iter().flat_map(|message| message.blocks.iter().rev());
        blocks.find_map(|block| user_text::user_part(block)).unwrap_or_default()
    }

    fn newest_user_message(&self) -> Option<usize> {
        self.messages.iter().rposition(|message| message.user_text().is_some())
    }

    fn newest_result(&self) -> Option<usize> {
        self.messages.iter().rposition(|message| !message.tool_results.is_empty())
    }
}

impl ReceivedMessage {
    pub fn new(role: MessageRole) -> Self {
        Self { role, blocks: Vec::new(), tool_calls: Vec::new(), tool_results: Vec::new() }
    }

    /// Returns all text blocks, joined.
    pub fn text(&self) -> String {
        self.blocks.join("\n\n")
    }

    /// Returns the part that a person wrote, if any.
    fn user_text(&self) -> Option<String> {
        if self.role != MessageRole::User {
            return None;
        }
        let written: Vec<String> =
            self.blocks.iter().filter_map(|block| user_text::user_part(block)).collect();
        (!written.is_empty()).then(|| written.join("\n\n"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request_with(messages: Vec<ReceivedMessage>) -> ReceivedRequest {
        ReceivedRequest {
            index: 0,
            protocol: ModelProtocol::Chat,
            streaming: false,
            key: None,
            model: "m".to_owned(),
            system: String::new(),
            messages,
            tools: Vec::new(),
            schema: None,
            raw: json!({}),
        }
    }

    fn user(blocks: &[&str]) -> ReceivedMessage {
        ReceivedMessage {
            blocks: blocks.iter().map(|&block| block.to_owned()).collect(),
            ..ReceivedMessage::new(MessageRole::User)
        }
    }

    fn result(text: &str) -> ReceivedMessage {
        let result = ReceivedToolResult { id: "c1".to_owned(), text: text.to_owned() };
        ReceivedMessage { tool_results: vec![result], ..ReceivedMessage::new(MessageRole::Tool) }
    }

    #[test]
    fn a_text_is_asked_until_a_tool_reports() {
        let asking = request_with(vec![user(&["go"])]);
        assert_eq!(asking.current_prompt(), Some("go".to_owned()));
        assert_eq!(asking.new_tool_results(), []);
        let reported =
            request_with(vec![user(&["go"]), ReceivedMessage::new(MessageRole::Assistant), result("done")]);
        assert_eq!(reported.current_prompt(), None);
        assert_eq!(
            reported.new_tool_results(),
            [ReceivedToolResult { id: "c1".to_owned(), text: "done".to_owned() }]
        );
        assert_eq!(reported.last_user_text(), "go");
    }

    #[test]
    fn a_text_after_an_aborted_tool_is_asked() {
        let request = request_with(vec![
            user(&["go"]),
            ReceivedMessage::new(MessageRole::Assistant),
            result("aborted"),
            user(&["continue"]),
        ]);
        assert!(request.prompt_contains("on"));
        assert_eq!(request.new_tool_results(), []);
        assert_eq!(request.user_texts(), ["go", "continue"]);
    }

    #[test]
    fn text_added_by_the_program_is_not_user_text() {
        let request = request_with(vec![
            user(&["<environment_context>\n<cwd>x</cwd>\n</environment_context>"]),
            user(&["<system-reminder>be nice</system-reminder>", "hello"]),
        ]);
        assert_eq!(request.user_texts(), ["hello"]);
        assert!(request.contains("be nice"));
    }

    #[test]
    fn of_a_merged_message_the_last_piece_is_the_newest() {
        let request = request_with(vec![user(&["old", "new"])]);
        assert_eq!(request.user_texts(), ["old\n\nnew"]);
        assert_eq!(request.last_block(), "new");
    }
}
