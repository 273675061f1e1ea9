//! Checks the arguments of a model's call against the parameters of the tool.
//!
//! All errors are reported together, in words that a model can act on. `session_id` is defined here, whether or not a
//! tool declares it. The injection of values into the program is in [`super::invocation`].

use std::collections::BTreeMap;

use serde_json::{Map, Value, value::RawValue};

use super::bad_call::{InvalidToolCall, suggestion};
use crate::definition::{
    ParameterInjection, ParameterKind, SESSION_ID_PARAMETER, ToolDefinition, ToolParameter,
};

/// The arguments of a call as the model sent them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RawArguments {
    /// By the parameter's name.
    pub values: Map<String, Value>,
    /// The text of numbers that `values` does not hold exactly, by name: integers beyond 64 bits, long fractions,
    /// exponents. Only top-level values are listed, because parameters have no inner structure.
    pub exact_numbers: BTreeMap<String, String>,
}

impl From<Map<String, Value>> for RawArguments {
    fn from(values: Map<String, Value>) -> Self {
        Self { values, exact_numbers: BTreeMap::new() }
    }
}

impl RawArguments {
    /// Parses the text of a JSON object. An empty text is an empty object.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        let values = crate::model::parse_arguments(text)?;
        if !values.values().any(Value::is_number) {
            return Ok(values.into());
        }
        let raw: BTreeMap<String, &RawValue> = serde_json::from_str(text)?;
        let is_inexact = |(name, raw): &(String, &RawValue)| match values.get(name) {
            Some(Value::Number(number)) => number.to_string() != raw.get(),
            Some(_) | None => false,
        };
        let exact = raw.into_iter().filter(is_inexact).map(|(name, raw)| (name, raw.get().to_owned()));
        let exact = exact.collect();
        Ok(Self { values, exact_numbers: exact })
    }
}

/// Arguments that are valid for a tool.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ToolArguments {
    /// By the parameter's name; omitted and null values are absent.
    pub values: BTreeMap<String, Value>,
    /// The text of numbers that `values` does not hold exactly.
    pub exact_numbers: BTreeMap<String, String>,
    /// The session id, if the tool has sessions and the call names one.
    pub session: Option<String>,
    /// Names of parameters that are needed to start a session and are absent.
    pub missing_to_start: Vec<String>,
}

impl ToolArguments {
    /// The value of a parameter as a program reads it; `None` if it is absent.
    pub(crate) fn text(&self, parameter: &ToolParameter) -> Option<String> {
        let value = self.values.get(&parameter.name)?;
        Some(match self.exact_numbers.get(&parameter.name) {
            Some(text) if parameter.kind == ParameterKind::Integer => integer_text(text)?,
            Some(text) => text.clone(),
            None => value_text(parameter.kind, value),
        })
    }
}

/// Checks the arguments that a model sent.
pub fn check_arguments(tool: &ToolDefinition, raw: &RawArguments) -> Result<ToolArguments, InvalidToolCall> {
    let RawArguments { values, exact_numbers: exact } = raw;
    let mut problems = Vec::new();
    let mut arguments = ToolArguments { exact_numbers: exact.clone(), ..ToolArguments::default() };
    for (name, value) in values {
        if tool.stateful && name == SESSION_ID_PARAMETER {
            match value {
                Value::String(id) if id.is_empty() => {}
                Value::String(id) => arguments.session = Some(id.clone()),
                Value::Null => {}
                Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => problems
                    .push(format!("\"{SESSION_ID_PARAMETER}\" must be a string, not {}", describe(value))),
            }
            continue;
        }
        match tool.parameters.iter().find(|parameter| parameter.name == *name) {
            None => problems.push(unknown_parameter_text(tool, name)),
            Some(_) if value.is_null() => {}
            Some(parameter) => match check_value(parameter, value, exact.get(name)) {
                Ok(()) => drop(arguments.values.insert(name.clone(), value.clone())),
                Err(problem) => problems.push(problem),
            },
        }
    }
    for parameter in own_parameters(tool) {
        let has_value = values.get(&parameter.name).is_some_and(|value| !value.is_null());
        if !parameter.required || has_value {
            continue;
        }
        let missing =
            format!("missing required parameter \"{}\" ({})", parameter.name, parameter.kind.name());
        match (tool.stateful, parameter.inject_as) {
            (false, _) => problems.push(missing),
            // A session can be started without input.
            (true, ParameterInjection::Stdin) => {}
            // Arguments of the command line are needed only at the start of a session.
            (true, ParameterInjection::Argument | ParameterInjection::Option) => {
                arguments.missing_to_start.push(missing)
            }
        }
    }
    InvalidToolCall::unless_empty(problems)?;
    Ok(arguments)
}

