//! Questions to the person: the built-in tool `ask_human`, and the file that contains the open question (B7).
//!
//! The dialogue with the person and the storage of sensitive answers are not here.

use std::io;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{definition, event::ActionRequest, state_directory::StateDirectory};

pub const TOOL_NAME: &str = "ask_human";

/// A question to the person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HumanQuestion {
    /// The id of the action that waits for the answer.
    pub interaction_id: String,
    pub question: String,
    #[serde(default)]
    pub options: Vec<String>,
    /// Whether the answer must not be journalled.
    #[serde(default)]
    pub sensitive: bool,
}

impl HumanQuestion {
    /// Parses the arguments of a call, or returns an error text for the model.
    pub fn from_request(request: &ActionRequest) -> Result<Self, String> {
        let arguments: AskHumanArguments = serde_json::from_value(request.tool_args.clone()).map_err(|error| {
            format!(
                "{TOOL_NAME} needs {{\"question\": \"…\", \"options\": [\"…\"], \"sensitive\": false}}: {error}"
            )
        })?;
        let AskHumanArguments { question, options, sensitive } = arguments;
        if question.trim().is_empty() {
            return Err("the question is empty; write what you want to know".to_owned());
        }
        let options = options.unwrap_or_default();
        let sensitive = sensitive.unwrap_or(false);
        Ok(Self { interaction_id: request.action_id.clone(), question, options, sensitive })
    }

    /// Writes the question file.
    pub(crate) fn write_file(&self, state: &StateDirectory) -> io::Result<()> {
        // The format of all of Abide's questions (D1).
        let kind = if self.options.is_empty() { "open_text" } else { "choose_one" };
        let file = QuestionFile {
            interaction_id: self.interaction_id.clone(),
            kind: kind.to_owned(),
            prompt: self.question.clone(),
            options: self.options.clone(),
            sensitive: self.sensitive,
        };
        state.replace(QUESTION_FILE, format!("{:#}\n", json!(file)).as_bytes())
    }

    /// Resolves the text that a person typed: an option by its text or number, otherwise the text itself. The text of
    /// an option takes precedence over a number. `=2` is the text 2 where 2 would be an option's number.
    pub fn resolve(&self, typed: &str) -> String {
        let word = typed.trim();
        if self.options.is_empty() {
            return typed.to_owned();
        }
        if let Some(option) = self.options.iter().find(|option| option.trim().eq_ignore_ascii_case(word)) {
            return option.clone();
        }
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if let Some(literal) = word.strip_prefix('=').filter(|literal| is_number(literal)) {
            return literal.to_owned();
        }
        let number = Some(word).filter(|word| is_number(word)).and_then(|word| word.parse::<usize>().ok());
        let chosen = number.and_then(|number| self.options.get(number.checked_sub(1)?));
        chosen.cloned().unwrap_or_else(|| typed.to_owned())
    }

    /// The question in the question file, if it can be read.
    pub fn read_file(state: &StateDirectory) -> Option<Self> {
        let bytes = state.directory().read_bounded(QUESTION_FILE, MAX_QUESTION_BYTES).ok()?;
        let QuestionFile { interaction_id, kind: _, prompt: question, options, sensitive } =
            serde_json::from_slice(&bytes).ok()?;
        Some(Self { interaction_id, question, options, sensitive })
    }

    /// Removes the question file.
    pub(crate) fn remove_file(state: &StateDirectory) -> io::Result<()> {
        Ok(state.remove_file(QUESTION_FILE)?)
    }
}

/// The format of the question file.
#[derive(Serialize, Deserialize)]
struct QuestionFile {
    interaction_id: String,
    kind: String,
    prompt: String,
    options: Vec<String>,
    sensitive: bool,
}

/// Size limit of the question file.
const MAX_QUESTION_BYTES: u64 = 16 << 20;

const QUESTION_FILE: &str = "interaction.json";

#[derive(Deserialize)]
struct AskHumanArguments {
    question: String,
    options: Option<Vec<String>>,
    sensitive: Option<bool>,
}

/// Describes the tool to the model.
pub(crate) fn tool_json() -> String {
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
    definition::tool_json(TOOL_NAME, about, &parameters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_selects_an_option_and_other_text_is_kept() {
        let of = |options: &[&str], typed: &str| {
            let options = options.iter().map(|option| (*option).to_owned()).collect();
            let interaction_id = "act_1".to_owned();
            let question =
                HumanQuestion { interaction_id, question: "?".to_owned(), options, sensitive: false };
            question.resolve(typed)
        };
        let drinks = ["tea", "Coffee"];
        assert_eq!(of(&drinks, "2"), "Coffee");
        assert_eq!(of(&drinks, " 1\n"), "tea");
        assert_eq!(of(&drinks, "coffee"), "Coffee");
        for other in ["3", "0", "-1", "+2", "1.0", "neither", "99999999999999999999999"] {
            assert_eq!(of(&drinks, other), other);
        }
        assert_eq!(of(&drinks, "=2"), "2");
        assert_eq!(of(&drinks, "=tea"), "=tea");
        // The text of an option takes precedence over the number of another.
        assert_eq!(of(&["2", "1"], "2"), "2");
        assert_eq!(of(&["2", "1"], "1"), "1");
        assert_eq!(of(&[], "2"), "2");
        assert_eq!(of(&[], "=2"), "=2");
    }
}
