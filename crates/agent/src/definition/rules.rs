//! Checks of a definition beyond its schema: valid tool names, consistent parameters, and the settings of stateful
//! tools.
//!
//! The checks use the tree and not the converted values, so that all problems are reported together.

use abide_os::config_problem::{ConfigProblem, looks_secret};
use serde_saphyr::Location;

use super::{
    ParameterInjection, SESSION_ID_PARAMETER,
    yaml::{YamlDocument, YamlNode, YamlValue},
};
use crate::model;

/// Names of built-in tools.
const BUILT_IN_TOOLS: [&str; 3] = ["ask_human", "session_end", "session.end"];

pub(super) fn check(document: &YamlDocument<'_>) -> Vec<ConfigProblem> {
    let mut rules = RuleCheck { document, problems: Vec::new() };
    rules.check_model();
    let tools = document.root.get("tools").map_or(&[][..], YamlNode::items);
    rules.check_names("tool", tools);
    for tool in tools {
        rules.check_tool(tool);
    }
    rules.problems
}

struct RuleCheck<'a> {
    document: &'a YamlDocument<'a>,
    problems: Vec<ConfigProblem>,
}

impl RuleCheck<'_> {
    fn check_model(&mut self) {
        let Some(model) = self.document.root.get("model") else { return };
        if let Some((node, url)) = text_entry(model, "base_url")
            && let Err(error) = model::check_base_url(url)
        {
            self.report_key(node.location, "model.base_url", error, None);
        }
        if let Some((node, name)) = text_entry(model, "api_key_env") {
            if looks_secret(name) {
                let message = "this looks like a key itself";
                let suggestion =
                    "put the key into a variable, and the variable's name here: api_key_env: OPENAI_API_KEY";
                self.report_key(node.location, "model.api_key_env", message, Some(suggestion.to_owned()));
            } else if !is_variable(name) {
                let suggestion =
                    name.strip_prefix('$').map(|name| format!("write {}", name.trim_matches(['{', '}'])));
                let message = "expected the name of a variable, such as OPENAI_API_KEY";
                self.report_key(node.location, "model.api_key_env", message, suggestion);
            }
        }
    }

    /// Checks that names are accepted by model servers and are unique.
    fn check_names(&mut self, noun: &str, items: &[YamlNode]) {
        let mut names: Vec<(&str, Location)> = Vec::new();
        for item in items {
            let Some((node, name)) = text_entry(item, "name") else { continue };
            if noun == "tool" && BUILT_IN_TOOLS.contains(&name) {
                self.report(
                    node.location,
                    format!("the tool {name} is built in"),
                    Some("choose another name".to_owned()),
                );
            } else if !model::is_wire_name(name) && !name.trim().is_empty() {
                let message = format!(
                    "models refuse {name:?} as the name of a {noun}: letters, digits, _ and -, at most {}",
                    model::MAX_TOOL_NAME_CHARS
                );
                self.report(node.location, message, Some(format!("write {}", model::wire_name(name))));
            }
            match names.iter().find(|(other, _)| *other == name) {
                Some((_, first)) => {
                    let message = format!("line {} has another {noun} with the name {name}", first.line());
                    self.report(node.location, message, Some("give each its own name".to_owned()));
                }
                None => names.push((name, node.location)),
            }
        }
    }

    fn check_tool(&mut self, tool: &YamlNode) {
        let (stateful, shell) = (is_flag_set(tool, "stateful"), is_flag_set(tool, "shell"));
        self.check_command(tool, shell);
        let parameters = tool.get("parameters").map_or(&[][..], YamlNode::items);
        self.check_names("parameter", parameters);
        self.check_parameters(parameters);
        if stateful {
            self.check_stateful(tool, parameters, shell);
        }
        if let Some(env) = tool.get("env") {
            for (name, _) in env.entries() {
                if name.value.is_empty() || name.value.contains(['=', '\0']) {
                    let reason = format!("{:?} cannot be a variable", name.value);
                    self.report_key(name.referenced, "env", reason, None);
                }
            }
        }
    }

    fn check_command(&mut self, tool: &YamlNode, shell: bool) {
        let Some(command) = tool.get("command") else { return };
        match (&command.value, shell) {
            (YamlValue::Text(text), false) => {
                let words: Vec<String> = text.split_whitespace().map(|word| format!("{word:?}")).collect();
                let suggestion = format!("write [{}], or add shell: true", words.join(", "));
                let message = "expected a list of words, not a text";
                self.report_key(command.location, "command", message, Some(suggestion));
            }
            (YamlValue::List(words), true) if words.len() > 1 => {
                let message = "with shell: true, it must be one text for sh";
                let suggestion = "write it as one text, or remove shell: true";
                self.report_key(command.location, "command", message, Some(suggestion.to_owned()));
            }
            (YamlValue::List(words), _) => {
                let first = words.first().and_then(YamlNode::text);
                if first.is_some_and(|program| program.trim().is_empty()) {
                    self.report_key(command.location, "command", "the program has no name", None);
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

    fn check_parameters(&mut self, parameters: &[YamlNode]) {
        let mut stdin_parameter: Option<&YamlNode> = None;
        let mut optional: Option<&str> = None;
        for parameter in parameters {
            let name = text_entry(parameter, "name").map_or("", |(_, name)| name);
            let inject = injection_of(parameter);
            let at = parameter.get("inject_as").map_or(parameter.location, |node| node.location);
            if inject == Some(ParameterInjection::Stdin) {
                if let Some(first) = stdin_parameter {
                    let message = format!(
                        "only one parameter can be the input, and {} already is",
                        name_or_placeholder(first)
                    );
                    self.report(
                        at,
                        message,
                        Some("inject one of them as an argument or an option".to_owned()),
                    );
                }
                stdin_parameter = stdin_parameter.or(Some(parameter));
            }
            if inject == Some(ParameterInjection::Argument) && name != SESSION_ID_PARAMETER {
                let is_optional = parameter
                    .get("required")
                    .is_some_and(|node| matches!(node.value, YamlValue::Bool(false)));
                match optional {
                    Some(before) if !is_optional => {
                        let message = format!(
                            "the argument {name} is required and follows {before}, which may be missing: the program \
                             could not tell them apart"
                        );
                        let suggestion = format!("put {before} last, or inject it as an option");
                        self.report(parameter.location, message, Some(suggestion));
                    }
                    Some(_) => {}
                    None => optional = is_optional.then_some(name),
                }
            }
            self.check_option_name(parameter, inject);
        }
    }

    fn check_option_name(&mut self, parameter: &YamlNode, inject: Option<ParameterInjection>) {
        let Some((node, option)) = text_entry(parameter, "option_name") else { return };
        match inject {
            Some(ParameterInjection::Argument | ParameterInjection::Stdin) => {
                let message = "option_name is only for a parameter that is injected as an option";
                self.report(node.location, message, Some("add inject_as: option, or remove it".to_owned()));
            }
            Some(ParameterInjection::Option) | None => {}
        }
        if !option.starts_with('-') || option.contains(char::is_whitespace) {
            let bare: String = option.chars().filter(|c| !c.is_whitespace()).collect();
            let message = format!("{option:?} is not an option");
            let suggestion = format!("write --{}", bare.trim_start_matches('-'));
            self.report_key(node.location, "option_name", message, Some(suggestion));
        }
    }

    fn check_stateful(&mut self, tool: &YamlNode, parameters: &[YamlNode], shell: bool) {
        if let (Some(at), true) = (tool.key_location("shell"), shell) {
            let message =
                "shell: true is for a command that ends; the program of a stateful tool keeps running";
            let suggestion = "remove shell, and let the command be a shell: command: [\"bash\"]";
            self.report(at, message, Some(suggestion.to_owned()));
        }
        if !parameters.iter().any(|parameter| injection_of(parameter) == Some(ParameterInjection::Stdin)) {
            let at = tool.key_location("stateful").unwrap_or(tool.location);
            let message = "a stateful tool needs a parameter for the input of its program";
            let suggestion = "add a parameter with inject_as: stdin";
            self.report(at, message, Some(suggestion.to_owned()));
        }
        for parameter in parameters {
            let Some((_, SESSION_ID_PARAMETER)) = text_entry(parameter, "name") else { continue };
            let other = text_entry(parameter, "type").filter(|(_, kind)| *kind != "string");
            if let Some((node, _)) = other {
                self.report(node.location, format!("{SESSION_ID_PARAMETER} is a string"), None);
            }
            if injection_of(parameter) == Some(ParameterInjection::Stdin) {
                let at = parameter.get("inject_as").map_or(parameter.location, |node| node.location);
                let message =
                    format!("{SESSION_ID_PARAMETER} names a session and is not passed to the program");
                self.report(at, message, Some("remove it: every stateful tool has it".to_owned()));
            }
        }
    }

    fn report(&mut self, at: Location, reason: impl Into<String>, advice: Option<String>) {
        self.report_key(at, "", reason, advice);
    }

    fn report_key(&mut self, at: Location, key: &str, reason: impl Into<String>, advice: Option<String>) {
        let problem = self.document.problem(at, reason).with_key(key);
        self.problems.push(problem.with_advice(advice));
    }
}

fn text_entry<'a>(node: &'a YamlNode, key: &str) -> Option<(&'a YamlNode, &'a str)> {
    let node = node.get(key)?;
    Some((node, node.text()?))
}

fn name_or_placeholder(node: &YamlNode) -> &str {
    text_entry(node, "name").map_or("another one", |(_, name)| name)
}

fn is_flag_set(node: &YamlNode, key: &str) -> bool {
    node.get(key).is_some_and(YamlNode::is_true)
}

/// The injection of a parameter; `None` if the value is invalid.
fn injection_of(parameter: &YamlNode) -> Option<ParameterInjection> {
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
