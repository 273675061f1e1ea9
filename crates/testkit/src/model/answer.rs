//! What the model answers, and in what manner it is brought: at once, slowly, late, or not to the end.

use std::time::Duration;

use serde_json::{Value, json};

use super::gate::TestGate;

#[derive(Debug, Clone)]
pub struct ScriptedAnswer {
    pub(super) what: AnswerContent,
    pub(super) manner: AnswerPacing,
    pub(super) usage: Option<AnswerUsage>,
    /// The reason to stop that is told instead of the true one; only on chat completions.
    pub(super) finish: Option<String>,
    pub(super) form: AnswerForm,
}

/// In how many pieces an answer comes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum AnswerForm {
    /// As many as the request asks for.
    #[default]
    AsAsked,
    /// One, even when a stream was asked for, as some servers do it.
    Whole,
}

/// What an answer is said to have cost. Without it, the request's own length and a constant are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerUsage {
    pub input: u64,
    pub output: u64,
}

#[derive(Debug, Clone)]
pub(super) enum AnswerContent {
    Parts(Vec<AnswerPart>),
    /// The wire's own way of failing with this text.
    Status {
        code: u16,
        message: String,
        retry_after: Option<u64>,
    },
    /// A status with a body that no wire would send.
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
    /// A call of whatever shell the program offers.
    Shell(String),
}

#[derive(Debug, Clone, Default)]
pub(super) struct AnswerPacing {
    /// Waited for before anything is sent, the status line included.
    pub before: Option<TestGate>,
    /// A time that passes before anything is sent.
    pub delay: Duration,
    /// Waited for when half of the events are out.
    pub midway: Option<TestGate>,
    /// Time between two events.
    pub pause: Duration,
    /// The connection breaks when this many bytes of the body are out.
    pub cut: Option<usize>,
}

impl ScriptedAnswer {
    /// Text.
    pub fn say(text: impl Into<String>) -> Self {
        Self::parts(vec![AnswerPart::Say(text.into())])
    }

    /// One call of a tool.
    pub fn call(tool: impl Into<String>, args: Value) -> Self {
        Self::parts(vec![AnswerPart::Call { tool: tool.into(), args }])
    }

    /// One call of whatever shell the program offers, in its own spelling.
    pub fn shell(command: impl Into<String>) -> Self {
        Self::parts(vec![AnswerPart::Shell(command.into())])
    }

    /// A failure, told as the wire tells failures.
    pub fn status(code: u16, message: impl Into<String>) -> Self {
        let what = AnswerContent::Status { code, message: message.into(), retry_after: None };
        Self::new(what)
    }

    /// A status with any body at all, such as a proxy's page or half a JSON object.
    pub fn raw(code: u16, body: impl Into<String>) -> Self {
        Self::new(AnswerContent::Raw { code, body: body.into() })
    }

    /// And then this text, in the same answer.
    #[must_use]
    pub fn then_say(self, text: impl Into<String>) -> Self {
        self.and(AnswerPart::Say(text.into()))
    }

    /// And then this call, in the same answer.
    #[must_use]
    pub fn then_call(self, tool: impl Into<String>, args: Value) -> Self {
        self.and(AnswerPart::Call { tool: tool.into(), args })
    }

    /// And then this command, in the same answer.
    #[must_use]
    pub fn then_shell(self, command: impl Into<String>) -> Self {
        self.and(AnswerPart::Shell(command.into()))
    }

    /// Tells the program when it may try again; only for a failure.
    #[must_use]
    pub fn retry_after(mut self, seconds: u64) -> Self {
        if let AnswerContent::Status { retry_after, .. } = &mut self.what {
            *retry_after = Some(seconds);
        }
        self
    }

    /// Says what it has cost.
    #[must_use]
    pub fn costing(mut self, input: u64, output: u64) -> Self {
        self.usage = Some(AnswerUsage { input, output });
        self
    }

    /// Tells this as the reason to stop, such as `length`; only on chat completions.
    #[must_use]
    pub fn finishing(mut self, reason: impl Into<String>) -> Self {
        self.finish = Some(reason.into());
        self
    }

    /// It comes as one JSON object even when a stream was asked for.
    #[must_use]
    pub fn in_one_piece(mut self) -> Self {
        self.form = AnswerForm::Whole;
        self
    }

    /// Nothing of it is sent before the gate opens.
    #[must_use]
    pub fn held(mut self, gate: &TestGate) -> Self {
        self.manner.before = Some(gate.clone());
        self
    }

    /// Half of its events are sent, the rest when the gate opens.
    #[must_use]
    pub fn held_midway(mut self, gate: &TestGate) -> Self {
        self.manner.midway = Some(gate.clone());
        self
    }

    /// Nothing of it is sent before this time has passed.
    #[must_use]
    pub fn late(mut self, delay: Duration) -> Self {
        self.manner.delay = delay;
        self
    }

    /// This time passes between two events.
    #[must_use]
    pub fn slow(mut self, pause: Duration) -> Self {
        self.manner.pause = pause;
        self
    }

    /// The connection breaks after this many bytes of the body, with nothing that would end it properly.
    #[must_use]
    pub fn cut_after(mut self, bytes: usize) -> Self {
        self.manner.cut = Some(bytes);
        self
    }

    /// The shortest thing that fits a schema, or a word when there is none: for requests that no test cares about.
    pub(super) fn harmless(schema: Option<&Value>) -> Self {
        Self::say(schema.map_or_else(|| "STUB".to_owned(), |schema| fitting(schema).to_string()))
    }

    fn parts(parts: Vec<AnswerPart>) -> Self {
        Self::new(AnswerContent::Parts(parts))
    }

    fn new(what: AnswerContent) -> Self {
        Self { what, manner: AnswerPacing::default(), usage: None, finish: None, form: AnswerForm::AsAsked }
    }

    fn and(mut self, part: AnswerPart) -> Self {
        if let AnswerContent::Parts(parts) = &mut self.what {
            parts.push(part);
        }
        self
    }
}

/// A value that fits a JSON schema of the simple kinds that agent programs use.
fn fitting(schema: &Value) -> Value {
    if let Some(values) = schema["enum"].as_array() {
        // A program that asks whether something may be done is told no, as long as no test says otherwise.
        let no = values.iter().find(|value| **value == "deny");
        return no.or(values.first()).cloned().unwrap_or_default();
    }
    // One service writes the names of types in capitals.
    let kind = schema["type"].as_str().unwrap_or("object").to_lowercase();
    match kind.as_str() {
        "string" => json!("STUB"),
        "boolean" => json!(false),
        "integer" | "number" => json!(0),
        "array" => json!([]),
        _ => {
            let known = schema["properties"].as_object();
            let fields = known.into_iter().flatten().map(|(name, field)| (name.clone(), fitting(field)));
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
        assert_eq!(fitting(&schema), expected);
    }
}
