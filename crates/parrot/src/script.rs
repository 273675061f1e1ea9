//! The instructions of the parrot, parsed from the lines of a prompt. They are executed elsewhere.
//!
//! | instruction | effect |
//! |---|---|
//! | `say TEXT` | a part of the result |
//! | `ask KIND[/POLICY] PROMPT \| option \| option` | ends the turn with a question; an option that ends in `(safe)` is the safe one |
//! | `gate PROMPT` | asks for approval inside the turn and waits |
//! | `gate KIND: COMMAND` | the same, for a command (`command`), a path and its new text (`file_change`), a tool and its input (`tool`), or anything else (`permission`) |
//! | `progress TEXT` | reports progress |
//! | `sleep SEC` | a pause |
//! | `print N` | N bytes of output that are not part of the result |
//! | `write PATH TEXT`, `append PATH TEXT` | a file in the workspace with this line; this line added to it |
//! | `fail TEXT`, `crash`, `hang` | exits with 1; sends SIGKILL to itself; hangs forever and ignores SIGTERM |
//! | `mute-session`, `lose-session` | announces no session id in this turn; makes the session unusable |
//!
//! Any other line is answered with `heard: <line>`, and so is an instruction with invalid arguments. `$reply` in a text
//! is the last reply, to a question or at a gate.

use std::{collections::VecDeque, time::Duration};

