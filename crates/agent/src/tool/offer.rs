//! The tools as a model is told of them: names and JSON schemas in the chat-completions form.
//!
//! Not here: the question to a person, which is the loop's own tool.

use serde_json::{Map, Value, json};

use super::arguments::{SESSION_ID, own_parameters};
use crate::definition::{Inject, Kind, Tool};

/// The name by which a session is ended.
pub const SESSION_END: &str = "session_end";

/// The session that is asked for when another one is wanted beside the default one.
pub const NEW_SESSION: &str = "new";

/// Everything that a model is offered of these tools, in order; with `session_end` last if any tool has sessions.
pub fn offered(tools: &[Tool]) -> Vec<Value> {
    let mut all: Vec<Value> = tools.iter().map(offer).collect();
    if tools.iter().any(|tool| tool.stateful) {
        let properties = json!({ SESSION_ID: { "type": "string", "description": "The session to end." } });
        all.push(function(
            SESSION_END,
            "Ends a session and everything that runs in it. Its state is lost.",
            json!({
                "type": "object",
                "properties": properties,
                "required": [SESSION_ID],
                "additionalProperties": false,
            }),
        ));
    }
    all
}

/// A name as the interface of models allows it: letters, digits, `_` and `-`, at most 64.
pub fn wire_name(name: &str) -> String {
    let allowed = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-');
    name.chars().map(|letter| if allowed(letter) { letter } else { '_' }).take(64).collect()
}

fn offer(tool: &Tool) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for parameter in own_parameters(tool) {
        let mut description = parameter.description.clone();
        let at_start = tool.stateful && parameter.inject_as != Inject::Stdin;
        if at_start {
            description = format!("{description} (Used when a session is started.)").trim_start().to_owned();
        }
        let kind = match parameter.kind {
            Kind::String => "string",
            Kind::Integer => "integer",
            Kind::Number => "number",
            Kind::Boolean => "boolean",
        };
        properties.insert(parameter.name.clone(), json!({ "type": kind, "description": description }));
        if parameter.required && !tool.stateful {
            required.push(parameter.name.clone());
        }
    }
    let mut description = tool.description.clone();
    if tool.stateful {
        properties
            .insert(SESSION_ID.to_owned(), json!({ "type": "string", "description": session_words(tool) }));
        description = format!(
            "{description} (Keeps its state between calls. The first call starts a session and names it; later calls go on in it.)"
        );
    }
    let schema = json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    });
    function(&wire_name(&tool.name), description.trim_start(), schema)
}

fn session_words(tool: &Tool) -> String {
    let declared = tool.parameters.iter().find(|parameter| parameter.name == SESSION_ID);
    let own = format!(
        "The session to use. Leave it out for the default session; \"{NEW_SESSION}\" starts another one beside it."
    );
    match declared.map(|parameter| parameter.description.trim()).filter(|words| !words.is_empty()) {
        Some(words) => format!("{words} {own}"),
        None => own,
    }
}

fn function(name: &str, description: &str, parameters: Value) -> Value {
    json!({
        "type": "function",
        "function": { "name": name, "description": description, "parameters": parameters },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::Parameter;
    use crate::tool::invocation::tests::{parameter, tool};

    #[test]
    fn a_tool_is_offered_with_its_parameters_and_the_required_ones() {
        let head = Tool {
            parameters: vec![
                parameter("path", Kind::String, Inject::Argument),
                Parameter { required: false, ..parameter("lines", Kind::Integer, Inject::Option) },
            ],
            ..tool("fs.head", &["head"])
        };
        let expected = json!({
            "type": "function",
            "function": {
                "name": "fs_head",
                "description": "What fs.head does.",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "path": { "type": "string", "description": "The path." },
                        "lines": { "type": "integer", "description": "The lines." },
                    },
                    "required": ["path"],
                    "additionalProperties": false,
                },
            },
        });
        assert_eq!(offered(&[head]), [expected]);
    }

    #[test]
    fn a_tool_with_sessions_is_offered_with_our_session_id_and_the_end_of_sessions() {
        let shell = Tool {
            stateful: true,
            parameters: vec![
                parameter("host", Kind::String, Inject::Argument),
                parameter("text", Kind::String, Inject::Stdin),
                parameter("session_id", Kind::String, Inject::Option),
            ],
            ..tool("shell", &["bash"])
        };
        let all = offered(&[shell]);
        let names: Vec<_> = all.iter().map(|one| one["function"]["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["shell", "session_end"]);
        let schema = &all[0]["function"]["parameters"];
        assert_eq!(schema["required"], json!([]));
        let words = schema["properties"]["session_id"]["description"].as_str().unwrap();
        assert!(
            words.starts_with("The session_id. The session to use.") && words.contains("\"new\""),
            "{words}"
        );
        assert_eq!(
            schema["properties"]["host"]["description"],
            "The host. (Used when a session is started.)"
        );
    }
}
