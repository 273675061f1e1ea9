//! What each sandbox allows, in the program's own rules.
//!
//! The program has no sandbox of the operating system, only rules by tool, of which the last that matches counts. The
//! owner's rules come before those of an agent, so each sandbox is an agent of its own, and each begins by denying
//! everything: a tool that a later version brings is not allowed by our silence.
//!
//! | sandbox | becomes |
//! |---|---|
//! | read-only | tools that look; no edits, no commands, no sub-agents (they have rules of their own) |
//! | workspace-write | also edits in the workspace; commands and other directories are asked for |
//! | danger-full-access | everything |
//!
//! Asked for means refused in `opencode run`, where nobody can be asked: a command may do anything anywhere, so
//! allowing it would be wider than the workspace.

use std::collections::BTreeMap;

use abide_ports::engine::{Order, Sandbox, Unsupported};
use serde_json::{Map, Value, json};

/// The variable that holds configuration as text; it is stronger than every file.
const VARIABLE: &str = "OPENCODE_CONFIG_CONTENT";

/// The agent that stands for a sandbox.
pub(super) fn agent(sandbox: Sandbox) -> &'static str {
    match sandbox {
        Sandbox::ReadOnly => "abide-read-only",
        Sandbox::WorkspaceWrite => "abide-workspace-write",
        Sandbox::FullAccess => "abide-full-access",
    }
}

/// Adds the sandbox's agent to the configuration in the environment.
pub(super) fn configure(
    order: &Order<'_>,
    environment: &mut BTreeMap<String, String>,
) -> Result<(), Unsupported> {
    let Some(sandbox) = order.sandbox else { return Ok(()) };
    let mut config: Map<String, Value> = match environment.get(VARIABLE) {
        None => Map::new(),
        Some(own) => serde_json::from_str(own).map_err(|error| Unsupported::Refused {
            reason: format!("{VARIABLE} in the engine's configuration is not a JSON object: {error}"),
        })?,
    };
    let agents = config.entry("agent").or_insert_with(|| json!({}));
    let own = json!({
        "description": "Works within the sandbox of an Abide run.",
        "mode": "primary",
        "permission": rules(sandbox),
    });
    match agents.as_object_mut() {
        Some(agents) => agents.insert(agent(sandbox).to_owned(), own),
        None => {
            return Err(Unsupported::Refused {
                reason: format!("agent in {VARIABLE} of the engine's configuration is not an object"),
            });
        }
    };
    config.insert("default_agent".to_owned(), agent(sandbox).into());
    environment.insert(VARIABLE.to_owned(), Value::Object(config).to_string());
    Ok(())
}

/// Keys are written in alphabetical order, and `*` is before every letter.
fn rules(sandbox: Sandbox) -> Value {
    let mut rules = json!({
        "*": "deny",
        "glob": "allow",
        "grep": "allow",
        "list": "allow",
        "lsp": "allow",
        "read": { "*": "allow", "*.env": "deny", "*.env.*": "deny" },
        "skill": "allow",
        "todoread": "allow",
        "todowrite": "allow",
        "webfetch": "allow",
        "websearch": "allow",
    });
    match sandbox {
        Sandbox::ReadOnly => {}
        Sandbox::WorkspaceWrite => {
            rules["bash"] = "ask".into();
            rules["edit"] = "allow".into();
            rules["external_directory"] = "ask".into();
        }
        Sandbox::FullAccess => rules = json!({ "*": "allow" }),
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_named_is_allowed() {
        assert_eq!(rules(Sandbox::ReadOnly).to_string().find("{\"*\":\"deny\""), Some(0));
        assert_eq!(rules(Sandbox::WorkspaceWrite).to_string().find("{\"*\":\"deny\""), Some(0));
        assert_eq!(rules(Sandbox::ReadOnly).get("edit"), None);
        assert_eq!(rules(Sandbox::WorkspaceWrite)["bash"], "ask");
    }
}
