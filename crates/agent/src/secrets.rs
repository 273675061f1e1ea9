//! Answers that nobody else should read: each in a file of its own until the run ends, and never in the journal.
//!
//! Wherever the text of one would stand in an event, a mark stands instead; what the model is shown and what tools are
//! given gets the text back while the file is there. Only the fields that carry people's, models' and programs' words are
//! looked at, so that a short secret cannot break an id.
//!
//! Not here: what tools write to disk themselves.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::event::{Event, RunEnd};

/// The secrets of a run.
#[derive(Debug)]
pub(crate) struct Secrets {
    folder: PathBuf,
    kept: Vec<Kept>,
}

struct Kept {
    text: String,
    mark: String,
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.mark)
    }
}

impl Secrets {
    /// Those that are in the state folder.
    pub(crate) fn open(state: &Path) -> io::Result<Self> {
        let folder = state.join("secrets");
        let mut secrets = Self { folder, kept: Vec::new() };
        let files = match fs::read_dir(&secrets.folder) {
            Ok(files) => files,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(secrets),
            Err(error) => return Err(error),
        };
        for file in files {
            let file = file?;
            let Ok(id) = file.file_name().into_string() else { continue };
            if !id.starts_with('.') {
                secrets.remember(&id, &fs::read_to_string(file.path())?);
            }
        }
        Ok(secrets)
    }

    /// Keeps an answer, and says what stands for it in the journal.
    pub(crate) fn keep(&mut self, action_id: &str, text: &str) -> io::Result<String> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let part = self.folder.join(format!(".{action_id}"));
        let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&part)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(part, self.folder.join(action_id))?;
        fs::File::open(&self.folder)?.sync_all()?;
        self.remember(action_id, text);
        Ok(mark(action_id))
    }

    /// Forgets all of them.
    pub(crate) fn forget(&mut self) -> io::Result<()> {
        self.kept.clear();
        match fs::remove_dir_all(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }

    /// Their texts.
    pub(crate) fn texts(&self) -> Vec<String> {
        self.kept.iter().map(|kept| kept.text.clone()).collect()
    }

    /// The event as the journal may have it.
    pub(crate) fn hide(&self, event: &mut Event) {
        if !self.kept.is_empty() {
            words(event, &|text| self.hidden(text), &|value| self.hide_number(value));
        }
    }

    /// The event as it was meant.
    pub(crate) fn reveal(&self, event: &mut Event) {
        if !self.kept.is_empty() {
            words(event, &|text| self.revealed(text), &|value| self.reveal_number(value));
        }
    }

    fn hidden(&self, text: &str) -> String {
        self.replace(text, |kept| (&kept.text, &kept.mark))
    }

    /// A number that a person told us in confidence is one for a tool, and a mark in the journal.
    fn hide_number(&self, value: &mut Value) {
        let text = value.to_string();
        if let Some(kept) = self.kept.iter().find(|kept| kept.text.trim() == text) {
            *value = Value::String(format!("{}{AS_NUMBER}", kept.mark));
        }
    }

    fn reveal_number(&self, value: &mut Value) {
        let mark = value.as_str().and_then(|text| text.strip_suffix(AS_NUMBER));
        let Some(kept) = mark.and_then(|mark| self.kept.iter().find(|kept| kept.mark == mark)) else {
            return;
        };
        if let Ok(number) = serde_json::from_str(kept.text.trim()) {
            *value = number;
        }
    }

    /// The text as it was meant.
    pub(crate) fn revealed(&self, text: &str) -> String {
        self.replace(text, |kept| (&kept.mark, &kept.text))
    }

    fn replace<'a>(&'a self, text: &str, which: impl Fn(&'a Kept) -> (&'a String, &'a String)) -> String {
        self.kept.iter().fold(text.to_owned(), |text, kept| {
            let (from, to) = which(kept);
            if text.contains(from.as_str()) { text.replace(from.as_str(), to) } else { text }
        })
    }

    fn remember(&mut self, id: &str, text: &str) {
        let mark = mark(id);
        self.kept.retain(|kept| !kept.mark.starts_with(mark.trim_end_matches(']')));
        if text.is_empty() {
            return;
        }
        // Arguments that are no JSON are journalled as they came, with the text in the spelling of JSON.
        let spelt = Value::from(text).to_string();
        let spelt = spelt.trim_matches('"').to_owned();
        if spelt != text {
            self.kept.push(Kept { text: spelt, mark: format!("[secret {id} in JSON]") });
        }
        self.kept.push(Kept { text: text.to_owned(), mark });
        // One secret may hold another: the longer one is hidden first.
        self.kept.sort_by_key(|kept| std::cmp::Reverse(kept.text.len()));
    }
}

