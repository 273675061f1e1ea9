//! Sensitive answers: each is in a separate file until the run ends, and never in the journal.
//!
//! In events, a token replaces the text of an answer. For the model and for tools, the token is replaced by the text
//! while the file exists. A token is `⟦`, a random name and `⟧`. It is created when the answer is stored, so no earlier
//! text can contain it. In later texts, `⟦` with that name is itself replaced. Both directions make one pass over a
//! text and do not process inserted text again. A text is therefore restored exactly, even if answers are parts of each
//! other, of a token or of JSON.
//!
//! Only fields with words of people, models and programs are changed, so that a short answer cannot damage an id. Keys
//! of model servers are removed permanently, in the same fields.
//!
//! Files that tools write are not covered.

mod substitution;

use std::{
    fs,
    io::{self},
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    time::Duration,
};

use abide_os::{
    atomic_file::{self, Durability},
    beneath::FileKind,
    private_file, random,
    remove::remove_path,
};
use serde_json::{Map, Value};

use crate::{
    ask_human,
    event::{ActionRequest, AgentEvent, RunEnd},
    state_directory::StateDirectory,
};
use substitution::SecretSubstitution;

/// The sensitive answers of a run.
#[derive(Debug)]
pub(crate) struct SecretStore {
    folder: PathBuf,
    stored: Vec<StoredSecret>,
    /// Keys of model servers.
    redacted_keys: Vec<String>,
    hide_substitution: SecretSubstitution,
    reveal_substitution: SecretSubstitution,
}

struct StoredSecret {
    action_id: String,
    text: String,
    /// The random part of its tokens.
    name: String,
    origin: SecretOrigin,
}

/// The version that stored an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SecretOrigin {
    Current,
    /// An earlier version, whose tokens in the journal were `[secret ID]`.
    EarlierVersion,
}

impl std::fmt::Debug for StoredSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.action_id)
    }
}

impl SecretStore {
    /// Loads the answers in the record of a state folder.
    pub(crate) fn open(record: &Path) -> io::Result<Self> {
        let folder = record.join("secrets");
        let mut secrets = Self {
            folder,
            stored: Vec::new(),
            redacted_keys: Vec::new(),
            hide_substitution: SecretSubstitution::default(),
            reveal_substitution: SecretSubstitution::default(),
        };
        let files = match fs::read_dir(&secrets.folder) {
            Ok(files) => files,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(secrets),
            Err(error) => return Err(error),
        };
        for file in files {
            let file = file?;
            let Ok(file_name) = file.file_name().into_string() else { continue };
            if file_name.starts_with('.') {
                continue;
            }
            let text = String::from_utf8(fs::read(file.path())?).map_err(io::Error::other)?;
            let secret = match file_name.split('.').collect::<Vec<_>>()[..] {
                [action_id, name] => StoredSecret::new(action_id, text, name, SecretOrigin::Current),
                [action_id, name, LEGACY_FILE_SUFFIX] => {
                    StoredSecret::new(action_id, text, name, SecretOrigin::EarlierVersion)
                }
                [action_id] => {
                    // An earlier version stored it without a name, so it gets one now.
                    let name = new_token_name(&text);
                    fs::rename(
                        file.path(),
                        secrets.folder.join(format!("{action_id}.{name}.{LEGACY_FILE_SUFFIX}")),
                    )?;
                    StoredSecret::new(action_id, text, &name, SecretOrigin::EarlierVersion)
                }
                _ => continue,
            };
            secrets.stored.push(secret);
        }
        secrets.rebuild_substitutions();
        Ok(secrets)
    }

