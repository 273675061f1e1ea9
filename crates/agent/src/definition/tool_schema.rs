//! Describes a tool to the model: name, description and JSON Schema of the arguments.
//!
//! The check of the arguments in a call is in [`crate::tool`].

use serde_json::{Map, Value, json};

use super::{ParameterInjection, ParameterKind, ToolDefinition, ToolParameter};

/// The parameter that names the session in a call of a stateful tool.
pub const SESSION_ID_PARAMETER: &str = "session_id";

impl ToolDefinition {
    /// The tool as one JSON object, ready to be put into a [`ModelRequest`](crate::model::ModelRequest).
    pub fn to_tool_json(&self) -> String {
        tool_json(&self.name, &self.description, &self.schema())
    }

    /// The JSON Schema of the arguments. Stateful tools always have the parameter `session_id`.
    pub fn schema(&self) -> Value {
        let mut properties: Map<String, Value> = self
            .parameters
            .iter()
            .map(|parameter| (parameter.name.clone(), self.parameter_schema(parameter)))
            .collect();
        if self.stateful {
            let declared = self.parameters.iter().find(|parameter| parameter.name == SESSION_ID_PARAMETER);
            let declared_description = declared.map_or("", |parameter| parameter.description.as_str());
            let description =
                format!("{declared_description} {SESSION_ID_DESCRIPTION}").trim_start().to_owned();
            properties.insert(
                SESSION_ID_PARAMETER.to_owned(),
                json!({ "type": "string", "description": description }),
            );
        }
        let required: Vec<&str> =
            self.parameters.iter().filter(|p| self.requires(p)).map(|p| p.name.as_str()).collect();
        json!({
            "type": "object", "properties": properties, "required": required, "additionalProperties": false,
        })
    }

    /// Whether a call without this parameter is refused. For stateful tools, neither the session nor the input is
    /// required: by default a call uses the default session, and starts it if needed.
    pub fn requires(&self, parameter: &ToolParameter) -> bool {
        let implied = self.stateful
            && (parameter.name == SESSION_ID_PARAMETER || parameter.inject_as == ParameterInjection::Stdin);
        parameter.required && !implied
    }

    fn parameter_schema(&self, parameter: &ToolParameter) -> Value {
        let mut schema = json!({ "type": parameter.kind.name() });
        let mut description = parameter.description.clone();
        if self.stateful && parameter.inject_as != ParameterInjection::Stdin {
            description = format!("{description} (Used when a session is started.)").trim_start().to_owned();
        }
        if !description.is_empty() {
            schema["description"] = json!(description);
        }
        schema
    }
}

/// Description of the parameter `session_id`.
const SESSION_ID_DESCRIPTION: &str = "The session to use, as an earlier result named it. Without it, the tool's default session, \
                             which is started when there is none; \"new\" starts another one beside it.";

/// A defined or built-in tool as one JSON object.
pub fn tool_json(name: &str, description: &str, parameters: &Value) -> String {
    let function = json!({ "name": name, "description": description, "parameters": parameters });
    json!({ "type": "function", "function": function }).to_string()
}

impl ParameterKind {
    /// The name in definitions and in JSON Schema.
    pub fn name(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn tool(stateful: bool) -> ToolDefinition {
        let parameter = |name: &str, kind, inject_as| ToolParameter {
            name: name.to_owned(),
            kind,
            description: String::new(),
            required: true,
            inject_as,
            option_name: None,
        };
        ToolDefinition {
            name: "t".to_owned(),
            description: "does it".to_owned(),
            command: vec!["t".to_owned()],
            parameters: vec![
                parameter("text", ParameterKind::String, ParameterInjection::Stdin),
                parameter("count", ParameterKind::Integer, ParameterInjection::Option),
            ],
            timeout_sec: None,
            stateful,
            pty: None,
            shell: false,
            env: BTreeMap::new(),
            cwd: None,
        }
    }

    #[test]
    fn a_tool_is_described_with_a_schema_of_its_arguments() {
        let offered: Value = serde_json::from_str(&tool(false).to_tool_json()).unwrap();
        let expected = json!({ "type": "function", "function": {
            "name": "t", "description": "does it", "parameters": {
                "type": "object", "additionalProperties": false, "required": ["text", "count"],
                "properties": { "text": { "type": "string" }, "count": { "type": "integer" } },
            },
        }});
        assert_eq!(offered, expected);
    }

    #[test]
    fn a_stateful_tool_takes_a_session_and_demands_neither_it_nor_a_text() {
        let schema = tool(true).schema();
        assert_eq!(schema["required"], json!(["count"]));
        assert_eq!(schema["properties"][SESSION_ID_PARAMETER]["type"], "string");
        assert_eq!(schema["properties"]["count"]["description"], "(Used when a session is started.)");
    }

    #[test]
    fn a_declared_session_id_gets_the_standard_description_appended() {
        let mut tool = tool(true);
        tool.parameters.push(ToolParameter {
            name: SESSION_ID_PARAMETER.to_owned(),
            kind: ParameterKind::String,
            description: "Which one.".to_owned(),
            required: true,
            inject_as: ParameterInjection::Option,
            option_name: Some("--session-id".to_owned()),
        });
        let schema = tool.schema();
        assert_eq!(schema["required"], json!(["count"]));
        let words = schema["properties"][SESSION_ID_PARAMETER]["description"].as_str().unwrap();
        assert!(words.starts_with("Which one. The session to use,") && words.contains("\"new\""), "{words}");
    }
}
