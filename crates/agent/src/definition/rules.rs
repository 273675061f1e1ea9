//! Checks of a definition beyond its schema: valid tool names, consistent parameters, and the settings of stateful
//! tools.
//!
//! The checks use the tree and not the converted values, so that all problems are reported together.

use serde_saphyr::Location;

use super::{
    ParameterInjection, SESSION_ID,
    problem::{DefinitionProblem, looks_secret},
    yaml::{YamlDocument, YamlNode, YamlValue},
};
use crate::model;

/// Names of built-in tools.
const BUILT_IN: [&str; 3] = ["ask_human", "session_end", "session.end"];

/// All violations.
pub(super) fn check(document: &YamlDocument<'_>) -> Vec<DefinitionProblem> {
    let mut rules = RuleCheck { document, problems: Vec::new() };
    rules.model();
    let tools = document.root.get("tools").map_or(&[][..], YamlNode::items);
    rules.names("tool", tools);
    for tool in tools {
        rules.tool(tool);
    }
    rules.problems
}

struct RuleCheck<'a> {
    document: &'a YamlDocument<'a>,
    problems: Vec<DefinitionProblem>,
}

impl RuleCheck<'_> {
    fn model(&mut self) {
        let Some(model) = self.document.root.get("model") else { return };
        if let Some((node, url)) = text(model, "base_url")
            && let Err(error) = model::check_base_url(url)
        {
            self.say(node.at, format!("model.base_url: {error}"), None);
        }
        if let Some((node, name)) = text(model, "api_key_env") {
            if looks_secret(name) {
                let message = "model.api_key_env: this looks like a key itself";
                let suggestion =
                    "put the key into a variable, and the variable's name here: api_key_env: OPENAI_API_KEY";
                self.say(node.at, message, Some(suggestion.to_owned()));
            } else if !is_variable(name) {
                let suggestion =
                    name.strip_prefix('$').map(|name| format!("write {}", name.trim_matches(['{', '}'])));
                let message = "model.api_key_env: expected the name of a variable, such as OPENAI_API_KEY";
                self.say(node.at, message, suggestion);
            }
        }
    }

    /// Checks that names are accepted by model servers and are unique.
    fn names(&mut self, what: &str, items: &[YamlNode]) {
        let mut seen: Vec<(&str, Location)> = Vec::new();
        for item in items {
            let Some((node, name)) = text(item, "name") else { continue };
            if what == "tool" && BUILT_IN.contains(&name) {
                self.say(
                    node.at,
                    format!("the tool {name} is built in"),
                    Some("choose another name".to_owned()),
                );
            } else if !model::is_wire_name(name) && !name.trim().is_empty() {
                let message = format!(
                    "models refuse {name:?} as the name of a {what}: letters, digits, _ and -, at most {}",
                    model::LONGEST_NAME
                );
                self.say(node.at, message, Some(format!("write {}", model::wire_name(name))));
            }
            match seen.iter().find(|(other, _)| *other == name) {
                Some((_, first)) => {
                    let message = format!("another {what} is called {name} too, on line {}", first.line());
                    self.say(node.at, message, Some("give each its own name".to_owned()));
                }
                None => seen.push((name, node.at)),
            }
        }
    }

    fn tool(&mut self, tool: &YamlNode) {
        let (stateful, shell) = (flag(tool, "stateful"), flag(tool, "shell"));
        self.command(tool, shell);
        let parameters = tool.get("parameters").map_or(&[][..], YamlNode::items);
        self.names("parameter", parameters);
        self.parameters(parameters);
        if stateful {
            self.stateful(tool, parameters, shell);
        }
        if let Some(env) = tool.get("env") {
            for (name, _) in env.entries() {
                if name.value.is_empty() || name.value.contains(['=', '\0']) {
                    self.say(name.referenced, format!("env: {:?} cannot be a variable", name.value), None);
                }
            }
        }
    }

    fn command(&mut self, tool: &YamlNode, shell: bool) {
        let Some(command) = tool.get("command") else { return };
        match (&command.value, shell) {
            (YamlValue::Text(text), false) => {
                let words: Vec<String> = text.split_whitespace().map(|word| format!("{word:?}")).collect();
                let suggestion = format!("write [{}], or add shell: true", words.join(", "));
                self.say(command.at, "command: expected a list of words, not a text", Some(suggestion));
            }
            (YamlValue::List(words), true) if words.len() > 1 => {
                let message = "command: with shell: true it is one text for sh";
                let suggestion = "write it as one text, or remove shell: true";
                self.say(command.at, message, Some(suggestion.to_owned()));
            }
            (YamlValue::List(words), _) => {
                let first = words.first().and_then(YamlNode::text);
                if first.is_some_and(|program| program.trim().is_empty()) {
                    self.say(command.at, "command: the program has no name", None);
                }
            }
            (
                YamlValue::Text(_)
                | YamlValue::Null
                | YamlValue::Bool(_)
                | YamlValue::Integer(_)
                | YamlValue::Number(_)
                | YamlValue::Map(_),
                _,
            ) => {}
        }
    }

    fn parameters(&mut self, parameters: &[YamlNode]) {
        let mut reading: Option<&YamlNode> = None;
        let mut optional: Option<&str> = None;
        for parameter in parameters {
            let name = text(parameter, "name").map_or("", |(_, name)| name);
            let inject = inject(parameter);
            let at = parameter.get("inject_as").map_or(parameter.at, |node| node.at);
            if inject == Some(ParameterInjection::Stdin) {
                if let Some(first) = reading {
                    let message = format!("a program reads one input, and {} is it already", named(first));
                    self.say(at, message, Some("inject one of them as an argument or an option".to_owned()));
                }
                reading = reading.or(Some(parameter));
            }
            if inject == Some(ParameterInjection::Argument) && name != SESSION_ID {
                let is_optional = parameter
                    .get("required")
                    .is_some_and(|node| matches!(node.value, YamlValue::Bool(false)));
                match optional {
                    Some(before) if !is_optional => {
                        let message = format!(
                            "the argument {name} is required and stands behind {before}, which may be missing: the program \
                             could not tell them apart"
                        );
                        let suggestion = format!("put {before} last, or inject it as an option");
                        self.say(parameter.at, message, Some(suggestion));
                    }
                    Some(_) => {}
                    None => optional = is_optional.then_some(name),
                }
            }
            self.option(parameter, inject);
        }
    }

    fn option(&mut self, parameter: &YamlNode, inject: Option<ParameterInjection>) {
        let Some((node, option)) = text(parameter, "option_name") else { return };
        match inject {
            Some(ParameterInjection::Argument | ParameterInjection::Stdin) => {
                let message = "option_name is only for a parameter that is injected as an option";
                self.say(node.at, message, Some("add inject_as: option, or remove it".to_owned()));
            }
            Some(ParameterInjection::Option) | None => {}
        }
        if !option.starts_with('-') || option.contains(char::is_whitespace) {
            let bare: String = option.chars().filter(|c| !c.is_whitespace()).collect();
            let message = format!("option_name: {option:?} is no option");
            self.say(node.at, message, Some(format!("write --{}", bare.trim_start_matches('-'))));
        }
    }

    fn stateful(&mut self, tool: &YamlNode, parameters: &[YamlNode], shell: bool) {
        if let (Some(at), true) = (tool.key("shell"), shell) {
            let message = "shell: true is for a command that ends; a stateful tool's program stays";
            let suggestion = "remove shell, and let the command be a shell: command: [\"bash\"]";
            self.say(at, message, Some(suggestion.to_owned()));
        }
        if !parameters.iter().any(|parameter| inject(parameter) == Some(ParameterInjection::Stdin)) {
            let at = tool.key("stateful").unwrap_or(tool.at);
            let message = "a stateful tool needs a parameter for what is said to its program";
            let suggestion = "add a parameter with inject_as: stdin";
            self.say(at, message, Some(suggestion.to_owned()));
        }
        for parameter in parameters {
            let Some((_, SESSION_ID)) = text(parameter, "name") else { continue };
            let other = text(parameter, "type").filter(|(_, kind)| *kind != "string");
            if let Some((node, _)) = other {
                self.say(node.at, format!("{SESSION_ID} is a string"), None);
            }
            if inject(parameter) == Some(ParameterInjection::Stdin) {
                let at = parameter.get("inject_as").map_or(parameter.at, |node| node.at);
                let message = format!("{SESSION_ID} names a session and is not said to the program");
                self.say(at, message, Some("remove it: every stateful tool has it".to_owned()));
            }
        }
    }

    fn say(&mut self, at: Location, message: impl Into<String>, suggestion: Option<String>) {
        self.problems.push(self.document.problem(at, message).suggesting(suggestion));
    }
}

fn text<'a>(node: &'a YamlNode, key: &str) -> Option<(&'a YamlNode, &'a str)> {
    let node = node.get(key)?;
    Some((node, node.text()?))
}

fn named(node: &YamlNode) -> &str {
    text(node, "name").map_or("another one", |(_, name)| name)
}

fn flag(node: &YamlNode, key: &str) -> bool {
    node.get(key).is_some_and(YamlNode::is_true)
}

/// The injection of a parameter; `None` if the value is invalid.
fn inject(parameter: &YamlNode) -> Option<ParameterInjection> {
    let Some(node) = parameter.get("inject_as") else { return Some(ParameterInjection::Argument) };
    match node.text()? {
        "argument" => Some(ParameterInjection::Argument),
        "option" => Some(ParameterInjection::Option),
        "stdin" => Some(ParameterInjection::Stdin),
        _ => None,
    }
}

fn is_variable(name: &str) -> bool {
    let mut chars = name.chars();
    let first = chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    first && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}
