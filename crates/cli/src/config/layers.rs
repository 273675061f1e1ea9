//! Merges defaults, file, environment and flags, keeps the origin of each value, and checks rules between values.
//!
//! It does no I/O: facts of the machine, the file and the environment are passed in.

use std::{collections::BTreeMap, path::PathBuf};

use abide_os::{
    config_problem::{ConfigError, ConfigOrigin, ConfigProblem},
    suggestion::nearest,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    file,
    keys::{NameMeaning, SettingKey, SettingKeys, VARIABLE_PREFIX, variable_of},
    settings::{CliConfig, MachineFacts},
    value,
};
use crate::home;

/// A value and its origin.
#[derive(Clone, Debug, PartialEq)]
pub struct LocatedSetting {
    pub name: String,
    pub value: Value,
    pub origin: ConfigOrigin,
}

/// A value from the command line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenSetting {
    pub name: String,
    /// Written as in an environment variable.
    pub text: String,
    /// The flag, for error messages.
    pub flag: String,
}

/// All inputs of the configuration.
#[derive(Clone, Debug)]
pub struct ConfigSources {
    /// Facts that the defaults depend on.
    pub machine_facts: MachineFacts,
    pub path: PathBuf,
    /// `None` if the file does not exist.
    pub text: Option<String>,
    pub variables: Vec<(String, String)>,
    pub overrides: Vec<GivenSetting>,
    pub built_in: Vec<String>,
}

/// Variables with our prefix that are not settings.
const OTHER_VARIABLES: [&str; 3] = ["ABIDE_HOME", home::TOKEN_VARIABLE, "ABIDE_BIN"];
/// Prefixes of variables that are not settings.
const OTHER_PREFIXES: [&str; 3] = ["ABIDE_TEST_", "ABIDE_REQUIRE_", "ABIDE_MODEL"];

/// Returns the merged configuration and the origin of each value.
pub fn merge(sources: &ConfigSources) -> Result<(CliConfig, BTreeMap<String, LocatedSetting>), ConfigError> {
    let keys = SettingKeys::all();
    let mut settings = BTreeMap::new();
    let mut add_layer = |layer: Vec<LocatedSetting>| {
        settings.extend(layer.into_iter().map(|setting| (setting.name.clone(), setting)));
    };
    add_layer(default_settings(&sources.machine_facts));
    let (from_file, mut problems) = match &sources.text {
        Some(text) => file::read(text, &sources.path, &keys),
        None => (vec![], vec![]),
    };
    let engines = engine_names(&sources.built_in, &from_file);
    add_layer(from_file);
    add_layer(environment(&sources.variables, &keys, &engines, &mut problems));
    add_layer(flags(&sources.overrides, &keys, &mut problems));
    for setting in settings.values() {
        problems.extend(
            rule(setting)
                .map(|reason| ConfigProblem::new(setting.origin.clone(), reason).with_key(&setting.name)),
        );
    }
    problems.extend(engine_rules(&settings, &sources.built_in));
    if !problems.is_empty() {
        return Err(config_error(problems));
    }
    match serde_json::from_value(tree(settings.values())) {
        Ok(config) => Ok((config, settings)),
        Err(error) => Err(config_error(vec![ConfigProblem::new(ConfigOrigin::Default, error.to_string())])),
    }
}

fn config_error(problems: Vec<ConfigProblem>) -> ConfigError {
    ConfigError { heading: Some("the configuration cannot be used"), problems }
}

fn default_settings(facts: &MachineFacts) -> Vec<LocatedSetting> {
    let mut settings = Vec::new();
    let config = serde_json::to_value(CliConfig::defaults_for(facts)).unwrap_or_default();
    flatten("", &config, &mut settings);
    settings
}