use abide_engines::asking::patch;
use serde_json::{Value, json};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ParrotInstruction {
    Say(String),
    Ask(ParrotQuestion),
    Gate(ParrotGate),
    Progress(String),
    Sleep(Duration),
    Print(u64),
    Write { path: String, text: String },
    Append { path: String, text: String },
    Fail(String),
    Crash,
    Hang,
    MuteSession,
    LoseSession,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ParrotGate {
    pub(crate) prompt: String,
    /// Kind and command, if the request has them.
    pub(crate) action: Option<(String, String)>,
}

/// Kinds of requests that have a command.
const GATE_KINDS: [&str; 4] = ["command", "file_change", "permission", "tool"];

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ParrotQuestion {
    kind: String,
    policy: Option<String>,
    prompt: String,
    options: Vec<(String, bool)>,
}

/// The remaining instructions and the last reply.
#[derive(Debug, Default)]
pub(crate) struct ParrotScript {
    lines: VecDeque<String>,
    reply: String,
}

impl ParrotScript {
    /// Restores the rest of an earlier script.
    pub(crate) fn restore(lines: Vec<String>, reply: String) -> Self {
        Self { lines: lines.into(), reply }
    }

    pub(crate) fn add(&mut self, text: &str) {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        self.lines.extend(lines.map(str::to_owned));
    }

    pub(crate) fn next(&mut self) -> Option<ParrotInstruction> {
        self.lines.pop_front().map(|line| parse_instruction(&line, &self.reply))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub(crate) fn set_reply(&mut self, reply: &str) {
        reply.clone_into(&mut self.reply);
    }

    /// Whether no session id is announced before the next question.
    pub(crate) fn is_mute(&self) -> bool {
        let this_turn = self
            .lines
            .iter()
            .take_while(|line| !matches!(parse_instruction(line, ""), ParrotInstruction::Ask(_)));
        this_turn.into_iter().any(|line| parse_instruction(line, "") == ParrotInstruction::MuteSession)
    }

    /// Returns the remaining lines and the last reply.
    pub(crate) fn into_rest(self) -> (Vec<String>, String) {
        (self.lines.into(), self.reply)
    }
}

impl ParrotQuestion {
    /// Formats the question as the text block that a model would write.
    pub(crate) fn block(&self) -> String {
        let options: Vec<Value> =
            self.options.iter().map(|(label, safe)| json!({ "label": label, "safe": safe })).collect();
        let mut question = json!({ "kind": self.kind, "prompt": self.prompt, "options": options });
        if let (Some(policy), Some(members)) = (&self.policy, question.as_object_mut()) {
            members.insert("default_decision_policy".to_owned(), json!(policy));
        }
        format!("```{}\n{question}\n```", patch::QUESTION_FENCE)
    }
}

fn parse_instruction(line: &str, reply: &str) -> ParrotInstruction {
    let substitute = |text: &str| text.trim().replace("$reply", reply);
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = rest.trim();
    let instruction = match word {
        "say" => Some(ParrotInstruction::Say(substitute(rest))),
        "ask" => parse_question(rest, &substitute).map(ParrotInstruction::Ask),
        "gate" => Some(ParrotInstruction::Gate(gate(substitute(rest)))),
        "progress" => Some(ParrotInstruction::Progress(substitute(rest))),
        "sleep" => rest
            .parse()
            .ok()
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
            .map(ParrotInstruction::Sleep),
        "print" => rest.parse().ok().map(ParrotInstruction::Print),
        "write" => file(rest, &substitute).map(|(path, text)| ParrotInstruction::Write { path, text }),
        "append" => file(rest, &substitute).map(|(path, text)| ParrotInstruction::Append { path, text }),
        "fail" => Some(ParrotInstruction::Fail(substitute(rest))),
        "crash" if rest.is_empty() => Some(ParrotInstruction::Crash),
        "hang" if rest.is_empty() => Some(ParrotInstruction::Hang),
        "mute-session" if rest.is_empty() => Some(ParrotInstruction::MuteSession),
        "lose-session" if rest.is_empty() => Some(ParrotInstruction::LoseSession),
        _ => None,
    };
    instruction.unwrap_or_else(|| ParrotInstruction::Say(format!("heard: {}", substitute(line))))
}

fn gate(prompt: String) -> ParrotGate {
    let action = prompt.split_once(':').map(|(kind, command)| (kind.trim(), command.trim()));
    let action = action.filter(|(kind, command)| GATE_KINDS.contains(kind) && !command.is_empty());
    let action = action.map(|(kind, command)| (kind.to_owned(), command.to_owned()));
    ParrotGate { prompt, action }
}

fn parse_question(rest: &str, filled: &impl Fn(&str) -> String) -> Option<ParrotQuestion> {
    let (kind, rest) = rest.split_once(char::is_whitespace)?;
    let (kind, policy) = match kind.split_once('/') {
        Some((kind, policy)) => (kind, Some(policy.to_owned())),
        None => (kind, None),
    };
    let mut parts = rest.split('|');
    let prompt = filled(parts.next()?);
    let options = parts.map(|part| match part.trim().strip_suffix("(safe)") {
        Some(label) => (filled(label), true),
        None => (filled(part), false),
    });
    Some(ParrotQuestion { kind: kind.to_owned(), policy, prompt, options: options.collect() })
}

/// Splits into a path and one line of text.
fn file(rest: &str, filled: &impl Fn(&str) -> String) -> Option<(String, String)> {
    let (path, text) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let text = filled(text).replace(['\n', '\r'], " ");
    (!path.is_empty()).then(|| (path.to_owned(), text))
}

#[cfg(test)]
mod tests {
    use abide_domain::event::TurnOutcome;
    use abide_engines::asking::recognise;

    use super::*;

    #[test]
    fn other_lines_are_heard() {
        for line in [
            "hello",
            "say-it",
            "sleep long",
            "sleep -1",
            "print x",
            "ask",
            "ask confirm",
            "append",
            "crash now",
        ] {
            assert_eq!(parse_instruction(line, ""), ParrotInstruction::Say(format!("heard: {line}")));
        }
        assert_eq!(parse_instruction("say", ""), ParrotInstruction::Say(String::new()));
    }

    #[test]
    fn the_last_reply_stands_where_a_text_asks_for_it() {
        assert_eq!(
            parse_instruction("say you said $reply", "two\nlines"),
            ParrotInstruction::Say("you said two\nlines".to_owned())
        );
        let append = ParrotInstruction::Append { path: "a/b".to_owned(), text: "= two lines".to_owned() };
        assert_eq!(parse_instruction("append a/b = $reply", "two\nlines"), append, "a line stays one line");
        assert_eq!(
            parse_instruction("$reply", "crash"),
            ParrotInstruction::Say("heard: crash".to_owned()),
            "a reply is no order"
        );
    }

    #[test]
    fn its_question_is_recognised_as_any_models() {
        let ParrotInstruction::Ask(asking) =
            parse_instruction("ask choose_one/safe_default Which \"db\"? | SQLite (safe) | $reply", "PG")
        else {
            panic!("no question")
        };
        let recognized = recognise(&asking.block());
        assert_eq!(recognized.warning, None);
        let TurnOutcome::Asked { question, .. } = recognized.outcome else { panic!("not recognised") };
        assert_eq!(question.prompt, "Which \"db\"?");
        let labels: Vec<_> =
            question.options.iter().map(|option| (option.label.as_str(), option.safe)).collect();
        assert_eq!(labels, [("SQLite", true), ("PG", false)]);
    }

    /// I68
    #[test]
    fn a_gate_may_have_a_kind_and_a_command() {
        let deed = |line: &str| {
            let ParrotInstruction::Gate(gate) = parse_instruction(line, "") else {
                panic!("{line} is no gate")
            };
            gate.action
        };
        let some = |kind: &str, command: &str| Some((kind.to_owned(), command.to_owned()));
        assert_eq!(deed("gate command: rm -rf x: y"), some("command", "rm -rf x: y"));
        assert_eq!(deed("gate file_change: a b"), some("file_change", "a b"));
        for plain in ["gate May I?", "gate Note: this", "gate command:", "gate"] {
            assert_eq!(deed(plain), None, "{plain}");
        }
    }

    #[test]
    fn a_turn_is_mute_only_up_to_its_question() {
        let mut script = ParrotScript::default();
        script.add("say a\nask confirm Go?\nmute-session\nsay b");
        assert!(!script.is_mute());
        assert!(matches!(
            (script.next(), script.next()),
            (Some(ParrotInstruction::Say(_)), Some(ParrotInstruction::Ask(_)))
        ));
        assert!(script.is_mute());
    }
}
