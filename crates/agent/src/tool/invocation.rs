//! Builds the command line, environment and input of a call, as a pure function of a tool and its arguments.
//!
//! Values never pass through a shell, unless the tool itself is a shell command. Even then a value is an argument of
//! the command and never part of its text. This file starts no processes.

use super::arguments::{ToolArguments, own_parameters};
use super::bad_call::InvalidToolCall;
use super::script::DashGuard;
use crate::definition::{ParameterInjection, ParameterKind, ToolDefinition, ToolParameter};

/// The program to start, and its input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolInvocation {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// In addition to the environment of all tools.
    pub env: Vec<(String, String)>,
    /// With `None`, the program's standard input is at its end.
    pub stdin: Option<Vec<u8>>,
}

/// Maximum size of one argument in bytes. The kernel's limit is 128 KiB; an option may share the word with its value.
const MAX_ARGUMENT_BYTES: usize = 120 << 10;
/// Maximum size of all arguments in bytes; well below the limits of all supported systems.
const MAX_TOTAL_ARGUMENT_BYTES: usize = 1 << 20;
/// Maximum size of the input in bytes; the limit of one keeper request.
const MAX_STDIN_BYTES: usize = 8 << 20;

impl ToolInvocation {
    /// The invocation of this tool with these arguments.
    pub fn new(
        tool: &ToolDefinition,
        arguments: &ToolArguments,
        guard: DashGuard,
    ) -> Result<Self, InvalidToolCall> {
        let values: Vec<(&ToolParameter, String)> = own_parameters(tool)
            .filter_map(|parameter| Some((parameter, arguments.text(parameter)?)))
            .collect();
        check_sizes(&values)?;
        let (mut argv, env) = base_command(tool, &values)?;
        // Words after the text of `sh -c` and `$0` are never options of the shell.
        let guards = !tool.shell && !argv.iter().any(|word| word == "--") && guard == DashGuard::Needed;
        let guarded = guards && values.iter().any(|(parameter, value)| is_dashed(parameter, value));
        if guarded {
            // Words after `--` are not options, so our own options precede it.
            push_words(&mut argv, &values, |parameter| parameter.inject_as == ParameterInjection::Option);
            argv.push("--".to_owned());
            push_words(&mut argv, &values, |parameter| parameter.inject_as == ParameterInjection::Argument);
        } else {
            push_words(&mut argv, &values, |parameter| parameter.inject_as != ParameterInjection::Stdin);
        }
        if argv.iter().map(|word| word.len() + 1).sum::<usize>() > MAX_TOTAL_ARGUMENT_BYTES {
            return Err(InvalidToolCall::new(format!(
                "all arguments together may have at most {MAX_TOTAL_ARGUMENT_BYTES} bytes; put long text into a file and pass its path"
            )));
        }
        Ok(Self { argv, env, stdin: stdin_bytes(&values) })
    }
}

/// The input for a program that is already running.
pub fn text_to_send(
    tool: &ToolDefinition,
    arguments: &ToolArguments,
) -> Result<Option<Vec<u8>>, InvalidToolCall> {
    let values: Vec<(&ToolParameter, String)> = own_parameters(tool)
        .filter(|parameter| parameter.inject_as == ParameterInjection::Stdin)
        .filter_map(|parameter| Some((parameter, arguments.text(parameter)?)))
        .collect();
    check_sizes(&values)?;
    Ok(stdin_bytes(&values).filter(|text| !text.is_empty()))
}

fn stdin_bytes(values: &[(&ToolParameter, String)]) -> Option<Vec<u8>> {
    let texts = values.iter().filter(|(parameter, _)| parameter.inject_as == ParameterInjection::Stdin);
    let texts: Vec<&[u8]> = texts.map(|(_, text)| text.as_bytes()).collect();
    (!texts.is_empty()).then(|| texts.concat())
}

type CommandAndEnv = (Vec<String>, Vec<(String, String)>);