/// Stands behind the mark of a secret that was a number.
const AS_NUMBER: &str = " as a number";

/// What stands for the answer of an action.
pub(crate) fn mark(action_id: &str) -> String {
    format!("[secret {action_id}]")
}

/// Changes the words in an event: everything that people, models and programs said.
fn words(event: &mut Event, change: &dyn Fn(&str) -> String, other: &dyn Fn(&mut Value)) {
    let in_option = |text: &mut Option<String>| {
        if let Some(text) = text {
            *text = change(text);
        }
    };
    match event {
        Event::RunStart(_) => {}
        Event::RunEnd(RunEnd { reason, answer, .. }) => {
            in_option(reason);
            in_option(answer);
        }
        Event::UserMessage(message) => message.text = change(&message.text),
        Event::Thought(thought) => in_option(&mut thought.text),
        Event::ActionRequest(request) => {
            in_value(&mut request.tool_args, change, other);
            in_option(&mut request.tool_args_raw);
        }
        Event::ActionResult(result) => result.observation_content = change(&result.observation_content),
        Event::SystemMessage(message) => message.content = change(&message.content),
    }
}

fn in_value(value: &mut Value, change: &dyn Fn(&str) -> String, other: &dyn Fn(&mut Value)) {
    match value {
        Value::String(text) => {
            let before = text.clone();
            other(value);
            if let Value::String(text) = value {
                *text = change(&before);
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| in_value(value, change, other)),
        Value::Object(fields) => fields.iter_mut().for_each(|(_, value)| in_value(value, change, other)),
        Value::Number(_) => other(value),
        Value::Null | Value::Bool(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::event::ActionRequest;

    fn request(args: Value, raw: Option<&str>) -> Event {
        Event::ActionRequest(ActionRequest {
            action_id: "act_9".to_owned(),
            call_id: "c".to_owned(),
            tool_name: "login".to_owned(),
            tool_args: args,
            tool_args_raw: raw.map(str::to_owned),
        })
    }

    #[test]
    fn a_secret_is_hidden_wherever_words_are_and_comes_back_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let mut secrets = Secrets::open(folder.path()).unwrap();
        assert_eq!(secrets.keep("act_1", "pa\"ss\nword").unwrap(), "[secret act_1]");
        let meant = request(json!({ "with": ["x pa\"ss\nword y"] }), Some(r#"{"with": "pa\"ss\nword"#));
        let mut event = meant.clone();
        secrets.hide(&mut event);
        let hidden =
            request(json!({ "with": ["x [secret act_1] y"] }), Some(r#"{"with": "[secret act_1 in JSON]"#));
        assert_eq!(event, hidden);
        Secrets::open(folder.path()).unwrap().reveal(&mut event);
        assert_eq!(event, meant);
        assert_eq!(secrets.keep("act_2", "1234").unwrap(), "[secret act_2]");
        let meant = request(json!({ "pin": 1234, "text": "1234" }), None);
        let mut event = meant.clone();
        secrets.hide(&mut event);
        let hidden = json!({ "pin": "[secret act_2] as a number", "text": "[secret act_2]" });
        assert_eq!(event, request(hidden, None));
        secrets.reveal(&mut event);
        assert_eq!(event, meant);
        secrets.forget().unwrap();
        assert!(!folder.path().join("secrets").exists());
    }
}
