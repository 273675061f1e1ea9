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
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    time::Duration,
};

use abide_os::{beneath::FileKind, remove::remove_path};
use serde_json::{Map, Value};

use crate::{
    clock,
    event::{ActionRequest, AgentEvent, RunEnd},
    human, private,
    state::StateDirectory,
};
use substitution::Substitution;

/// The sensitive answers of a run.
#[derive(Debug)]
pub(crate) struct SecretStore {
    folder: PathBuf,
    kept: Vec<StoredSecret>,
    /// Keys of model servers.
    keys: Vec<String>,
    hiding: Substitution,
    revealing: Substitution,
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
    Present,
    /// An earlier version, whose tokens in the journal were `[secret ID]`.
    Marked,
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
            kept: Vec::new(),
            keys: Vec::new(),
            hiding: Substitution::default(),
            revealing: Substitution::default(),
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
            let kept = match file_name.split('.').collect::<Vec<_>>()[..] {
                [action_id, name] => StoredSecret::new(action_id, text, name, SecretOrigin::Present),
                [action_id, name, MARKED] => StoredSecret::new(action_id, text, name, SecretOrigin::Marked),
                [action_id] => {
                    // An earlier version stored it without a name, so it gets one now.
                    let name = fresh_name(&text);
                    fs::rename(file.path(), secrets.folder.join(format!("{action_id}.{name}.{MARKED}")))?;
                    StoredSecret::new(action_id, text, &name, SecretOrigin::Marked)
                }
                _ => continue,
            };
            secrets.kept.push(kept);
        }
        secrets.prepare();
        Ok(secrets)
    }

    /// Moves the answers that an earlier version stored in the state folder to its record. A file with a second hard
    /// link is skipped, because an agent may have linked another file of the user here.
    pub(crate) fn move_from(state: &StateDirectory, record: &Path) -> io::Result<()> {
        let from = match state.directory().directory("secrets") {
            Ok(from) => from,
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let to = record.join("secrets");
        private::folder(&to)?;
        let files: Vec<_> = from.entries()?.take(MAX_MOVED).collect::<Result<_, _>>()?;
        for file in files.into_iter().filter(|file| file.kind == FileKind::Regular) {
            let name = Path::new(&file.name);
            if from.open_file(name)?.metadata()?.nlink() == 1 {
                private::replace(&to.join(name), &from.read_bounded(name, MAX_ANSWER_BYTES)?)?;
                from.unlink(name)?;
            }
        }
        Ok(())
    }

    /// Stores an answer. From now on a token replaces it.
    pub(crate) fn keep(&mut self, action_id: &str, text: &str) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        // A process that crashed before it journalled the answer may have stored it. Its tokens may be in use, so it is
        // kept.
        if self.kept.iter().any(|kept| kept.action_id == action_id && kept.text == text) {
            return Ok(());
        }
        let kept = StoredSecret::new(action_id, text.to_owned(), &fresh_name(text), SecretOrigin::Present);
        let part = self.folder.join(format!(".{action_id}"));
        let mut file = private::open(private::options().create(true).truncate(true).write(true), &part)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(part, self.folder.join(kept.file_name()))?;
        fs::File::open(&self.folder)?.sync_all()?;
        self.kept.push(kept);
        self.prepare();
        Ok(())
    }

    /// Deletes all answers.
    pub(crate) fn forget(&mut self) -> io::Result<()> {
        self.kept.clear();
        self.prepare();
        Ok(remove_path(&self.folder, MAX_REMOVAL_TIME)?.into_result()?)
    }

    /// Whether the answer to this action's question is stored.
    pub(crate) fn holds(&self, action_id: &str) -> bool {
        self.kept.iter().any(|kept| kept.action_id == action_id)
    }

    /// Sets the keys that are removed from all events.
    pub(crate) fn withhold(&mut self, keys: Vec<String>) {
        self.keys = keys;
        self.keys.retain(|key| !key.is_empty());
        self.keys.sort_by_key(|key| std::cmp::Reverse(key.len()));
    }

    /// All spellings of all answers, longest first.
    pub(crate) fn texts(&self) -> Vec<String> {
        let spelt = self.kept.iter().flat_map(|kept| kept.spellings().into_iter().map(|(_, text)| text));
        let mut texts: Vec<String> = spelt.chain(self.keys.iter().cloned()).collect();
        texts.sort_by_key(|text| std::cmp::Reverse(text.len()));
        texts
    }

    /// Removes keys from an event permanently.
    pub(crate) fn strike(&self, event: &mut AgentEvent) {
        if self.keys.is_empty() {
            return;
        }
        let struck =
            |text: &str| self.keys.iter().fold(text.to_owned(), |text, key| text.replace(key, "***"));
        words(event, &TextRewrite { text: &struck, number: &|_| None, string: &|_| None });
    }

    /// Replaces answers in an event by tokens.
    pub(crate) fn hide(&self, event: &mut AgentEvent) {
        if !self.kept.is_empty() {
            let number = |text: &str| {
                let hidden = self.hiding.apply(text);
                (hidden != text).then(|| Value::String(format!("{}{hidden}", self.kept[0].token(NUMBER))))
            };
            words(
                event,
                &TextRewrite { text: &|text| self.hiding.apply(text), number: &number, string: &|_| None },
            );
        }
    }

    /// Replaces tokens in an event by answers.
    pub(crate) fn reveal(&self, event: &mut AgentEvent) {
        if !self.kept.is_empty() {
            words(
                event,
                &TextRewrite {
                    text: &|text| self.revealed(text),
                    number: &|_| None,
                    string: &|text| self.number(text),
                },
            );
        }
    }

    /// Replaces tokens in a request by answers.
    pub(crate) fn reveal_request(&self, request: &mut ActionRequest) {
        if !self.kept.is_empty() {
            in_request(
                request,
                &TextRewrite {
                    text: &|text| self.revealed(text),
                    number: &|_| None,
                    string: &|text| self.number(text),
                },
            );
        }
    }

    /// Replaces answers in a text by tokens.
    pub(crate) fn hidden(&self, text: &str) -> String {
        self.hiding.apply(text)
    }

    /// Replaces tokens in a text by answers.
    pub(crate) fn revealed(&self, text: &str) -> String {
        self.revealing.apply(text)
    }

    /// The number that a token in a string stands for, if it stands for one.
    fn number(&self, text: &str) -> Option<Value> {
        let number = self.kept.iter().find_map(|kept| {
            let hidden = text.strip_prefix(&kept.token(NUMBER));
            let marked =
                || kept.origin == SecretOrigin::Marked && text == format!("{}{AS_NUMBER}", kept.mark());
            hidden
                .map(|hidden| self.revealed(hidden))
                .or_else(|| marked().then(|| kept.text.trim().to_owned()))
        })?;
        serde_json::from_str(&number).ok()
    }

    /// Rebuilds both substitutions.
    fn prepare(&mut self) {
        let (mut hiding, mut revealing) = (Vec::new(), Vec::new());
        for kept in &self.kept {
            let mut both = |text: String, token: String| {
                revealing.push((token.clone(), text.clone()));
                hiding.push((text, token));
            };
            for (spelling, text) in kept.spellings() {
                both(text, kept.token(spelling));
            }
            both(format!("{OPEN}{}", kept.name), kept.token(OPENING));
            if kept.origin == SecretOrigin::Marked {
                both(kept.mark(), kept.token(MARK));
                both(kept.json_mark(), kept.token(JSON_MARK));
                revealing.push((kept.mark(), kept.text.clone()));
                revealing.push((kept.json_mark(), in_json(&kept.text)));
            }
        }
        (self.hiding, self.revealing) = (Substitution::new(hiding), Substitution::new(revealing));
    }
}