    /// Moves the answers that an earlier version stored in the state folder to its record. A file with a second hard
    /// link is skipped, because an agent may have linked another file of the user here.
    pub(crate) fn move_from(state: &StateDirectory, record: &Path) -> io::Result<()> {
        let from = match state.directory().open_directory("secrets") {
            Ok(from) => from,
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let to = record.join("secrets");
        private_file::create_missing_dirs(&to)?;
        let files: Vec<_> = from.entries()?.take(MAX_MOVED_FILES).collect::<Result<_, _>>()?;
        for file in files.into_iter().filter(|file| file.kind == FileKind::Regular) {
            let name = Path::new(&file.name);
            if from.open_file(name)?.metadata()?.nlink() == 1 {
                let answer = from.read_bounded(name, MAX_ANSWER_BYTES)?;
                atomic_file::replace(&to.join(name), &answer, Durability::PowerFailure)?;
                from.unlink(name)?;
            }
        }
        Ok(())
    }

    /// Stores an answer. From now on a token replaces it.
    pub(crate) fn store(&mut self, action_id: &str, text: &str) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        // A process that crashed before it journalled the answer may have stored it. Its tokens may be in use, so it is
        // kept.
        if self.stored.iter().any(|secret| secret.action_id == action_id && secret.text == text) {
            return Ok(());
        }
        let secret =
            StoredSecret::new(action_id, text.to_owned(), &new_token_name(text), SecretOrigin::Current);
        let path = self.folder.join(secret.file_name());
        atomic_file::replace(&path, text.as_bytes(), Durability::PowerFailure)?;
        self.stored.push(secret);
        self.rebuild_substitutions();
        Ok(())
    }

    pub(crate) fn delete_all(&mut self) -> io::Result<()> {
        self.stored.clear();
        self.rebuild_substitutions();
        Ok(remove_path(&self.folder, MAX_REMOVAL_TIME)?.into_result()?)
    }

    /// Whether the answer to this action's question is stored.
    pub(crate) fn contains(&self, action_id: &str) -> bool {
        self.stored.iter().any(|secret| secret.action_id == action_id)
    }

    /// Sets the keys that are removed from all events.
    pub(crate) fn set_redacted_keys(&mut self, keys: Vec<String>) {
        self.redacted_keys = keys;
        self.redacted_keys.retain(|key| !key.is_empty());
        self.redacted_keys.sort_by_key(|key| std::cmp::Reverse(key.len()));
    }

    /// All spellings of all answers, longest first.
    pub(crate) fn all_spellings(&self) -> Vec<String> {
        let spellings =
            self.stored.iter().flat_map(|secret| secret.spellings().into_iter().map(|(_, text)| text));
        let mut texts: Vec<String> = spellings.chain(self.redacted_keys.iter().cloned()).collect();
        texts.sort_by_key(|text| std::cmp::Reverse(text.len()));
        texts
    }

    /// Removes keys from an event permanently.
    pub(crate) fn redact_keys(&self, event: &mut AgentEvent) {
        if self.redacted_keys.is_empty() {
            return;
        }
        let redact = |text: &str| {
            self.redacted_keys.iter().fold(text.to_owned(), |text, key| text.replace(key, "***"))
        };
        rewrite_event(event, &TextRewrite { text: &redact, number: &|_| None, string: &|_| None });
    }

    /// Replaces answers in an event by tokens.
    pub(crate) fn hide(&self, event: &mut AgentEvent) {
        if !self.stored.is_empty() {
            let number = |text: &str| {
                let hidden = self.hide_substitution.apply(text);
                (hidden != text)
                    .then(|| Value::String(format!("{}{hidden}", self.stored[0].token(NUMBER_TOKEN))))
            };
            rewrite_event(
                event,
                &TextRewrite {
                    text: &|text| self.hide_substitution.apply(text),
                    number: &number,
                    string: &|_| None,
                },
            );
        }
    }

    /// Replaces tokens in an event by answers.
    pub(crate) fn reveal(&self, event: &mut AgentEvent) {
        if !self.stored.is_empty() {
            rewrite_event(
                event,
                &TextRewrite {
                    text: &|text| self.reveal_text(text),
                    number: &|_| None,
                    string: &|text| self.reveal_number(text),
                },
            );
        }
    }

    /// Replaces tokens in a request by answers.
    pub(crate) fn reveal_request(&self, request: &mut ActionRequest) {
        if !self.stored.is_empty() {
            rewrite_request(
                request,
                &TextRewrite {
                    text: &|text| self.reveal_text(text),
                    number: &|_| None,
                    string: &|text| self.reveal_number(text),
                },
            );
        }
    }

    /// Replaces answers in a text by tokens.
    pub(crate) fn hide_text(&self, text: &str) -> String {
        self.hide_substitution.apply(text)
    }