fn flatten(name: &str, value: &Value, settings: &mut Vec<LocatedSetting>) {
    match value {
        Value::Object(table) => {
            for (part, value) in table {
                let name = if name.is_empty() { part.clone() } else { format!("{name}.{part}") };
                flatten(&name, value, settings);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            settings.push(LocatedSetting {
                name: name.to_owned(),
                value: value.clone(),
                origin: ConfigOrigin::Default,
            });
        }
    }
}

fn environment(
    variables: &[(String, String)],
    keys: &SettingKeys,
    engines: &[String],
    problems: &mut Vec<ConfigProblem>,
) -> Vec<LocatedSetting> {
    let mut settings = Vec::new();
    // An empty variable counts as unset.
    for (variable, text) in variables.iter().filter(|(name, text)| is_setting(name) && !text.is_empty()) {
        let origin = ConfigOrigin::Environment { variable: variable.clone() };
        let Some(name) = keys.name_of_variable(variable, engines) else {
            let problem = ConfigProblem::new(origin, "no setting has this name");
            problems.push(problem.with_similar_name(keys.nearest_variable(variable, engines)));
            continue;
        };
        if let NameMeaning::Key(key) = keys.resolve(&name) {
            add_setting(key, name, text, origin, &mut settings, problems);
        }
    }
    settings
}

pub(crate) fn is_setting(variable: &str) -> bool {
    variable.starts_with(VARIABLE_PREFIX)
        && !OTHER_VARIABLES.contains(&variable)
        && !OTHER_PREFIXES.iter().any(|family| variable.starts_with(family))
}

fn flags(
    overrides: &[GivenSetting],
    keys: &SettingKeys,
    problems: &mut Vec<ConfigProblem>,
) -> Vec<LocatedSetting> {
    let mut settings = Vec::new();
    for GivenSetting { name, text, flag } in overrides {
        let origin = ConfigOrigin::Flag { flag: flag.clone() };
        match keys.resolve(name) {
            NameMeaning::Key(key) if name.split('.').all(file::is_valid_name_part) => {
                add_setting(key, name.clone(), text, origin, &mut settings, problems);
            }
            NameMeaning::Key(_) | NameMeaning::Section | NameMeaning::Unknown => {
                let problem = ConfigProblem::new(origin, format!("unknown key {name}"));
                problems.push(problem.with_similar_name(keys.nearest_name(name)));
            }
        }
    }
    settings
}

fn add_setting(
    key: &SettingKey,
    name: String,
    text: &str,
    origin: ConfigOrigin,
    settings: &mut Vec<LocatedSetting>,
    problems: &mut Vec<ConfigProblem>,
) {
    let value = value::parse(&key.kind, text);
    match value::check(&key.kind, &value) {
        Some((message, suggestion)) => {
            problems.push(ConfigProblem::new(origin, message).with_similar_name(suggestion))
        }
        None => settings.push(LocatedSetting { name, value, origin }),
    }
}

/// Checks a rule that the kind of a value cannot express.
fn rule(setting: &LocatedSetting) -> Option<String> {
    let text = setting.value.as_str().unwrap_or_default();
    match setting.name.as_str() {
        "listen" if text.parse::<std::net::SocketAddr>().is_err() => {
            Some("expected an IP address and a port, such as 127.0.0.1:4870".to_owned())
        }
        "store" if text.split_once(':').is_none_or(|(scheme, _)| !file::is_valid_name_part(scheme)) => {
            Some("expected a URL, such as sqlite:/var/lib/abide/abide.db".to_owned())
        }
        _ => None,
    }
}

fn engine_names(built_in: &[String], settings: &[LocatedSetting]) -> Vec<String> {
    let named = settings.iter().filter_map(|setting| engine_of(&setting.name)).map(str::to_owned);
    built_in.iter().cloned().chain(named).collect()
}

fn engine_of(name: &str) -> Option<&str> {
    Some(name.strip_prefix("engines.")?.split_once('.')?.0)
}

/// Checks that each engine is built in, or has a protocol and a command.
fn engine_rules(settings: &BTreeMap<String, LocatedSetting>, built_in: &[String]) -> Vec<ConfigProblem> {
    let mut problems = Vec::new();
    let mut seen = Vec::new();
    for setting in settings.values() {
        let Some(engine) = engine_of(&setting.name).filter(|engine| !seen.contains(engine)) else { continue };
        seen.push(engine);
        let part = |part: &str| settings.get(&format!("engines.{engine}.{part}"));
        match (built_in.iter().any(|name| name == engine), part("protocol"), part("command")) {
            (true, Some(protocol), _) => {
                let reason = format!("{engine} is built in and has its own protocol");
                problems.push(ConfigProblem::new(protocol.origin.clone(), reason).with_key(&protocol.name));
            }
            (true, None, _) | (false, Some(_), Some(_)) => {}
            (false, Some(protocol), None) => {
                let variable = variable_of(&format!("engines.{engine}.command"));
                let reason = format!("needs engines.{engine}.command ({variable}) too");
                problems.push(ConfigProblem::new(protocol.origin.clone(), reason).with_key(&protocol.name));
            }
            (false, None, _) => problems.push(
                ConfigProblem::new(
                    setting.origin.clone(),
                    format!(
                        "no engine of this name is built in ({}), and one of your own needs \
                         protocol = \"acp\" and a command",
                        built_in.join(", ")
                    ),
                )
                .with_key(format!("engines.{engine}"))
                .with_similar_name(
                    nearest(engine, built_in.iter().cloned()).map(|name| format!("engines.{name}")),
                ),
            ),
        }
    }
    problems
}

/// Converts dotted names to a tree.
fn tree<'a>(settings: impl Iterator<Item = &'a LocatedSetting>) -> Value {
    let mut root = Value::Object(Map::from_iter([("engines".to_owned(), Value::Object(Map::new()))]));
    for setting in settings {
        let pointer = setting.name.split('.').fold(&mut root, |place, part| &mut place[part]);
        *pointer = setting.value.clone();
    }
    root
}

#[cfg(test)]
mod tests;
