//! Requests for permission: what a person is asked, and which of the agent's options the answer means.
//!
//! Only options for this once are ever shown or chosen. An agent that offers none gets no option, which the protocol
//! calls cancelled.

use std::{
    collections::{BTreeMap, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
};

use abide_domain::{
    approval::Verdict,
    interaction::{Choice, Kind, Policy, Question},
};
use abide_ports::engine::{Answer, Unsupported};
use serde_json::value::RawValue;

use super::{
    native::{PermissionAsked, ToolCall, ToolContent, ToolInput, part},
    words,
};

/// How much of a request is shown.
const MOST_SHOWN: usize = 4000;

/// The requests of one process.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Gates {
    /// The requests of the present turn, the last one of each name.
    known: Vec<Gate>,
    /// By JSON-RPC id: how often it meant another request, and what it means now.
    ids: BTreeMap<String, Meaning>,
}

#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Gate {
    name: String,
    id: Box<RawValue>,
    allow: Option<String>,
    reject: Option<String>,
    answered: bool,
}

#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Meaning {
    uses: u32,
    turn: u32,
    fingerprint: u64,
}

impl Gates {
    /// A request has arrived. Returns our name for it and what a person is asked.
    ///
    /// Its name is the agent's id for it. Some agents use an id again, and an answer must not be taken for the answer
    /// to another request: so an id that means something new gets a number.
    pub(super) fn open(
        &mut self,
        turn: u32,
        id: &RawValue,
        params: &RawValue,
        asked: &PermissionAsked<'_>,
    ) -> (String, Question) {
        let fingerprint = fingerprint(params.get());
        let meaning = self.ids.entry(id.get().to_owned()).or_insert(Meaning { uses: 1, turn, fingerprint });
        if (meaning.turn, meaning.fingerprint) != (turn, fingerprint) {
            *meaning = Meaning { uses: meaning.uses + 1, turn, fingerprint };
        }
        let name = match meaning.uses {
            1 => id.get().to_owned(),
            uses => format!("{}#{uses}", id.get()),
        };
        let option = |kind: &str| asked.options.iter().find(|option| option.kind.as_deref() == Some(kind));
        let (allow, reject) = (option("allow_once"), option("reject_once"));
        let labels = [(allow, "Yes", false), (reject, "No", true)];
        let options = labels.into_iter().filter_map(|(option, word, safe)| {
            let option = option?;
            let name = option.name.as_deref().unwrap_or(&option.option_id);
            Some(Choice { label: label(name, word), safe })
        });
        let question = Question {
            kind: Kind::Confirm,
            prompt: shown(asked.tool_call.as_ref()),
            options: options.collect(),
            ui_hints: None,
            default_decision_policy: Policy::SafeDefault,
        };
        self.known.retain(|gate| gate.name != name);
        self.known.push(Gate {
            name: name.clone(),
            id: id.to_owned(),
            allow: allow.map(|option| option.option_id.to_string()),
            reject: reject.map(|option| option.option_id.to_string()),
            answered: false,
        });
        (name, question)
    }

    /// The bytes that answer a request.
    pub(super) fn answer(&mut self, answer: &Answer<'_>) -> Result<Vec<u8>, Unsupported> {
        let gate = self.known.iter_mut().find(|gate| gate.name == answer.gate).ok_or_else(|| {
            Unsupported::Refused { reason: format!("no request {:?} waits for an answer", answer.gate) }
        })?;
        gate.answered = true;
        let option = match answer.verdict {
            Some(Verdict::Approved) => gate.allow.as_deref(),
            Some(Verdict::Declined) | None => gate.reject.as_deref(),
        };
        Ok(words::permission(&gate.id, option))
    }

    /// The agent no longer wants an answer to the request with this id. Returns our name for it.
    pub(super) fn withdraw(&mut self, id: &RawValue) -> Option<String> {
        let at = self.known.iter().rposition(|gate| gate.id.get() == id.get())?;
        Some(self.known.remove(at).name)
    }

    /// The bytes that tell the agent that nobody will answer what is still open.
    pub(super) fn cancel(&mut self) -> Vec<u8> {
        let open = self.known.iter_mut().filter(|gate| !gate.answered);
        open.flat_map(|gate| {
            gate.answered = true;
            words::permission(&gate.id, None)
        })
        .collect()
    }

    pub(super) fn any_open(&self) -> bool {
        self.known.iter().any(|gate| !gate.answered)
    }

    /// The turn is over: its requests are moot.
    pub(super) fn forget(&mut self) {
        self.known.clear();
    }
}

/// The option's own words, so that choosing them is understood as the yes or no that they mean.
fn label(name: &str, word: &str) -> String {
    const YES: [&str; 6] = ["yes", "allow", "approve", "accept", "ok", "confirm"];
    let first = name.split([' ', ',']).next().unwrap_or_default().to_lowercase();
    if YES.contains(&&*first) == (word == "Yes") { name.to_owned() } else { format!("{word}, {name}") }
}

/// What the agent wants to do, for the person who decides.
fn shown(tool_call: Option<&ToolCall<'_>>) -> String {
    let Some(call) = tool_call else { return "The agent asks for permission.".to_owned() };
    let mut lines = vec![];
    let mut add = |text: &str| {
        let text = text.trim();
        if !text.is_empty() && !lines.iter().any(|line: &String| line.contains(text)) {
            lines.push(text.to_owned());
        }
    };
    add(call.title.as_deref().or(call.kind.as_deref()).unwrap_or("The agent asks for permission."));
    if let Some(command) = part::<ToolInput<'_>>(call.raw_input).and_then(|input| input.command) {
        add(&command);
    }
    let contents = call.content.iter().flatten();
    for content in contents.filter_map(|raw| part::<ToolContent<'_>>(Some(raw))) {
        if let Some(path) = &content.path {
            add(&format!("changes {path}"));
        }
        if let Some(block) = &content.content {
            add(&block.text);
        }
    }
    let text = lines.join("\n");
    match text.char_indices().nth(MOST_SHOWN) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text,
    }
}

fn fingerprint(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}