    /// Replaces tokens in a text by answers.
    pub(crate) fn reveal_text(&self, text: &str) -> String {
        self.reveal_substitution.apply(text)
    }

    /// The number that a token in a string stands for, if it stands for one.
    fn reveal_number(&self, text: &str) -> Option<Value> {
        let number = self.stored.iter().find_map(|secret| {
            let hidden = text.strip_prefix(&secret.token(NUMBER_TOKEN));
            let marked = || {
                secret.origin == SecretOrigin::EarlierVersion
                    && text == format!("{}{LEGACY_NUMBER_SUFFIX}", secret.legacy_token())
            };
            hidden
                .map(|hidden| self.reveal_text(hidden))
                .or_else(|| marked().then(|| secret.text.trim().to_owned()))
        })?;
        serde_json::from_str(&number).ok()
    }

    fn rebuild_substitutions(&mut self) {
        let (mut hiding, mut revealing) = (Vec::new(), Vec::new());
        for secret in &self.stored {
            let mut both = |text: String, token: String| {
                revealing.push((token.clone(), text.clone()));
                hiding.push((text, token));
            };
            for (spelling, text) in secret.spellings() {
                both(text, secret.token(spelling));
            }
            both(format!("{TOKEN_OPEN}{}", secret.name), secret.token(ESCAPED_OPEN_TOKEN));
            if secret.origin == SecretOrigin::EarlierVersion {
                both(secret.legacy_token(), secret.token(LEGACY_TOKEN));
                both(secret.legacy_json_token(), secret.token(LEGACY_JSON_TOKEN));
                revealing.push((secret.legacy_token(), secret.text.clone()));
                revealing.push((secret.legacy_json_token(), escape_json(&secret.text)));
            }
        }
        (self.hide_substitution, self.reveal_substitution) =
            (SecretSubstitution::new(hiding), SecretSubstitution::new(revealing));
    }
}

impl StoredSecret {
    fn new(action_id: &str, text: String, name: &str, origin: SecretOrigin) -> Self {
        Self { action_id: action_id.to_owned(), text, name: name.to_owned(), origin }
    }

    fn file_name(&self) -> String {
        let Self { action_id, name, .. } = self;
        match self.origin {
            SecretOrigin::Current => format!("{action_id}.{name}"),
            SecretOrigin::EarlierVersion => format!("{action_id}.{name}.{LEGACY_FILE_SUFFIX}"),
        }
    }

    /// The token of a spelling: `⟦name⟧`, with a number for spellings other than the first.
    fn token(&self, number: u8) -> String {
        let name = &self.name;
        if number == PLAIN_SPELLING {
            format!("{TOKEN_OPEN}{name}{TOKEN_CLOSE}")
        } else {
            format!("{TOKEN_OPEN}{name}.{number}{TOKEN_CLOSE}")
        }
    }

    /// The distinct spellings of the text that are not empty.
    fn spellings(&self) -> Vec<(u8, String)> {
        let json = escape_json(&self.text);
        let ascii = escape_non_ascii(&json);
        let all = [
            self.text.clone(),
            self.text.trim().to_owned(),
            json.replace('/', "\\/"),
            escape_json(&json),
            escape_json(&ascii),
            json,
            ascii,
        ];
        let mut spellings: Vec<(u8, String)> = Vec::new();
        for (number, text) in (PLAIN_SPELLING..).zip(all) {
            if !text.is_empty() && spellings.iter().all(|(_, other)| *other != text) {
                spellings.push((number, text));
            }
        }
        spellings
    }

    fn legacy_token(&self) -> String {
        format!("[secret {}]", self.action_id)
    }

    fn legacy_json_token(&self) -> String {
        format!("[secret {} in JSON]", self.action_id)
    }
}