impl StoredSecret {
    fn new(action_id: &str, text: String, name: &str, origin: SecretOrigin) -> Self {
        Self { action_id: action_id.to_owned(), text, name: name.to_owned(), origin }
    }

    fn file_name(&self) -> String {
        let Self { action_id, name, .. } = self;
        match self.origin {
            SecretOrigin::Present => format!("{action_id}.{name}"),
            SecretOrigin::Marked => format!("{action_id}.{name}.{MARKED}"),
        }
    }

    /// The token of a spelling: `⟦name⟧`, with a number for spellings other than the first.
    fn token(&self, number: u8) -> String {
        let name = &self.name;
        if number == PLAIN { format!("{OPEN}{name}{CLOSE}") } else { format!("{OPEN}{name}.{number}{CLOSE}") }
    }

    /// The distinct spellings of the text that are not empty.
    fn spellings(&self) -> Vec<(u8, String)> {
        let json = in_json(&self.text);
        let ascii = in_ascii(&json);
        let all = [
            self.text.clone(),
            self.text.trim().to_owned(),
            json.replace('/', "\\/"),
            in_json(&json),
            in_json(&ascii),
            json,
            ascii,
        ];
        let mut spellings: Vec<(u8, String)> = Vec::new();
        for (number, text) in (PLAIN..).zip(all) {
            if !text.is_empty() && spellings.iter().all(|(_, other)| *other != text) {
                spellings.push((number, text));
            }
        }
        spellings
    }

