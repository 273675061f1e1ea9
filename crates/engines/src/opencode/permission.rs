//! What each sandbox allows, in the program's own rules.
//!
//! The program has no sandbox of the operating system, only rules by tool, of which the last that matches counts. The
//! owner's rules come before those of an agent, so each sandbox is an agent of its own, and each begins by denying
//! everything: a tool that a later version brings is not allowed by our silence.
//!
//! | sandbox | becomes |
//! |---|---|
//! | read-only | tools that look; no edits, no commands, no sub-agents (they have rules of their own) |
//! | workspace-write | also edits in the workspace; commands and other directories only if a person allows each |
//! | danger-full-access | everything |
//!
//! A command may do anything anywhere, so allowing it would be wider than the workspace. In `opencode run` nobody can
//! be asked, and a request that is refused there ends the turn: so the model is not offered commands at all.

use std::collections::BTreeMap;

use abide_domain::engine::ProfileKind;
use abide_ports::engine::{LaunchContext, SandboxMode, UnsupportedOperation};
use serde_json::{Map, Value, json};

/// The variable that holds configuration as text; it is stronger than every file.
const VARIABLE: &str = "OPENCODE_CONFIG_CONTENT";

/// The agent that stands for a sandbox.
pub(super) fn agent(sandbox: SandboxMode) -> &'static str {
    match sandbox {
        SandboxMode::ReadOnly => "abide-read-only",
        SandboxMode::WorkspaceWrite => "abide-workspace-write",
        SandboxMode::FullAccess => "abide-full-access",
    }
}

/// Adds the sandbox's agent to the configuration in the environment.
pub(super) fn configure(
    order: &LaunchContext<'_>,
    environment: &mut BTreeMap<String, String>,
) -> Result<(), UnsupportedOperation> {
    let Some(sandbox) = order.sandbox else { return Ok(()) };
    let mut config: Map<String, Value> = match environment.get(VARIABLE) {
        None => Map::new(),
        Some(own) => serde_json::from_str(own).map_err(|error| UnsupportedOperation::Refused {
            reason: format!("{VARIABLE} in the engine's configuration is not a JSON object: {error}"),
        })?,
    };
    let agents = config.entry("agent").or_insert_with(|| json!({}));
    let own = json!({
        "description": "Works within the sandbox of an Abide run.",
        "mode": "primary",
        "permission": rules(sandbox, order.kind),
    });
    match agents.as_object_mut() {
        Some(agents) => agents.insert(agent(sandbox).to_owned(), own),
        None => {
            return Err(UnsupportedOperation::Refused {
                reason: format!("agent in {VARIABLE} of the engine's configuration is not an object"),
            });
        }
    };
    config.insert("default_agent".to_owned(), agent(sandbox).into());
    environment.insert(VARIABLE.to_owned(), Value::Object(config).to_string());
    Ok(())
}

/// Keys are written in alphabetical order, and `*` is before every letter.
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
    fn only_what_is_named_is_allowed() {
        for kind in [ProfileKind::Resumable, ProfileKind::StickyProcess] {
            for sandbox in [SandboxMode::ReadOnly, SandboxMode::WorkspaceWrite] {
                assert_eq!(rules(sandbox, kind).to_string().find("{\"*\":\"deny\""), Some(0));
            }
            assert_eq!(rules(SandboxMode::ReadOnly, kind).get("edit"), None);
            assert_eq!(rules(SandboxMode::ReadOnly, kind).get("bash"), None);
        }
    }

    #[test]
    fn commands_are_asked_for_where_somebody_can_be_asked() {
        assert_eq!(rules(SandboxMode::WorkspaceWrite, ProfileKind::Resumable)["bash"], "deny");
        assert_eq!(rules(SandboxMode::WorkspaceWrite, ProfileKind::StickyProcess)["bash"], "ask");
    }
}
