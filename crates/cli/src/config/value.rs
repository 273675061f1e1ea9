//! Values: parsed from text, checked against the kind of their key, and printed without secrets.

use serde_json::Value;

use abide_os::suggestion::nearest;

use super::keys::SettingKind;

/// Parses the text of a variable or flag. A list is a JSON array or words separated by blanks; a table is a JSON
/// object. Quotes and shell syntax have no meaning.
pub(super) fn parse(kind: &SettingKind, text: &str) -> Value {
    let as_json = || serde_json::from_str(text).ok();
    match kind {
        SettingKind::Text { .. } | SettingKind::Choice(_) => Value::from(text),
        SettingKind::Number { .. } => {
            text.trim().parse::<u64>().map_or_else(|_| Value::from(text), Value::from)
        }
        SettingKind::Boolean => text.trim().parse::<bool>().map_or_else(|_| Value::from(text), Value::from),
        SettingKind::List { .. } if text.trim_start().starts_with('[') => {
            as_json().unwrap_or_else(|| Value::from(text))
        }
        SettingKind::List { .. } => text.split_whitespace().map(Value::from).collect(),
        SettingKind::StringTable => as_json().unwrap_or_else(|| Value::from(text)),
    }
}

/// Returns why a value does not fit its key, and a suggestion. The value is not repeated, because it may be a secret.
pub(super) fn check(kind: &SettingKind, value: &Value) -> Option<(String, Option<String>)> {
    let expected = |kind: &str| Some((format!("expected {kind}"), None));
    let is_text = |value: &Value| value.is_string();
    match (kind, value) {
        (SettingKind::Text { min: least }, Value::String(text)) if text.chars().count() as u64 >= *least => {
            None
        }
        (SettingKind::Text { min: 0 }, _) => expected("a text"),
        (SettingKind::Text { .. }, _) => expected("a text that is not empty"),
        (SettingKind::Choice(words), Value::String(text)) if words.contains(text) => None,
        (SettingKind::Choice(words), value) => Some((
            format!("expected one of {}", words.join(", ")),
            value.as_str().and_then(|text| nearest(&text.to_lowercase(), words.iter().cloned())),
        )),
        (SettingKind::Number { least, max: most }, value) => match value.as_u64() {
            Some(number) if (*least..=*most).contains(&number) => None,
            Some(_) | None if *most == u64::MAX => expected(&format!("a whole number from {least} up")),
            Some(_) | None => expected(&format!("a whole number from {least} to {most}")),
        },
        (SettingKind::Boolean, Value::Bool(_)) => None,
        (SettingKind::Boolean, _) => expected("true or false"),
        (SettingKind::List { least }, Value::Array(words)) if words.iter().all(is_text) => {
            if words.len() as u64 >= *least { None } else { expected("a list that is not empty") }
        }
        (SettingKind::List { .. }, _) => expected("a list of texts, such as [\"one\", \"two\"]"),
        (SettingKind::StringTable, Value::Object(table)) if table.values().all(is_text) => None,
        (SettingKind::StringTable, _) => {
            expected("names and texts, such as { NAME = \"value\" }, in a variable {\"NAME\": \"value\"}")
        }
    }
}

const MASK: &str = "***";

/// Masks the values in tables of variables and the passwords in URLs.
pub(super) fn mask_secrets(value: &Value) -> Value {
    match value {
        Value::Object(table) => table.keys().map(|name| (name.clone(), Value::from(MASK))).collect(),
        Value::String(text) => Value::from(without_password(text)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => value.clone(),
    }
}

fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (before, query) = rest.split_once('?').map_or((rest, None), |(before, query)| (before, Some(query)));
    let before = match before.rsplit_once('@') {
        Some((user, host)) => match user.split_once(':') {
            Some((name, _)) => format!("{name}:{MASK}@{host}"),
            None => format!("{user}@{host}"),
        },
        None => before.to_owned(),
    };
    let parameter = |parameter: &str| match parameter.split_once('=') {
        Some((name, _)) if name.to_lowercase().contains("password") => format!("{name}={MASK}"),
        Some(_) | None => parameter.to_owned(),
    };
    let query = query.map(|query| query.split('&').map(parameter).collect::<Vec<_>>().join("&"));
    format!("{scheme}://{before}{}", query.map_or(String::new(), |query| format!("?{query}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_a_json_array_or_words_between_blanks() {
        let words = SettingKind::List { least: 1 };
        assert_eq!(parse(&words, "node  cli.js"), Value::from(vec!["node", "cli.js"]));
        assert_eq!(parse(&words, r#"["a b", "c"]"#), Value::from(vec!["a b", "c"]));
        assert!(check(&words, &parse(&words, "[oops")).is_some());
        assert!(check(&words, &parse(&words, " ")).is_some());
    }

    #[test]
    fn passwords_are_masked_in_urls() {
        for (url, shown) in [
            ("sqlite:/a/b@c:d", "sqlite:/a/b@c:d"),
            ("postgres://ann:s3:c@ret@host:5432/db", "postgres://ann:***@host:5432/db"),
            ("postgres://host/db?user=ann&password=secret", "postgres://host/db?user=ann&password=***"),
            ("postgres://ann@host/db", "postgres://ann@host/db"),
        ] {
            assert_eq!(without_password(url), shown);
        }
    }
}