    fn mark(&self) -> String {
        format!("[secret {}]", self.action_id)
    }

    fn json_mark(&self) -> String {
        format!("[secret {} in JSON]", self.action_id)
    }
}

/// Time limit for deleting the folder, because a tool may have filled it.
const MAX_REMOVAL_TIME: Duration = Duration::from_secs(60);
/// Limits for moving answers of an earlier version.
const MAX_MOVED: usize = 10_000;
const MAX_ANSWER_BYTES: u64 = 16 << 20;
const OPEN: char = '⟦';
const CLOSE: char = '⟧';
/// The number of the first spelling; the others follow.
const PLAIN: u8 = 0;
/// Numbers of tokens that do not stand for the answer: the opening of its tokens, a JSON number (its rest follows), and
/// the tokens of an earlier version.
const OPENING: u8 = 20;
const NUMBER: u8 = 21;
const MARK: u8 = 22;
const JSON_MARK: u8 = 23;
/// File name suffix of an answer that an earlier version stored.
const MARKED: &str = "marked";
/// Suffix in the token of an earlier version for an answer that was a number.
const AS_NUMBER: &str = " as a number";

/// A random token name that does not contain the text, unless the text is too short for that.
fn fresh_name(text: &str) -> String {
    let name = || clock::fresh(16);
    (0..16).map(|_| name()).find(|name| !name.contains(text.trim())).unwrap_or_else(name)
}

/// The JSON spelling without quotes.
fn in_json(text: &str) -> String {
    let json = Value::from(text).to_string();
    json[1..json.len() - 1].to_owned()
}

/// The JSON spelling with non-ASCII characters escaped.
fn in_ascii(json: &str) -> String {
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
fn words(event: &mut AgentEvent, change: &TextRewrite<'_>) {
    let in_option = |text: &mut Option<String>| {
        if let Some(text) = text {
            *text = (change.text)(text);
        }
    };
    match event {
        AgentEvent::RunStart(_) => {}
        AgentEvent::RunEnd(RunEnd { reason, answer, .. }) => {
            in_option(reason);
            in_option(answer);
        }
        AgentEvent::UserMessage(message) => message.text = (change.text)(&message.text),
        AgentEvent::Thought(thought) => in_option(&mut thought.text),
        AgentEvent::ActionRequest(request) => in_request(request, change),
        AgentEvent::ActionResult(result) => {
            result.observation_content = (change.text)(&result.observation_content)
        }
        AgentEvent::SystemMessage(message) => message.content = (change.text)(&message.content),
    }
}

fn in_request(request: &mut ActionRequest, change: &TextRewrite<'_>) {
    if request.tool_name == human::TOOL
        && let Value::Object(fields) = &mut request.tool_args
    {
        // Other programs read questions from the journal, so the field names of a question are not changed.
        fields.values_mut().for_each(|value| in_value(value, change));
    } else {
        in_value(&mut request.tool_args, change);
    }
    if let Some(raw) = &mut request.tool_args_raw {
        *raw = (change.text)(raw);
    }
}

fn in_value(value: &mut Value, change: &TextRewrite<'_>) {
    match value {
        Value::String(text) => {
            *value = (change.string)(text).unwrap_or_else(|| Value::String((change.text)(text)));
        }
        Value::Array(values) => values.iter_mut().for_each(|value| in_value(value, change)),
        Value::Object(fields) => {
            let changed = std::mem::take(fields).into_iter().map(|(name, mut value)| {
                in_value(&mut value, change);
                ((change.text)(&name), value)
            });
            *fields = changed.collect::<Map<String, Value>>();
        }
        Value::Number(number) => {
            if let Some(changed) = (change.number)(&number.to_string()) {
                *value = changed;
            }
        }
        Value::Null | Value::Bool(_) => {}
    }
}

#[cfg(test)]
mod tests;
