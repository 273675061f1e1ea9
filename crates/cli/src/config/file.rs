//! Parses `config.toml` into values with their positions. The values are checked elsewhere.

use std::path::Path;

use abide_os::config_problem::{self, ConfigOrigin, ConfigProblem, FilePosition};
use serde_json::Value;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    keys::{NameMeaning, SettingKeys},
    layers::LocatedSetting,
    value,
};

/// Parses the text. Returns the settings and all problems.
pub(super) fn read(text: &str, path: &Path, keys: &SettingKeys) -> (Vec<LocatedSetting>, Vec<ConfigProblem>) {
    let (table, errors) = DeTable::parse_recoverable(text);
    let mut reading = ConfigFileReader { text, path, keys, settings: vec![], problems: vec![] };
    for error in errors {
        let place = reading.origin_at(error.span().map_or(0, |span| span.start));
        reading.problems.push(ConfigProblem::new(place, error.message().trim().replace('\n', ", ")));
    }
    // After a syntax error only parts of the file are known, so further checks could report false problems.
    if reading.problems.is_empty() {
        reading.table("", table.get_ref());
    }
    // Tables are unordered.
    config_problem::sort_by_position(&mut reading.problems);
    (reading.settings, reading.problems)
}

struct ConfigFileReader<'a> {
    text: &'a str,
    path: &'a Path,
    keys: &'a SettingKeys,
    settings: Vec<LocatedSetting>,
    problems: Vec<ConfigProblem>,
}

impl ConfigFileReader<'_> {
    fn table(&mut self, prefix: &str, table: &DeTable<'_>) {
        for (key, value) in table {
            let part: &str = key.get_ref();
            let name = if prefix.is_empty() { part.to_owned() } else { format!("{prefix}.{part}") };
            let origin = self.origin_at(key.span().start);
            if !is_valid_name_part(part) {
                let message = format!("a name consists of letters, digits, - and _, unlike {part:?}");
                self.problems.push(ConfigProblem::new(origin, message));
                continue;
            }
            let fault = match (self.keys.resolve(&name), value.get_ref()) {
                (NameMeaning::Unknown, _) => {
                    let problem = ConfigProblem::new(origin, format!("unknown key {name}"));
                    self.problems.push(problem.with_similar_name(self.keys.nearest_name(&name)));
                    continue;
                }
                (NameMeaning::Section, DeValue::Table(inner)) => {
                    self.table(&name, inner);
                    continue;
                }
                (NameMeaning::Section, _) => ("expected a section".to_owned(), None),
                (NameMeaning::Key(key), toml) => match json(toml) {
                    Some(json) => match value::check(&key.kind, &json) {
                        Some(fault) => fault,
                        None => {
                            self.settings.push(LocatedSetting { name, value: json, origin });
                            continue;
                        }
                    },
                    None => ("a number that is too large, or a date".to_owned(), None),
                },
            };
            let (reason, suggestion) = fault;
            let origin = self.origin_at(value.span().start);
            let problem = ConfigProblem::new(origin, reason).with_key(name);
            self.problems.push(problem.with_similar_name(suggestion));
        }
    }

    fn origin_at(&self, offset: usize) -> ConfigOrigin {
        // Without an excerpt, because values may be secrets.
        ConfigOrigin::file_at(self.path, FilePosition::of_byte(self.text, offset))
    }
}

/// Returns whether a part of a dotted name is valid. It may not contain a dot, because names are split at dots.
pub(super) fn is_valid_name_part(part: &str) -> bool {
    !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
}

fn json(value: &DeValue<'_>) -> Option<Value> {
    let inner = |value: &Spanned<DeValue<'_>>| json(value.get_ref());
    match value {
        DeValue::String(text) => Some(Value::from(&**text)),
        DeValue::Integer(number) => {
            let digits = number.as_str().replace('_', "");
            i64::from_str_radix(&digits, number.radix()).ok().map(Value::from)
        }
        DeValue::Float(number) => number.as_str().replace('_', "").parse::<f64>().ok().map(Value::from),
        DeValue::Boolean(is) => Some(Value::from(*is)),
        DeValue::Datetime(_) => None,
        DeValue::Array(list) => list.iter().map(inner).collect(),
        DeValue::Table(table) => {
            let pairs = table.iter().map(|(key, value)| Some((key.get_ref().to_string(), inner(value)?)));
            pairs.collect::<Option<serde_json::Map<_, _>>>().map(Value::Object)
        }
    }
}
