//! Permission requests: the question to the person, and the agent's option that matches the answer.
//!
//! Only options that apply once are shown or chosen. If an agent offers none, the response is `cancelled`.

use std::{
    collections::{BTreeMap, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
};

use abide_domain::{
    approval::ApprovalVerdict,
    context::visible::EscapedLabel,
    interaction::{InteractionOption, Question},
};
use abide_ports::engine::{GateAnswer, UnsupportedOperation};
use serde_json::value::RawValue;

use super::{
    messages::{PermissionOption, RequestPermissionParams, parse_part},
    requests,
    tool_calls::{AnnouncedCalls, IncompleteRequest, approval_context},
};
use crate::request_fields::JsonItems;

/// Maximum length of an option's label, in characters.
const MAX_LABEL_CHARS: usize = 200;

/// The permission requests of one process.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct AcpGates {
    /// The requests of the current turn, the last one of each name.
    known: Vec<AcpGate>,
    /// By JSON-RPC id: the number of earlier requests with this id, and the current one.
    ids: BTreeMap<String, RequestIdUse>,
    /// Announced calls that requests may refer to.
    #[serde(default)]
    pub(super) announced: AnnouncedCalls,
}

#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct AcpGate {
    name: String,
    id: Box<RawValue>,
    allow: Option<String>,
    reject: Option<String>,
    answered: bool,
}

#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct RequestIdUse {
    uses: u32,
    turn: u32,
    fingerprint: u64,
}

impl AcpGates {
    /// Adds a request. Returns its gate name and the question to the person.
    ///
    /// The gate name is the agent's id. Some agents reuse ids, and an answer must not be applied to another request. A
    /// reused id therefore gets a number.
    pub(super) fn open(
        &mut self,
        turn: u32,
        id: &RawValue,
        params: &RawValue,
        request: &RequestPermissionParams<'_>,
    ) -> Result<(String, Question), IncompleteRequest> {
        let context = approval_context(request.tool_call, &self.announced)?;
        let fingerprint = fingerprint(params.get());
        let id_use =
            self.ids.entry(id.get().to_owned()).or_insert(RequestIdUse { uses: 1, turn, fingerprint });
        if (id_use.turn, id_use.fingerprint) != (turn, fingerprint) {
            *id_use = RequestIdUse { uses: id_use.uses + 1, turn, fingerprint };
        }
        let name = match id_use.uses {
            1 => id.get().to_owned(),
            uses => format!("{}#{uses}", id.get()),
        };
        let permission_options: Vec<PermissionOption<'_>> = parse_options(request);
        let option =
            |kind: &str| permission_options.iter().find(|option| option.kind.as_deref() == Some(kind));
        let (allow, reject) = (option("allow_once"), option("reject_once"));
        let labels = [(allow, "Yes", false), (reject, "No", true)];
        let options = labels.into_iter().filter_map(|(option, word, safe)| {
            let option = option?;
            let name = option.name.as_deref().unwrap_or(&option.option_id);
            Some(InteractionOption { label: label(name, word), safe })
        });
        let question = context.into_question(options.collect(), None);
        self.known.retain(|gate| gate.name != name);
        self.known.push(AcpGate {
            name: name.clone(),
            id: id.to_owned(),
            allow: allow.map(|option| option.option_id.to_string()),
            reject: reject.map(|option| option.option_id.to_string()),
            answered: false,
        });
        Ok((name, question))
    }

    /// The response to a request.
    pub(super) fn answer(&mut self, answer: &GateAnswer<'_>) -> Result<Vec<u8>, UnsupportedOperation> {
        let gate = self.known.iter_mut().find(|gate| gate.name == answer.gate_id).ok_or_else(|| {
            UnsupportedOperation::Refused { reason: format!("there is no open request {:?}", answer.gate_id) }
        })?;
        gate.answered = true;
        let option = match answer.verdict {
            Some(ApprovalVerdict::Approved) => gate.allow.as_deref(),
            Some(ApprovalVerdict::Declined) | None => gate.reject.as_deref(),
        };
        Ok(requests::permission(&gate.id, option))
    }

    /// Removes a request that the agent has cancelled. Returns its gate name.
    pub(super) fn withdraw(&mut self, id: &RawValue) -> Option<String> {
        let at = self.known.iter().rposition(|gate| gate.id.get() == id.get())?;
        Some(self.known.remove(at).name)
    }

    /// The responses that cancel all open requests.
    pub(super) fn cancel_all(&mut self) -> Vec<u8> {
        let open = self.known.iter_mut().filter(|gate| !gate.answered);
        open.flat_map(|gate| {
            gate.answered = true;
            requests::permission(&gate.id, None)
        })
        .collect()
    }

    pub(super) fn any_open(&self) -> bool {
        self.known.iter().any(|gate| !gate.answered)
    }

    /// Removes all requests at the end of a turn.
    pub(super) fn clear(&mut self) {
        self.known.clear();
        self.announced.clear();
    }
}

/// The options of a request.
fn parse_options<'a>(request: &RequestPermissionParams<'a>) -> Vec<PermissionOption<'a>> {
    let items = request.options.and_then(JsonItems::of).unwrap_or_default();
    items.0.into_iter().filter_map(|raw| parse_part(Some(raw))).collect()
}

/// The option that rejects, if there is one.
pub(super) fn reject_option_id(request: &RequestPermissionParams<'_>) -> Option<String> {
    let rejects = |option: &PermissionOption<'_>| option.kind.as_deref() == Some("reject_once");
    parse_options(request).into_iter().find(rejects).map(|option| option.option_id.into_owned())
}

/// The option's own label, extended if needed so that it is recognised as a yes or a no.
fn label(name: &str, word: &str) -> String {
    const YES: [&str; 6] = ["yes", "allow", "approve", "accept", "ok", "confirm"];
    let name: String = EscapedLabel(name).to_string().chars().take(MAX_LABEL_CHARS).collect();
    let first = name.split([' ', ',']).next().unwrap_or_default().to_lowercase();
    if YES.contains(&&*first) == (word == "Yes") { name } else { format!("{word}, {name}") }
}

fn fingerprint(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}
