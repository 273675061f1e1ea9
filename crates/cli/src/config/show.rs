//! `abide config`: prints all values with their origins, or all problems.

use std::{io::Write, process::ExitCode};

use abide_engines::registry;
use abide_os::config_problem::ConfigSuggestion;
use serde_json::{Value, json};

use super::{
    ConfigError, ConfigOrigin, ConfigProblem, GivenSetting, LoadedConfig, LocatedSetting, load,
    value::mask_secrets,
};
use crate::{
    args::ConfigCommand,
    exit::{FAILED, SUCCEEDED},
    table::{self, ColourMode, TextStyle},
};

pub(crate) fn run(command: &ConfigCommand, overrides: &[GivenSetting]) -> anyhow::Result<ExitCode> {
    match command {
        ConfigCommand::Show { output } => show(&load(overrides)?, output.json),
        ConfigCommand::Check { output } => check(load(overrides), output.json),
    }
}

fn show(loaded: &LoadedConfig, json: bool) -> anyhow::Result<ExitCode> {
    let settings = all_settings(loaded);
    let mut out = std::io::stdout().lock();
    if json {
        let values: Vec<Value> = settings
            .iter()
            .map(|setting| json!({ "key": setting.name, "value": mask_secrets(&setting.value), "origin": origin(&setting.origin) }))
            .collect();
        writeln!(out, "{}", json!({ "file": loaded.path, "exists": loaded.exists, "values": values }))?;
        return Ok(SUCCEEDED);
    }
    let head = ["KEY", "ORIGIN", "VALUE"].map(|title| TextStyle::Heading.cell(title)).to_vec();
    let rows = settings.iter().map(|setting| {
        let value = mask_secrets(&setting.value).to_string();
        let (origin, look) = match &setting.origin {
            ConfigOrigin::Default => ("default".to_owned(), TextStyle::Dim),
            // The path of the file is always the same, so only the line is printed.
            ConfigOrigin::File { position, .. } => {
                let line = position.as_ref().map_or(0, |at| at.line);
                (format!("{}:{line}", super::FILE), TextStyle::Plain)
            }
            place @ (ConfigOrigin::Environment { .. } | ConfigOrigin::Flag { .. }) => {
                (place.to_string(), TextStyle::Plain)
            }
        };
        vec![TextStyle::Plain.cell(&setting.name), look.cell(origin), TextStyle::Plain.cell(value)]
    });
    let rows: Vec<_> = std::iter::once(head).chain(rows).collect();
    for line in table::format_rows(&rows, ColourMode::of_stdout()) {
        writeln!(out, "{line}")?;
    }
    let missing = if loaded.exists { "" } else { " (there is none)" };
    writeln!(std::io::stderr(), "file: {}{missing}", loaded.path.display())?;
    Ok(SUCCEEDED)
}

/// Returns all settings with a value, and the defaults of the built-in engines.
fn all_settings(loaded: &LoadedConfig) -> Vec<LocatedSetting> {
    let mut settings = loaded.settings.clone();
    let mut add_default = |engine: &str, part: &str, value: Value| {
        let name = format!("engines.{engine}.{part}");
        let setting = LocatedSetting { name: name.clone(), value, origin: ConfigOrigin::Default };
        settings.entry(name).or_insert(setting);
    };
    for name in loaded.config.engines.keys() {
        add_default(name, "enabled", json!(true));
        add_default(name, "args", json!([]));
        add_default(name, "env", json!({}));
    }
    for engine in registry::built_in() {
        add_default(engine.name(), "enabled", json!(true));
        add_default(engine.name(), "command", json!(engine.installation().command));
    }
    settings.into_values().collect()
}

fn origin(place: &ConfigOrigin) -> Value {
    match place {
        ConfigOrigin::Default => json!({ "kind": "default" }),
        ConfigOrigin::File { path, position } => {
            let at = position.as_ref().map(|at| (at.line, at.column));
            let (line, column) = at.unzip();
            json!({ "kind": "file", "path": path, "line": line, "column": column })
        }
        ConfigOrigin::Environment { variable } => json!({ "kind": "environment", "variable": variable }),
        ConfigOrigin::Flag { flag } => json!({ "kind": "flag", "flag": flag }),
    }
}

fn check(loaded: anyhow::Result<LoadedConfig>, json: bool) -> anyhow::Result<ExitCode> {
    let problems = match &loaded {
        Ok(_) => vec![],
        Err(error) => match error.downcast_ref::<ConfigError>() {
            Some(error) => error.problems.clone(),
            None => return loaded.map(|_| SUCCEEDED),
        },
    };
    let mut out = std::io::stdout().lock();
    if json {
        let problem_json = |problem: &ConfigProblem| {
            let suggestion = problem.suggestion.as_ref().map(|suggestion| match suggestion {
                ConfigSuggestion::Name(text) | ConfigSuggestion::Advice(text) => text,
            });
            json!({ "origin": origin(&problem.origin), "message": problem.message(), "suggestion": suggestion })
        };
        let problem_json: Vec<Value> = problems.iter().map(problem_json).collect();
        writeln!(out, "{}", json!({ "ok": problems.is_empty(), "problems": problem_json }))?;
    } else if let Ok(loaded) = &loaded {
        let path = loaded.path.display();
        let summary =
            if loaded.exists { format!("{path}") } else { format!("there is no {path}, and none is needed") };
        writeln!(out, "ok: {summary}")?;
    } else {
        for problem in &problems {
            writeln!(std::io::stderr(), "{problem}")?;
        }
    }
    Ok(if problems.is_empty() { SUCCEEDED } else { FAILED })
}
