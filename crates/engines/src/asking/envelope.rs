//! Converts an object that a model wrote to a question, even if it deviates from the contract (D1).
//!
//! The model's ids of questions are dropped, because they repeat and ours are unique. The location of the object is not
//! known here.

use abide_domain::interaction::{DecisionPolicy, InteractionKind, InteractionOption, Question};
use serde_json::{Map, Value};

/// Maximum length of a question, in characters.
pub(super) const MAX_PROMPT_CHARS: usize = 16_000;
/// Maximum length of a suggested answer, in characters.
const MAX_LABEL_CHARS: usize = 400;
/// Maximum number of suggested answers.
const MAX_OPTIONS: usize = 40;
/// Maximum size of display hints, in bytes.
const MAX_HINTS_BYTES: usize = 16_000;

/// The likelihood that an object without a marker is a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QuestionLikelihood {
    /// It declares itself a question.
    Declared,
    /// It has the members of a question.
    Probable,
    /// It is something else.
    None,
}

pub(super) fn question_likelihood(object: &Map<String, Value>) -> QuestionLikelihood {
    let inner = unwrap_object(object);
    let asks = text_of(inner, &PROMPT_KEYS).is_some();
    let outcome = has_wait_marker(object, "outcome");
    let wrapped = WRAPPER_KEYS.iter().any(|name| object.get(*name).is_some_and(Value::is_object));
    if outcome
        || wrapped
        || (asks && ["status", "type", "action", "event"].iter().any(|name| has_wait_marker(object, name)))
    {
        return QuestionLikelihood::Declared;
    }
    let kind = inner.get("kind").and_then(Value::as_str);
    if asks && kind.is_some_and(|kind| parse_kind(kind).is_some()) {
        QuestionLikelihood::Probable
    } else {
        QuestionLikelihood::None
    }
}

/// Values with which engines declare that they wait for a person.
const WAIT_MARKERS: [&str; 5] =
    ["pending_user", "ask_user", "waiting_user", "waiting_user_input", "abide_question"];
const WRAPPER_KEYS: [&str; 3] = ["ask_user", "abide_question", "abide-question"];
const PROMPT_KEYS: [&str; 4] = ["prompt", "question", "message", "text"];

fn has_wait_marker(object: &Map<String, Value>, member: &str) -> bool {
    object.get(member).and_then(Value::as_str).is_some_and(is_wait_marker)
}

/// Whether this word declares that the engine waits for a person.
pub(super) fn is_wait_marker(word: &str) -> bool {
    WAIT_MARKERS.contains(&normalize_name(word).as_str())
}

/// The wrapped object, or the object itself.
fn unwrap_object(object: &Map<String, Value>) -> &Map<String, Value> {
    let wrapped = ["interaction", "question"]
        .iter()
        .chain(&WRAPPER_KEYS)
        .find_map(|name| object.get(*name)?.as_object());
    wrapped.unwrap_or(object)
}

/// The question in an object; deviations are added to `warnings`. `None` if it contains no question. The caller then decides
/// about the text before it.
pub(super) fn question(
    object: &Map<String, Value>,
    prose: &str,
    warnings: &mut Vec<String>,
) -> Option<Question> {
    let object = unwrap_object(object);
    let typed = || object.get("type").filter(|_| !has_wait_marker(object, "type"));
    let kind = match object.get("kind").or_else(typed) {
        None => InteractionKind::OpenText,
        Some(kind) => kind.as_str().and_then(parse_kind).unwrap_or_else(|| {
            warnings.push(format!(
                "the question's kind {} is unknown, so it is open_text",
                truncate_for_warning(&kind.to_string())
            ));
            InteractionKind::OpenText
        }),
    };
    let options = options(object, warnings);
    let prompt = match text_of(object, &PROMPT_KEYS) {
        Some(prompt) => truncate(prompt, MAX_PROMPT_CHARS, "the question", warnings),
        None if !prose.is_empty() => {
            warnings.push("the question has no prompt, so the preceding text is used".to_owned());
            prompt_from_tail(prose)
        }
        None if !options.is_empty() => {
            warnings.push("the question has no prompt, only options".to_owned());
            "Which of these?".to_owned()
        }
        None => return None,
    };
    Some(Question {
        kind,
        prompt,
        options,
        ui_hints: hints(object, warnings),
        default_decision_policy: policy(object, kind, warnings),
        context: None,
        hidden: None,
    })
}

/// The end of a long text, because the question is usually next to the block.
pub(super) fn prompt_from_tail(prose: &str) -> String {
    let from = prose.char_indices().rev().nth(MAX_PROMPT_CHARS - 1).map_or(0, |(at, _)| at);
    prose.get(from..).unwrap_or(prose).to_owned()
}