/// Time limit for deleting the folder, because a tool may have filled it.
const MAX_REMOVAL_TIME: Duration = Duration::from_secs(60);
/// Limits for moving answers of an earlier version.
const MAX_MOVED_FILES: usize = 10_000;
const MAX_ANSWER_BYTES: u64 = 16 << 20;
const TOKEN_OPEN: char = '⟦';
const TOKEN_CLOSE: char = '⟧';
/// The number of the first spelling; the others follow.
const PLAIN_SPELLING: u8 = 0;
/// Numbers of tokens that do not stand for the answer: the opening of its tokens, a JSON number (its rest follows), and
/// the tokens of an earlier version.
const ESCAPED_OPEN_TOKEN: u8 = 20;
const NUMBER_TOKEN: u8 = 21;
const LEGACY_TOKEN: u8 = 22;
const LEGACY_JSON_TOKEN: u8 = 23;
/// File name suffix of an answer that an earlier version stored.
const LEGACY_FILE_SUFFIX: &str = "marked";
/// Suffix in the token of an earlier version for an answer that was a number.
const LEGACY_NUMBER_SUFFIX: &str = " as a number";

/// A random token name that does not contain the text, unless the text is too short for that.
fn new_token_name(text: &str) -> String {
    let name = || random::name(16);
    (0..16).map(|_| name()).find(|name| !name.contains(text.trim())).unwrap_or_else(name)
}

/// The JSON spelling without quotes.
fn escape_json(text: &str) -> String {
    let json = Value::from(text).to_string();
    json[1..json.len() - 1].to_owned()
}

/// The JSON spelling with non-ASCII characters escaped.
fn escape_non_ascii(json: &str) -> String {
    let mut ascii = String::with_capacity(json.len());
    for c in json.chars() {
        if c.is_ascii() {
            ascii.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            ascii.push_str(&format!("\\u{unit:04x}"));
        }
    }
    ascii
}

/// The changes to the texts of an event.
struct TextRewrite<'a> {
    /// Applied to each text.
    text: &'a dyn Fn(&str) -> String,
    /// Applied to the digits of a number in arguments; `None` leaves the number.
    number: &'a dyn Fn(&str) -> Option<Value>,
    /// Applied to a string in arguments before `text`; `None` continues with `text`.
    string: &'a dyn Fn(&str) -> Option<Value>,
}

/// Changes all texts of people, models and programs in an event.
fn rewrite_event(event: &mut AgentEvent, rewrite: &TextRewrite<'_>) {
    let in_option = |text: &mut Option<String>| {
        if let Some(text) = text {
            *text = (rewrite.text)(text);
        }
    };
    match event {
        AgentEvent::RunStart(_) => {}
        AgentEvent::RunEnd(RunEnd { reason, answer, .. }) => {
            in_option(reason);
            in_option(answer);
        }
        AgentEvent::UserMessage(message) => message.text = (rewrite.text)(&message.text),
        AgentEvent::Thought(thought) => in_option(&mut thought.text),
        AgentEvent::ActionRequest(request) => rewrite_request(request, rewrite),
        AgentEvent::ActionResult(result) => {
            result.observation_content = (rewrite.text)(&result.observation_content)
        }
        AgentEvent::SystemMessage(message) => message.content = (rewrite.text)(&message.content),
    }
}

fn rewrite_request(request: &mut ActionRequest, rewrite: &TextRewrite<'_>) {
    if request.tool_name == ask_human::TOOL_NAME
        && let Value::Object(fields) = &mut request.tool_args
    {
        // Other programs read questions from the journal, so the field names of a question are not changed.
        fields.values_mut().for_each(|value| rewrite_value(value, rewrite));
    } else {
        rewrite_value(&mut request.tool_args, rewrite);
    }
    if let Some(raw) = &mut request.tool_args_raw {
        *raw = (rewrite.text)(raw);
    }
}

fn rewrite_value(value: &mut Value, rewrite: &TextRewrite<'_>) {
    match value {
        Value::String(text) => {
            *value = (rewrite.string)(text).unwrap_or_else(|| Value::String((rewrite.text)(text)));
        }
        Value::Array(values) => values.iter_mut().for_each(|value| rewrite_value(value, rewrite)),
        Value::Object(fields) => {
            let changed = std::mem::take(fields).into_iter().map(|(name, mut value)| {
                rewrite_value(&mut value, rewrite);
                ((rewrite.text)(&name), value)
            });
            *fields = changed.collect::<Map<String, Value>>();
        }
        Value::Number(number) => {
            if let Some(changed) = (rewrite.number)(&number.to_string()) {
                *value = changed;
            }
        }
        Value::Null | Value::Bool(_) => {}
    }
}

#[cfg(test)]
mod tests;