/// The tool's own command and its environment.
fn base_command(
    tool: &ToolDefinition,
    values: &[(&ToolParameter, String)],
) -> Result<CommandAndEnv, InvalidToolCall> {
    let mut env: Vec<(String, String)> =
        tool.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    if !tool.shell {
        if tool.command.is_empty() {
            return Err(InvalidToolCall::new(format!("the tool \"{}\" has no command", tool.name)));
        }
        return Ok((tool.command.clone(), env));
    }
    // The prefix prevents a parameter from setting PATH or LD_PRELOAD.
    for (parameter, value) in
        values.iter().filter(|(parameter, _)| parameter.inject_as != ParameterInjection::Stdin)
    {
        env.push((format!("ARG_{}", parameter.name), value.clone()));
    }
    Ok((vec!["/bin/sh".to_owned(), "-c".to_owned(), tool.command.join(" "), tool.name.clone()], env))
}

fn is_dashed(parameter: &ToolParameter, value: &str) -> bool {
    parameter.inject_as == ParameterInjection::Argument && value.starts_with('-')
}

fn push_words(
    argv: &mut Vec<String>,
    values: &[(&ToolParameter, String)],
    includes: impl Fn(&ToolParameter) -> bool,
) {
    for (parameter, value) in values.iter().filter(|(parameter, _)| includes(parameter)) {
        match parameter.inject_as {
            ParameterInjection::Argument => argv.push(value.clone()),
            ParameterInjection::Option => push_option(argv, parameter, value),
            ParameterInjection::Stdin => {}
        }
    }
}

fn push_option(argv: &mut Vec<String>, parameter: &ToolParameter, value: &str) {
    let default = || format!("--{}", parameter.name.replace('_', "-"));
    let option = parameter.option_name.clone().unwrap_or_else(default);
    if parameter.kind == ParameterKind::Boolean {
        if value == "true" {
            argv.push(option);
        }
    } else if option.ends_with('=') || option.starts_with("--") && value.starts_with('-') {
        // Joined with its option in one word, a value cannot be parsed as another option.
        argv.push(format!("{}={value}", option.trim_end_matches('=')));
    } else {
        argv.push(option);
        argv.push(value.to_owned());
    }
}

