//! Values of wrong types in each position, and lines that are too long to be shown.

use std::path::Path;

use tempfile::TempDir;

use crate::definition::AgentDefinition;

const MODEL: &str = "model: {base_url: http://127.0.0.1:1, name: m}\n";

fn folder(config: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.yaml"), config).unwrap();
    std::fs::write(folder.path().join("system_prompt.md"), "You work.\n").unwrap();
    folder
}

fn load_error(folder: &Path) -> String {
    AgentDefinition::load(folder, &|_| None).unwrap_err().to_string()
}

#[test]
fn values_that_are_not_text_are_refused_for_text_keys() {
    let tool = "tools:\n  - name: t\n    description: d\n    command: [a]\n";
    let places = [
        ("model.base_url", "model:\n  name: m\n  base_url: HERE\n".to_owned(), 3),
        ("model.name", "model:\n  base_url: http://a/v1\n  name: HERE\n".to_owned(), 3),
        (
            "model.api_key_env",
            "model:\n  base_url: http://a/v1\n  name: m\n  api_key_env: HERE\n".to_owned(),
            4,
        ),
        ("tools[0].name", format!("{MODEL}{}", tool.replace("name: t", "name: HERE")), 3),
        (
            "tools[0].description",
            format!("{MODEL}{}", tool.replace("description: d", "description: HERE")),
            4,
        ),
        ("tools[0].command", format!("{MODEL}{}", tool.replace("[a]", "HERE")), 5),
        ("tools[0].command", format!("{MODEL}{}    shell: true\n", tool.replace("[a]", "HERE")), 5),
        ("tools[0].cwd", format!("{MODEL}{tool}    cwd: HERE\n"), 6),
        ("tools[0].parameters[0].name", format!("{MODEL}{tool}    parameters:\n      - name: HERE\n"), 7),
        (
            "tools[0].parameters[0].description",
            format!("{MODEL}{tool}    parameters:\n      - name: p\n        description: HERE\n"),
            8,
        ),
        (
            "tools[0].parameters[0].option_name",
            format!(
                "{MODEL}{tool}    parameters:\n      - name: p\n        inject_as: option\n        option_name: HERE\n"
            ),
            9,
        ),
    ];
    for (key, config, line) in places {
        let key = key.rsplit('.').next().unwrap();
        for value in ["true", "false", "5", "-1.5", "0x10", "{a: b}", "[[a], b]"] {
            let config = config.replace("HERE", value);
            let folder = folder(&config);
            let message = load_error(folder.path());
            let first = message.lines().next().unwrap();
            let place = format!("{}/config.yaml:{line}:", folder.path().display());
            assert!(first.starts_with(&place) && first.contains(key), "{config}\n{message}");
            assert!(first.contains("; write "), "{config}\n{message}");
        }
    }
    for (key, config) in [
        ("tools", format!("{MODEL}tools: true\n")),
        ("limits", format!("{MODEL}limits: [5]\n")),
        ("model", "model: 5\n".to_owned()),
        ("tools[0].parameters", format!("{MODEL}{tool}    parameters: 5\n")),
        ("tools[0].env", format!("{MODEL}{tool}    env: [A]\n")),
        ("tools[0].env.A", format!("{MODEL}{tool}    env: {{A: }}\n")),
        ("tools[0].env.A", format!("{MODEL}{tool}    env: {{A: [b]}}\n")),
        ("tools[0].name", format!("{MODEL}{}", tool.replace("name: t", "name: "))),
    ] {
        let folder = folder(&config);
        let message = load_error(folder.path());
        assert!(message.contains(key) && message.contains("; write "), "{config}\n{message}");
    }
    for value in ["~", "", "[a, ~]", "[a, [b]]"] {
        let folder = folder(&format!("{MODEL}{}", tool.replace("[a]", value)));
        let message = load_error(folder.path());
        assert!(message.contains("config.yaml:5:") && message.contains("tools[0].command"), "{message}");
    }
}

#[test]
fn only_a_part_of_a_long_line_is_shown() {
    let long = "x".repeat(200_000);
    for config in [
        format!("{MODEL}tools: [{{name: t, description: \"{long}, command: [a]}}]\n"),
        format!("{MODEL}tools: [{{name: {long} y, description: d, command: [a]}}]\n"),
        format!("{MODEL}{long}: 1\n"),
        format!(
            "{MODEL}tools: [{{name: t, description: d, command: [a], parameters: [{{name: p, type: {long}}}]}}]\n"
        ),
        format!("{MODEL}tools: [{{name: t, description: d, command: {long}}}]\n"),
        format!("{MODEL}\ttools: {long}\n"),
        format!("{{{long}\n"),
    ] {
        let folder = folder(&config);
        let message = load_error(folder.path());
        assert!(message.len() < 4_000, "{} bytes: {}", message.len(), &message[..400]);
        assert!(message.contains("config.yaml"), "{message}");
    }
}
