//! Maps each sandbox to permission rules of the program.
//!
//! The program has no sandbox of the operating system, only rules by tool, of which the last match applies. The owner's
//! rules precede those of an agent. Each sandbox is therefore a separate agent, and its rules begin by denying all
//! tools, so that tools of later versions are not allowed by default.
//!
//! | sandbox | rules |
//! |---|---|
//! | read-only | tools that only read; no edits, no commands, no sub-agents (they have rules of their own) |
//! | workspace-write | also edits in the workspace; commands and other directories only if a person allows each |
//! | danger-full-access | everything |
//!
//! A command can act outside the workspace, so it is not allowed without a question. `opencode run` cannot ask, and a
//! refused request ends its turn. The model is therefore not offered commands there.

use std::collections::BTreeMap;

use abide_domain::engine::ProfileKind;
use abide_ports::engine::{LaunchContext, SandboxMode, UnsupportedOperation};
use serde_json::{Map, Value, json};

/// The variable with configuration as text; it takes precedence over all files.
const CONFIG_VARIABLE: &str = "OPENCODE_CONFIG_CONTENT";

/// The name of a sandbox's agent.
pub(super) fn agent(sandbox: SandboxMode) -> &'static str {
    match sandbox {
        SandboxMode::ReadOnly => "abide-read-only",
        SandboxMode::WorkspaceWrite => "abide-workspace-write",
        SandboxMode::FullAccess => "abide-full-access",
    }
}

/// Adds the sandbox's agent to the configuration in the environment.
pub(super) fn configure(
    context: &LaunchContext<'_>,
    environment: &mut BTreeMap<String, String>,
) -> Result<(), UnsupportedOperation> {
    let Some(sandbox) = context.sandbox else { return Ok(()) };
    let mut config: Map<String, Value> = match environment.get(CONFIG_VARIABLE) {
        None => Map::new(),
        Some(own) => serde_json::from_str(own).map_err(|error| UnsupportedOperation::Refused {
            reason: format!("{CONFIG_VARIABLE} in the engine's configuration is not a JSON object: {error}"),
        })?,
    };
    let agents = config.entry("agent").or_insert_with(|| json!({}));
    let own = json!({
        "description": "Works within the sandbox of an Abide run.",
        "mode": "primary",
        "permission": rules(sandbox, context.kind),
    });
    match agents.as_object_mut() {
        Some(agents) => agents.insert(agent(sandbox).to_owned(), own),
        None => {
            return Err(UnsupportedOperation::Refused {
                reason: format!("agent in {CONFIG_VARIABLE} of the engine's configuration is not an object"),
            });
        }
    };
    config.insert("default_agent".to_owned(), agent(sandbox).into());
    environment.insert(CONFIG_VARIABLE.to_owned(), Value::Object(config).to_string());
    Ok(())
}

/// Keys are written in alphabetical order, in which `*` precedes all letters.
fn rules(sandbox: SandboxMode, kind: ProfileKind) -> Value {
    let if_a_person_allows = match kind {
        ProfileKind::Resumable => "deny",
        ProfileKind::StickyProcess => "ask",
    };
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
        SandboxMode::ReadOnly => {}
        SandboxMode::WorkspaceWrite => {
            rules["bash"] = if_a_person_allows.into();
            rules["edit"] = "allow".into();
            rules["external_directory"] = if_a_person_allows.into();
        }
        SandboxMode::FullAccess => rules = json!({ "*": "allow" }),
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_tools_are_allowed() {
        for kind in [ProfileKind::Resumable, ProfileKind::StickyProcess] {
            for sandbox in [SandboxMode::ReadOnly, SandboxMode::WorkspaceWrite] {
                assert_eq!(rules(sandbox, kind).to_string().find("{\"*\":\"deny\""), Some(0));
            }
            assert_eq!(rules(SandboxMode::ReadOnly, kind).get("edit"), None);
            assert_eq!(rules(SandboxMode::ReadOnly, kind).get("bash"), None);
        }
    }

    #[test]
    fn commands_need_approval_if_the_run_may_ask() {
        assert_eq!(rules(SandboxMode::WorkspaceWrite, ProfileKind::Resumable)["bash"], "deny");
        assert_eq!(rules(SandboxMode::WorkspaceWrite, ProfileKind::StickyProcess)["bash"], "ask");
    }
}
