//! The answers of the model and their delivery: at once, slowly, late, or truncated.

use std::time::Duration;

use serde_json::{Value, json};

use super::gate::TestGate;

#[derive(Debug, Clone)]
pub struct ScriptedAnswer {
    pub(super) content: AnswerContent,
    pub(super) pacing: AnswerPacing,
    pub(super) usage: Option<AnswerUsage>,
    /// Replaces the true finish reason; only on chat completions.
    pub(super) finish: Option<String>,
    pub(super) form: AnswerForm,
}

/// In how many pieces an answer is sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum AnswerForm {
    /// Streamed if the request asks for it.
    #[default]
    AsAsked,
    /// One piece, even if a stream was requested. Some servers do this.
    Whole,
}

/// The token counts that an answer reports. The default is the request's length and a constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerUsage {
    pub input: u64,
    pub output: u64,
}

#[derive(Debug, Clone)]
pub(super) enum AnswerContent {
    Parts(Vec<AnswerPart>),
    /// An error in the protocol's own format.
    Status {
        code: u16,
        message: String,
        retry_after: Option<u64>,
    },
    /// A status with an arbitrary body.
    Raw {
        code: u16,
        body: String,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum AnswerPart {
    Say(String),
    Call {
        tool: String,
        args: Value,
    },
    /// A call of the shell tool that the program offers.
    Shell(String),
}

#[derive(Debug, Clone, Default)]
pub(super) struct AnswerPacing {
    /// Waited for before anything is sent, including the status line.
    pub gate_before: Option<TestGate>,
    /// The delay before anything is sent.
    pub delay: Duration,
    /// Waited for after half of the events.
    pub gate_midway: Option<TestGate>,
    /// The time between two events.
    pub pause: Duration,
    /// The number of body bytes after which the connection is closed.
    pub cut_after_bytes: Option<usize>,
}

impl ScriptedAnswer {
    pub fn say(text: impl Into<String>) -> Self {
        Self::parts(vec![AnswerPart::Say(text.into())])
    }

    pub fn call(tool: impl Into<String>, args: Value) -> Self {
        Self::parts(vec![AnswerPart::Call { tool: tool.into(), args }])
    }

    /// Answers with a call of the shell tool that the program offers, in that tool's format.
    pub fn shell(command: impl Into<String>) -> Self {
        Self::parts(vec![AnswerPart::Shell(command.into())])
    }

    /// Answers with an error in the protocol's own format.
    pub fn status(code: u16, message: impl Into<String>) -> Self {
        let content = AnswerContent::Status { code, message: message.into(), retry_after: None };
        Self::new(content)
    }

    /// Answers with a status and an arbitrary body, such as a proxy's page or half a JSON object.
    pub fn raw(code: u16, body: impl Into<String>) -> Self {
        Self::new(AnswerContent::Raw { code, body: body.into() })
    }

    /// Adds a text to the same answer.
    #[must_use]
    pub fn then_say(self, text: impl Into<String>) -> Self {
        self.with_part(AnswerPart::Say(text.into()))
    }

    /// Adds a tool call to the same answer.
    #[must_use]
    pub fn then_call(self, tool: impl Into<String>, args: Value) -> Self {
        self.with_part(AnswerPart::Call { tool: tool.into(), args })
    }

    /// Adds a shell command to the same answer.
    #[must_use]
    pub fn then_shell(self, command: impl Into<String>) -> Self {
        self.with_part(AnswerPart::Shell(command.into()))
    }

    /// Sets the `Retry-After` header; only for an error.
    #[must_use]
    pub fn retry_after(mut self, seconds: u64) -> Self {
        if let AnswerContent::Status { retry_after, .. } = &mut self.content {
            *retry_after = Some(seconds);
        }
        self
    }

    /// Sets the reported token counts.
    #[must_use]
    pub fn with_usage(mut self, input: u64, output: u64) -> Self {
        self.usage = Some(AnswerUsage { input, output });
        self
    }

    /// Sets the finish reason, such as `length`; only on chat completions.
    #[must_use]
    pub fn with_finish_reason(mut self, reason: impl Into<String>) -> Self {
        self.finish = Some(reason.into());
        self
    }

    /// Sends one JSON object even if a stream was requested.
    #[must_use]
    pub fn in_one_piece(mut self) -> Self {
        self.form = AnswerForm::Whole;
        self
    }

    /// Sends nothing before the gate opens.
    #[must_use]
    pub fn held_by(mut self, gate: &TestGate) -> Self {
        self.pacing.gate_before = Some(gate.clone());
        self
    }

    /// Sends half of the events at once, and the rest when the gate opens.
    #[must_use]
    pub fn held_midway(mut self, gate: &TestGate) -> Self {
        self.pacing.gate_midway = Some(gate.clone());
        self
    }

    /// Sends nothing before this delay has passed.
    #[must_use]
    pub fn delayed_by(mut self, delay: Duration) -> Self {
        self.pacing.delay = delay;
        self
    }

    /// Waits for this time between two events.
    #[must_use]
    pub fn paced_by(mut self, pause: Duration) -> Self {
        self.pacing.pause = pause;
        self
    }

    /// Closes the connection after this many bytes of the body, without a proper end.
    #[must_use]
    pub fn cut_after(mut self, bytes: usize) -> Self {
        self.pacing.cut_after_bytes = Some(bytes);
        self
    }

    /// Answers with a short value that matches the schema, or with a word if there is none; used for side requests.
    pub(super) fn minimal(schema: Option<&Value>) -> Self {
        Self::say(schema.map_or_else(|| "STUB".to_owned(), |schema| value_for_schema(schema).to_string()))
    }

    fn parts(parts: Vec<AnswerPart>) -> Self {
        Self::new(AnswerContent::Parts(parts))
    }

    fn new(content: AnswerContent) -> Self {
        Self {
            content,
            pacing: AnswerPacing::default(),
            usage: None,
            finish: None,
            form: AnswerForm::AsAsked,
        }
    }

    fn with_part(mut self, part: AnswerPart) -> Self {
        if let AnswerContent::Parts(parts) = &mut self.content {
            parts.push(part);
        }
        self
    }
}

/// Returns a value that matches a JSON schema of the simple kinds that agent programs use.
fn value_for_schema(schema: &Value) -> Value {
    if let Some(values) = schema["enum"].as_array() {
        // A program that asks for a verdict on an action is answered "deny", unless a script answers.
        let no = values.iter().find(|value| **value == "deny");
        return no.or(values.first()).cloned().unwrap_or_default();
    }
    // One service writes the type names in capitals.
    let kind = schema["type"].as_str().unwrap_or("object").to_lowercase();
    match kind.as_str() {
        "string" => json!("STUB"),
        "boolean" => json!(false),
        "integer" | "number" => json!(0),
        "array" => json!([]),
        _ => {
            let properties = schema["properties"].as_object();
            let fields =
                properties.into_iter().flatten().map(|(name, field)| (name.clone(), value_for_schema(field)));
            Value::Object(fields.collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_harmless_answer_fits_its_schema() {
        let schema = json!({ "type": "OBJECT", "properties": {
            "title": { "type": "STRING" }, "choice": { "type": "string", "enum": ["flash", "pro"] },
            "outcome": { "type": "string", "enum": ["allow", "deny"] },
            "sure": { "type": "boolean" }, "list": { "type": "array" }, "score": { "type": "integer" },
        }});
        let expected = json!({
            "title": "STUB", "choice": "flash", "outcome": "deny", "sure": false, "list": [], "score": 0,
        });
        assert_eq!(value_for_schema(&schema), expected);
    }
}
