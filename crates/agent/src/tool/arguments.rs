//! What a model sent as arguments, checked against the tool's parameters.
//!
//! Everything that is wrong is said at once, in words that a model can act on. The session's id is ours, whether a tool
//! declares it or not. Not here: how a value reaches the program; that is [`super::invocation`].

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::bad_call::{BadCall, suggestion};
use crate::definition::{Inject, Kind, Parameter, SESSION_ID, Tool};

/// Arguments that fit a tool.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Arguments {
    /// By the parameter's name; what was left out or null is not there.
    pub values: BTreeMap<String, Value>,
    /// Which session, if the tool has sessions and one was named.
    pub session: Option<String>,
    /// What is missing before a session of the tool can be started.
    pub missing_to_start: Vec<String>,
}

/// Checks what a model sent.
pub fn check(tool: &Tool, sent: &Map<String, Value>) -> Result<Arguments, BadCall> {
    let mut problems = Vec::new();
    let mut arguments = Arguments::default();
    for (name, value) in sent {
        if tool.stateful && name == SESSION_ID {
            match value {
                Value::String(id) if id.is_empty() => {}
                Value::String(id) => arguments.session = Some(id.clone()),
                Value::Null => {}
                Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                    problems.push(format!("\"{SESSION_ID}\" must be a string, not {}", described(value)))
                }
            }
            continue;
        }
        match tool.parameters.iter().find(|parameter| parameter.name == *name) {
            None => problems.push(unknown(tool, name)),
            Some(_) if value.is_null() => {}
            Some(parameter) => match fits(parameter, value) {
                Ok(()) => drop(arguments.values.insert(name.clone(), value.clone())),
                Err(problem) => problems.push(problem),
            },
        }
    }
    for parameter in own_parameters(tool) {
        let given = sent.get(&parameter.name).is_some_and(|value| !value.is_null());
        if !parameter.required || given {
            continue;
        }
        let missing =
            format!("missing required parameter \"{}\" ({})", parameter.name, parameter.kind.name());
        match (tool.stateful, parameter.inject_as) {
            (false, _) => problems.push(missing),
            // A session is started with nothing to say to it.
            (true, Inject::Stdin) => {}
            // What a program is started with is not needed once it runs.
            (true, Inject::Argument | Inject::Option) => arguments.missing_to_start.push(missing),
        }
    }
    BadCall::unless_empty(problems)?;
    Ok(arguments)
}

/// The parameters that are the tool's own matter.
pub(crate) fn own_parameters(tool: &Tool) -> impl Iterator<Item = &Parameter> {
    tool.parameters.iter().filter(|parameter| !(tool.stateful && parameter.name == SESSION_ID))
}

fn unknown(tool: &Tool, name: &str) -> String {
    let mut known: Vec<&str> = own_parameters(tool).map(|parameter| parameter.name.as_str()).collect();
    if tool.stateful {
        known.push(SESSION_ID);
    }
    let listed = if known.is_empty() {
        "it takes none".to_owned()
    } else {
        format!("its parameters are: {}", known.join(", "))
    };
    format!("\"{}\" has no parameter \"{name}\"{}; {listed}", tool.name, suggestion(name, known))
}

fn fits(parameter: &Parameter, value: &Value) -> Result<(), String> {
    let right = match (parameter.kind, value) {
        (Kind::String, Value::String(_)) | (Kind::Boolean, Value::Bool(_)) => true,
        (Kind::Number, Value::Number(_)) => true,
        // 3.0 is what some models write for 3.
        (Kind::Integer, Value::Number(number)) => {
            number.is_i64() || number.is_u64() || number.as_f64().is_some_and(|value| value.fract() == 0.0)
        }
        (Kind::String | Kind::Boolean | Kind::Number | Kind::Integer, _) => false,
    };
    if right {
        return Ok(());
    }
    Err(format!("\"{}\" must be {}, not {}", parameter.name, article(parameter.kind), described(value)))
}

/// A value as a program reads it.
pub(crate) fn text_of(kind: Kind, value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) if kind == Kind::Integer && number.is_f64() => {
            format!("{:.0}", number.as_f64().unwrap_or(0.0))
        }
        Value::Bool(_) | Value::Number(_) | Value::Null | Value::Array(_) | Value::Object(_) => {
            value.to_string()
        }
    }
}

fn article(kind: Kind) -> String {
    format!("{} {}", if kind == Kind::Integer { "an" } else { "a" }, kind.name())
}

fn described(value: &Value) -> String {
    let shown = |text: String| text.chars().take(40).collect::<String>();
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => format!("the boolean {value}"),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) => format!("the string \"{}\"", shown(text.clone())),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tool::invocation::tests::{parameter, tool};

    fn map(sent: &str) -> Map<String, Value> {
        serde_json::from_str(sent).expect("a test sends an object")
    }

    fn problem(tool: &Tool, sent: &str) -> String {
        match check(tool, &map(sent)) {
            Ok(arguments) => panic!("{arguments:?} was taken"),
            Err(bad) => bad.to_string(),
        }
    }

    fn reader() -> Tool {
        Tool {
            parameters: vec![
                parameter("path", Kind::String, Inject::Argument),
                Parameter { required: false, ..parameter("lines", Kind::Integer, Inject::Option) },
            ],
            ..tool("read_file", &["head"])
        }
    }

    #[test]
    fn every_mistake_of_a_call_is_said_at_once_and_can_be_acted_on() {
        assert_eq!(
            problem(&reader(), r#"{"pth": "a", "lines": "ten"}"#),
            "the call was not carried out: \"lines\" must be an integer, not the string \"ten\"; \
             \"read_file\" has no parameter \"pth\" (did you mean \"path\"?); its parameters are: path, lines; \
             missing required parameter \"path\" (string)"
        );
        assert!(problem(&reader(), r#"{"path": null}"#).contains("missing required parameter \"path\""));
        assert!(problem(&reader(), r#"{"path": "a", "lines": 1.5}"#).contains("not the number 1.5"));
        assert!(problem(&tool("now", &["date"]), r#"{"a": 1}"#).contains("it takes none"));
    }

    #[test]
    fn what_is_optional_may_be_left_out_or_null() {
        let sent = map(r#"{"path": "a", "lines": null}"#);
        assert_eq!(
            check(&reader(), &sent).unwrap().values,
            BTreeMap::from([("path".to_owned(), json!("a"))])
        );
        assert_eq!(text_of(Kind::Integer, &json!(3.0)), "3");
        assert_eq!(text_of(Kind::Number, &json!(0.5)), "0.5");
    }

    #[test]
    fn a_session_is_named_by_a_parameter_of_ours_whether_the_tool_declares_it_or_not() {
        for declared in [false, true] {
            let mut shell = Tool {
                stateful: true,
                parameters: vec![parameter("text", Kind::String, Inject::Stdin)],
                ..tool("shell", &["bash"])
            };
            if declared {
                shell.parameters.push(parameter(SESSION_ID, Kind::String, Inject::Option));
            }
            let sent = map(r#"{"session_id": "shell_abc234"}"#);
            let arguments = check(&shell, &sent).unwrap();
            assert_eq!(arguments.session.as_deref(), Some("shell_abc234"));
            assert!(arguments.values.is_empty());
            assert_eq!(check(&shell, &Map::new()).unwrap(), Arguments::default());
        }
    }
}