/// Truncates a text to `max_chars` characters. `part` names the text in the warning.
pub(super) fn truncate(text: String, max_chars: usize, part: &str, warnings: &mut Vec<String>) -> String {
    match text.char_indices().nth(max_chars) {
        None => text,
        Some((end, _)) => {
            warnings.push(format!("{part} is longer than {max_chars} characters and was cut"));
            format!("{}…", text.get(..end).unwrap_or_default())
        }
    }
}

/// The kind with this name in any spelling; `None` if there is none.
fn parse_kind(name: &str) -> Option<InteractionKind> {
    let name = normalize_name(name);
    let kind = InteractionKind::from_name(&name);
    (kind != InteractionKind::OpenText || name == "open_text").then_some(kind)
}

fn normalize_name(name: &str) -> String {
    name.trim().to_lowercase().replace(['-', ' '], "_")
}

/// The first of these members that is not empty.
fn text_of(object: &Map<String, Value>, names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| scalar(object.get(*name)?))
}

fn scalar(value: &Value) -> Option<String> {
    let text = match value {
        Value::String(text) => text.trim().to_owned(),
        Value::Number(number) => number.to_string(),
        Value::Bool(truth) => (if *truth { "yes" } else { "no" }).to_owned(),
        Value::Array(lines) => {
            lines.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n").trim().to_owned()
        }
        Value::Null | Value::Object(_) => String::new(),
    };
    (!text.is_empty()).then_some(text)
}

fn options(object: &Map<String, Value>, warnings: &mut Vec<String>) -> Vec<InteractionOption> {
    let value = object.get("options").or_else(|| object.get("choices"));
    let mut choices: Vec<InteractionOption> = match value {
        None | Some(Value::Null) => vec![],
        Some(Value::Array(options)) => options.iter().take(MAX_OPTIONS + 1).filter_map(choice).collect(),
        Some(Value::Object(options)) => options.values().take(MAX_OPTIONS + 1).filter_map(choice).collect(),
        Some(Value::String(_) | Value::Number(_) | Value::Bool(_)) => {
            warnings.push("the question's options are not a list".to_owned());
            vec![]
        }
    };
    if choices.len() > MAX_OPTIONS {
        warnings.push(format!("the question has more than {MAX_OPTIONS} options; the others were left out"));
        choices.truncate(MAX_OPTIONS);
    }
    for choice in &mut choices {
        choice.label = truncate(std::mem::take(&mut choice.label), MAX_LABEL_CHARS, "an option", warnings);
    }
    choices
}

fn choice(option: &Value) -> Option<InteractionOption> {
    let (label, safe) = match option {
        Value::Object(option) => {
            let safe = ["safe", "is_safe", "default"].iter().any(|name| match option.get(*name) {
                Some(Value::Bool(truth)) => *truth,
                Some(Value::String(word)) => word.trim().eq_ignore_ascii_case("true"),
                Some(Value::Null | Value::Number(_) | Value::Array(_) | Value::Object(_)) | None => false,
            });
            (text_of(option, &["label", "value", "text", "title", "name", "id"])?, safe)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            let label = scalar(option)?;
            match label.strip_suffix("(safe)").map(str::trim_end).filter(|label| !label.is_empty()) {
                Some(marked) => (marked.to_owned(), true),
                None => (label, false),
            }
        }
    };
    let label = label.split_whitespace().collect::<Vec<_>>().join(" ");
    Some(InteractionOption { label, safe })
}

fn hints(object: &Map<String, Value>, warnings: &mut Vec<String>) -> Option<String> {
    let value = object.get("ui_hints").filter(|hints| !hints.is_null());
    // The contract has no member for fields, but front ends need them.
    let fields = || object.get("fields").map(|fields| format!("{{\"fields\":{fields}}}"));
    let hints = value.map(Value::to_string).or_else(fields)?;
    if hints.len() > MAX_HINTS_BYTES {
        warnings.push(format!("the display hints are longer than {MAX_HINTS_BYTES} bytes and were left out"));
        return None;
    }
    Some(hints)
}

fn policy(object: &Map<String, Value>, kind: InteractionKind, warnings: &mut Vec<String>) -> DecisionPolicy {
    // A missing answer must never accept a risk.
    let standard = if kind == InteractionKind::RiskAck {
        DecisionPolicy::Abort
    } else {
        DecisionPolicy::EngineJudgement
    };
    let Some(value) = object.get("default_decision_policy").filter(|policy| !policy.is_null()) else {
        return standard;
    };
    match value.as_str().map(normalize_name).as_deref() {
        Some("engine_judgement" | "engine_judgment") => DecisionPolicy::EngineJudgement,
        Some("safe_default") => DecisionPolicy::SafeDefault,
        Some("abort") => DecisionPolicy::Abort,
        Some(_) | None => {
            warnings.push(format!("the policy {} is unknown", truncate_for_warning(&value.to_string())));
            standard
        }
    }
}

fn truncate_for_warning(text: &str) -> String {
    truncate(text.to_owned(), 60, "a name", &mut vec![])
}