fn check_sizes(values: &[(&ToolParameter, String)]) -> Result<(), InvalidToolCall> {
    let mut problems = Vec::new();
    for (parameter, value) in values {
        let name = &parameter.name;
        let max_bytes = match parameter.inject_as {
            ParameterInjection::Argument | ParameterInjection::Option => MAX_ARGUMENT_BYTES,
            ParameterInjection::Stdin => MAX_STDIN_BYTES,
        };
        if value.len() > max_bytes {
            problems.push(format!(
                "\"{name}\" has {} bytes, and at most {max_bytes} can be passed; put long text into a file and pass its path",
                value.len()
            ));
        } else if parameter.inject_as != ParameterInjection::Stdin && value.contains('\0') {
            problems.push(format!("\"{name}\" holds a NUL character, which no argument of a program can"));
        }
    }
    InvalidToolCall::unless_empty(problems)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::tool::arguments::check_arguments;

    pub(crate) fn tool(name: &str, command: &[&str]) -> ToolDefinition {
        ToolDefinition {
            name: name.to_owned(),
            description: format!("Purpose of {name}."),
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            parameters: Vec::new(),
            timeout_sec: None,
            stateful: false,
            pty: None,
            shell: false,
            env: BTreeMap::new(),
            cwd: None,
        }
    }

    pub(crate) fn parameter(name: &str, kind: ParameterKind, inject_as: ParameterInjection) -> ToolParameter {
        ToolParameter {
            name: name.to_owned(),
            kind,
            description: format!("The {name}."),
            required: true,
            inject_as,
            option_name: None,
        }
    }

    fn grep() -> ToolDefinition {
        let option = |name: &str, option: &str, kind| ToolParameter {
            required: false,
            option_name: Some(option.to_owned()),
            ..parameter(name, kind, ParameterInjection::Option)
        };
        ToolDefinition {
            parameters: vec![
                parameter("pattern", ParameterKind::String, ParameterInjection::Argument),
                option("after", "-A", ParameterKind::Integer),
                option("label", "--label", ParameterKind::String),
                option("ignore_case", "-i", ParameterKind::Boolean),
                ToolParameter {
                    required: false,
                    ..parameter("text", ParameterKind::String, ParameterInjection::Stdin)
                },
            ],
            ..tool("grep", &["grep", "-n"])
        }
    }

    fn invoked(tool: &ToolDefinition, sent: serde_json::Value) -> Result<ToolInvocation, InvalidToolCall> {
        let sent = sent.as_object().cloned().unwrap();
        ToolInvocation::new(tool, &check_arguments(tool, &sent.into())?, DashGuard::Needed)
    }

    #[test]
    fn values_become_words_in_the_order_of_the_parameters_and_never_text_for_a_shell() {
        let sent = json!({"text": "x\n", "ignore_case": true, "after": 2, "pattern": "$(rm -rf /) 'a b'"});
        let invocation = invoked(&grep(), sent).unwrap();
        assert_eq!(invocation.argv, ["grep", "-n", "$(rm -rf /) 'a b'", "-A", "2", "-i"]);
        assert_eq!(invocation.stdin.as_deref(), Some(&b"x\n"[..]));
        assert_eq!(
            invoked(&grep(), json!({"pattern": "a", "ignore_case": false})).unwrap().argv,
            ["grep", "-n", "a"]
        );
    }

    #[test]
    fn a_value_that_begins_with_a_dash_does_not_become_an_option() {
        let sent = json!({"pattern": "--output=/etc/passwd", "label": "-x", "after": -1});
        let argv = invoked(&grep(), sent).unwrap().argv;
        assert_eq!(argv, ["grep", "-n", "-A", "-1", "--label=-x", "--", "--output=/etc/passwd"]);
        let mut own = grep();
        own.command.push("--".to_owned());
        assert_eq!(invoked(&own, json!({"pattern": "-a"})).unwrap().argv, ["grep", "-n", "--", "-a"]);
        let arguments =
            check_arguments(&grep(), &json!({"pattern": "-a"}).as_object().cloned().unwrap().into()).unwrap();
        let script = ToolInvocation::new(&grep(), &arguments, DashGuard::NotNeeded).unwrap();
        assert_eq!(script.argv, ["grep", "-n", "-a"]);
    }

    #[test]
    fn a_shell_command_gets_values_as_arguments_and_variables_only() {
        let greet = ToolDefinition {
            shell: true,
            parameters: vec![parameter("who", ParameterKind::String, ParameterInjection::Argument)],
            ..tool("greet", &["echo \"hello $1 $ARG_who\""])
        };
        let invocation = invoked(&greet, json!({"who": "-$(id)"})).unwrap();
        assert_eq!(invocation.argv, ["/bin/sh", "-c", "echo \"hello $1 $ARG_who\"", "greet", "-$(id)"]);
        assert_eq!(invocation.env, [("ARG_who".to_owned(), "-$(id)".to_owned())]);
    }

    #[test]
    fn invalid_argument_values_are_reported_to_the_model() {
        let bad = |sent| invoked(&grep(), sent).unwrap_err().to_string();
        assert!(bad(json!({"pattern": "a\0b"})).contains("\"pattern\" holds a NUL"));
        assert!(
            bad(json!({"pattern": "a".repeat(200_000)})).contains("has 200000 bytes, and at most 122880")
        );
        assert!(invoked(&grep(), json!({"pattern": "a", "text": "\0".repeat(300_000)})).is_ok());
        let many = ToolDefinition {
            parameters: (0..20)
                .map(|n| parameter(&format!("p{n}"), ParameterKind::String, ParameterInjection::Argument))
                .collect(),
            ..tool("many", &["echo"])
        };
        let sent: serde_json::Map<_, _> =
            (0..20).map(|n| (format!("p{n}"), json!("x".repeat(60_000)))).collect();
        assert!(invoked(&many, sent.into()).unwrap_err().to_string().contains("all arguments together"));
    }
}