/// The parameters without the session id.
pub(crate) fn own_parameters(tool: &ToolDefinition) -> impl Iterator<Item = &ToolParameter> {
    tool.parameters.iter().filter(|parameter| !(tool.stateful && parameter.name == SESSION_ID_PARAMETER))
}

fn unknown_parameter_text(tool: &ToolDefinition, name: &str) -> String {
    let mut names: Vec<&str> = own_parameters(tool).map(|parameter| parameter.name.as_str()).collect();
    if tool.stateful {
        names.push(SESSION_ID_PARAMETER);
    }
    let listed = if names.is_empty() {
        "it takes none".to_owned()
    } else {
        format!("its parameters are: {}", names.join(", "))
    };
    format!("\"{}\" has no parameter \"{name}\"{}; {listed}", tool.name, suggestion(name, names))
}

fn check_value(parameter: &ToolParameter, value: &Value, source_text: Option<&String>) -> Result<(), String> {
    let is_valid = match (parameter.kind, value) {
        (ParameterKind::String, Value::String(_)) | (ParameterKind::Boolean, Value::Bool(_)) => true,
        (ParameterKind::Number, Value::Number(_)) => true,
        // Some models write 3.0 for 3.
        (ParameterKind::Integer, Value::Number(number)) => match source_text {
            Some(source_text) => integer_text(source_text).is_some(),
            None => integer_text(&number.to_string()).is_some(),
        },
        (
            ParameterKind::String | ParameterKind::Boolean | ParameterKind::Number | ParameterKind::Integer,
            _,
        ) => false,
    };
    if is_valid {
        return Ok(());
    }
    let described = match (value, source_text) {
        (Value::Number(_), Some(source_text)) => {
            format!("the number {}", source_text.chars().take(40).collect::<String>())
        }
        (_, Some(_) | None) => describe(value),
    };
    Err(format!("\"{}\" must be {}, not {described}", parameter.name, kind_with_article(parameter.kind)))
}

/// The digits of an integer in JSON notation, which may have a fraction of zeros or an exponent.
fn integer_text(text: &str) -> Option<String> {
    let (sign, number) = text.strip_prefix('-').map_or(("", text), |number| ("-", number));
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let exponent: i64 =
        exponent.parse().ok().filter(|exponent| (-MAX_EXPONENT..=MAX_EXPONENT).contains(exponent))?;
    let mut digits = format!("{whole}{fraction}");
    // Number of digits before the decimal point.
    let point = i64::try_from(whole.len()).ok()? + exponent;
    let before = usize::try_from(point.max(0)).ok()?;
    if before >= digits.len() {
        digits.extend(std::iter::repeat_n('0', before - digits.len()));
    } else {
        let after = digits.split_off(before);
        if after.bytes().any(|digit| digit != b'0') {
            return None;
        }
    }
    let digits = digits.trim_start_matches('0');
    Some(if digits.is_empty() { "0".to_owned() } else { format!("{sign}{digits}") })
}

/// The largest exponent of an `f64`.
const MAX_EXPONENT: i64 = 308;

/// A value as a program reads it.
pub(crate) fn value_text(kind: ParameterKind, value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) if kind == ParameterKind::Integer && number.is_f64() => {
            format!("{:.0}", number.as_f64().unwrap_or(0.0))
        }
        Value::Bool(_) | Value::Number(_) | Value::Null | Value::Array(_) | Value::Object(_) => {
            value.to_string()
        }
    }
}

