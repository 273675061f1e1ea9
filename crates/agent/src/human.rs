//! A question for the person: the built-in tool `ask_human`, and the file that stands for it while it is open (B7).
//!
//! Not here: how a person is asked, and where a sensitive answer is kept.

use std::{fs, io, path::Path};

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{definition, event::ActionRequest};

/// The tool's name.
pub const TOOL: &str = "ask_human";

/// Something that only a person can say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// The action that waits for the answer.
    pub interaction_id: String,
    pub question: String,
    #[serde(default)]
    pub options: Vec<String>,
    /// Whether the answer is to be kept out of the journal.
    #[serde(default)]
    pub sensitive: bool,
}

impl Question {
    /// The question that a request puts, or what to tell the model about it.
    pub fn of(request: &ActionRequest) -> Result<Self, String> {
        let arguments: Arguments = serde_json::from_value(request.tool_args.clone()).map_err(|error| {
            format!(
                "{TOOL} needs {{\"question\": \"…\", \"options\": [\"…\"], \"sensitive\": false}}: {error}"
            )
        })?;
        let Arguments { question, options, sensitive } = arguments;
        if question.trim().is_empty() {
            return Err("the question is empty; say what you want to know".to_owned());
        }
        let options = options.unwrap_or_default();
        let sensitive = sensitive.unwrap_or(false);
        Ok(Self { interaction_id: request.action_id.clone(), question, options, sensitive })
    }

    /// Leaves the question where people and programs look for it.
    pub(crate) fn show(&self, state: &Path) -> io::Result<()> {
        let (part, whole) = (state.join(".interaction.json"), state.join(FILE));
        // In the words that every question of Abide's has (D1).
        let kind = if self.options.is_empty() { "open_text" } else { "choose_one" };
        let shown = Shown {
            interaction_id: self.interaction_id.clone(),
            kind: kind.to_owned(),
            prompt: self.question.clone(),
            options: self.options.clone(),
            sensitive: self.sensitive,
        };
        fs::write(&part, format!("{:#}\n", json!(shown)))?;
        fs::rename(part, whole)
    }

    /// The question that was left, if it can be read.
    pub fn shown(state: &Path) -> Option<Self> {
        let Shown { interaction_id, kind: _, prompt: question, options, sensitive } =
            serde_json::from_slice(&fs::read(state.join(FILE)).ok()?).ok()?;
        Some(Self { interaction_id, question, options, sensitive })
    }

    /// Nothing is asked any more.
    pub(crate) fn withdraw(state: &Path) -> io::Result<()> {
        match fs::remove_file(state.join(FILE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }
}

/// A question as its file has it.
#[derive(Serialize, Deserialize)]
struct Shown {
    interaction_id: String,
    kind: String,
    prompt: String,
    options: Vec<String>,
    sensitive: bool,
}

/// Where an open question stands.
const FILE: &str = "interaction.json";

#[derive(Deserialize)]
struct Arguments {
    question: String,
    options: Option<Vec<String>>,
    sensitive: Option<bool>,
}

/// The tool as the model is told about it.
pub(crate) fn offer() -> String {
    let about = "Ask the person a question and wait for the answer, which may take days. Only for what you cannot \
                 find out yourself or must not decide alone.";
    let parameters = json!({
        "type": "object",
        "properties": {
            "question": { "type": "string", "description": "The question, with all that is needed to answer it" },
            "options": {
                "type": "array", "items": { "type": "string" },
                "description": "Answers to choose from; any other text is an answer too",
            },
            "sensitive": {
                "type": "boolean", "description": "True for passwords and keys: the answer is then not recorded",
            },
        },
        "required": ["question"],
        "additionalProperties": false,
    });
    definition::offer(TOOL, about, &parameters)
}