fn kind_with_article(kind: ParameterKind) -> String {
    format!("{} {}", if kind == ParameterKind::Integer { "an" } else { "a" }, kind.name())
}

fn describe(value: &Value) -> String {
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

    fn map(sent: &str) -> RawArguments {
        RawArguments::parse(sent).expect("a test sends an object")
    }

    fn problem(tool: &ToolDefinition, sent: &str) -> String {
        match check_arguments(tool, &map(sent)) {
            Ok(arguments) => panic!("{arguments:?} was taken"),
            Err(bad) => bad.to_string(),
        }
    }

    fn reader() -> ToolDefinition {
        ToolDefinition {
            parameters: vec![
                parameter("path", ParameterKind::String, ParameterInjection::Argument),
                ToolParameter {
                    required: false,
                    ..parameter("lines", ParameterKind::Integer, ParameterInjection::Option)
                },
            ],
            ..tool("read_file", &["head"])
        }
    }

    #[test]
    fn all_errors_of_a_call_are_reported_together_with_remedies() {
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
    fn optional_parameters_may_be_absent_or_null() {
        let sent = map(r#"{"path": "a", "lines": null}"#);
        assert_eq!(
            check_arguments(&reader(), &sent).unwrap().values,
            BTreeMap::from([("path".to_owned(), json!("a"))])
        );
        assert_eq!(value_text(ParameterKind::Integer, &json!(3.0)), "3");
        assert_eq!(value_text(ParameterKind::Number, &json!(0.5)), "0.5");
    }

    #[test]
    fn session_id_is_accepted_whether_or_not_the_tool_declares_it() {
        for declared in [false, true] {
            let mut shell = ToolDefinition {
                stateful: true,
                parameters: vec![parameter("text", ParameterKind::String, ParameterInjection::Stdin)],
                ..tool("shell", &["bash"])
            };
            if declared {
                shell.parameters.push(parameter(
                    SESSION_ID_PARAMETER,
                    ParameterKind::String,
                    ParameterInjection::Option,
                ));
            }
            let sent = map(r#"{"session_id": "shell_abc234"}"#);
            let arguments = check_arguments(&shell, &sent).unwrap();
            assert_eq!(arguments.session.as_deref(), Some("shell_abc234"));
            assert!(arguments.values.is_empty());
            assert_eq!(check_arguments(&shell, &RawArguments::default()).unwrap(), ToolArguments::default());
        }
    }

    #[test]
    fn a_number_reaches_a_tool_as_the_model_wrote_it() {
        let count = ToolDefinition {
            parameters: vec![
                parameter("whole", ParameterKind::Integer, ParameterInjection::Argument),
                parameter("part", ParameterKind::Number, ParameterInjection::Argument),
            ],
            ..tool("count", &["echo"])
        };
        for (whole, part, expected) in [
            ("18446744073709551617", "0.1000", ["18446744073709551617", "0.1000"]),
            ("-9223372036854775809", "1e-7", ["-9223372036854775809", "1e-7"]),
            (
                "123456789012345678901234567890",
                "3.14159265358979323846",
                ["123456789012345678901234567890", "3.14159265358979323846"],
            ),
            ("3.0", "3", ["3", "3"]),
            ("1.20e1", "-0.0", ["12", "-0.0"]),
            ("18446744073709551617.0", "7", ["18446744073709551617", "7"]),
            ("-1e20", "18446744073709551615", ["-100000000000000000000", "18446744073709551615"]),
        ] {
            let sent = map(&format!(r#"{{"whole": {whole}, "part": {part}}}"#));
            let arguments = check_arguments(&count, &sent).unwrap();
            let texts: Vec<String> =
                count.parameters.iter().map(|parameter| arguments.text(parameter).unwrap()).collect();
            assert_eq!(texts, expected);
        }
        assert!(problem(&count, r#"{"whole": 18446744073709551617.5, "part": 1}"#).contains("617.5"));
        assert!(problem(&count, r#"{"whole": 1.25e1, "part": 1}"#).contains("not the number 1.25e1"));
    }
}
