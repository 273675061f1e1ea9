//! Starts Qwen Code.
//!
//! | sandbox | approval mode | and rules |
//! |---|---|---|
//! | read-only | `plan` | no shell commands, no edits |
//! | workspace-write | `default` | edits below the workspace, no shell commands |
//! | danger-full-access | `yolo` | none |
//!
//! The mode `auto-edit` would be too wide, because it also edits files outside the workspace (0.24.4). A rule in the
//! owner's settings that allows more edits still applies. The held form is `qwen --acp` with the same options.

use abide_domain::engine::ProfileKind;
use abide_ports::engine::{
    EngineInstallation, LaunchContext, ProcessSpec, SandboxMode, UnsupportedOperation,
};

use crate::{acp, argument::is_uuid, launch_builder::LaunchBuilder, node_output::WholeOutput};

/// Tools that run commands.
const COMMAND_TOOLS: [&str; 2] = ["run_shell_command", "monitor"];
/// Tools that change files.
const EDIT_TOOLS: [&str; 3] = ["edit", "write_file", "notebook_edit"];

pub(super) fn launch(context: &LaunchContext<'_>) -> Result<ProcessSpec, UnsupportedOperation> {
    let mut launch = LaunchBuilder::new(context);
    launch.spec.env = environment(context.installation);
    match context.kind {
        ProfileKind::Resumable => launch.args(&["--output-format", "stream-json"]),
        ProfileKind::StickyProcess => launch.args(&["--acp"]),
    }
    // Resuming needs the recording, which the owner may have disabled.
    launch.args(&["--chat-recording"]);
    if let Some(sandbox) = context.sandbox {
        launch.spec.argv.extend(sandbox_args(sandbox, context.workspace)?);
    }
    launch.model_arg()?;
    launch.configured_args();
    match context.kind {
        ProfileKind::Resumable => {
            // Texts that are not UUIDs are taken for a session's title.
            launch.session_args(is_uuid)?;
            WholeOutput::new(context.private_dir).add_to(&mut launch.spec);
        }
        // The protocol creates or loads the session and does not accept our ids.
        ProfileKind::StickyProcess => launch.spec.stdin = acp::launch::initialize_stdin(),
    }
    Ok(launch.spec)
}

/// The environment of each start of the program.
pub(super) fn environment(installation: &EngineInstallation) -> Vec<(String, String)> {
    let mut env = installation.env.clone();
    env.insert("QWEN_CODE_SKIP_UPDATE_CHECK_ONCE".to_owned(), "true".to_owned());
    // Otherwise the program restarts itself with a larger heap, as a child that does not load the script for complete
    // output.
    env.insert("QWEN_CODE_NO_RELAUNCH".to_owned(), "true".to_owned());
    // Error messages are shown to people, without colour codes.
    env.insert("NO_COLOR".to_owned(), "1".to_owned());
    env.into_iter().collect()
}

/// Derives a session id from a new UUID. The program accepts only versions 1 to 5.
pub(super) fn accepted_id(uuid: &str) -> String {
    let changed = |(at, character)| match (at, character) {
        (14, _) => '4',
        (19, '8' | '9' | 'a' | 'b' | 'A' | 'B') => character,
        (19, _) => '8',
        (_, _) => character,
    };
    uuid.char_indices().map(changed).collect()
}

fn sandbox_args(sandbox: SandboxMode, workspace: &str) -> Result<Vec<String>, UnsupportedOperation> {
    let mut arguments = vec!["--approval-mode".to_owned()];
    let mut forbid = |mode: &str, tools: &[&str]| {
        arguments.push(mode.to_owned());
        for tool in tools {
            arguments.extend(["--exclude-tools".to_owned(), (*tool).to_owned()]);
        }
    };
    match sandbox {
        SandboxMode::ReadOnly => forbid("plan", &[COMMAND_TOOLS.as_slice(), EDIT_TOOLS.as_slice()].concat()),
        SandboxMode::WorkspaceWrite => {
            if !workspace.starts_with('/') || workspace.contains(PATTERN_CHARS) {
                return Err(UnsupportedOperation::Refused {
                    reason: format!(
                        "qwen cannot be confined to {workspace:?}, because the path would be a pattern; rename the \
                         directory, or choose another sandbox"
                    ),
                });
            }
            forbid("default", &COMMAND_TOOLS);
            for tool in EDIT_TOOLS {
                // In a rule, an absolute path has a second slash in front.
                arguments.extend(["--allowed-tools".to_owned(), format!("{tool}(/{workspace}/**)")]);
            }
        }
        SandboxMode::FullAccess => forbid("yolo", &[]),
    }
    Ok(arguments)
}

/// Characters with a special meaning in a rule.
const PATTERN_CHARS: [char; 11] = ['(', ')', '*', '?', '[', ']', '{', '}', ',', '!', '\\'];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_uuid_becomes_one_that_is_accepted() {
        assert_eq!(
            accepted_id("01a1e0b7-8feb-7f42-c76c-eeeb075097aa"),
            "01a1e0b7-8feb-4f42-876c-eeeb075097aa"
        );
        let fourth = "0f8fad5b-d9cb-469f-a165-70867728950e";
        assert_eq!(accepted_id(fourth), fourth);
    }

    #[test]
    fn edits_are_allowed_below_the_workspace_and_commands_nowhere() {
        let arguments = sandbox_args(SandboxMode::WorkspaceWrite, "/some/where").unwrap().join(" ");
        assert_eq!(
            arguments,
            "--approval-mode default --exclude-tools run_shell_command --exclude-tools monitor \
             --allowed-tools edit(//some/where/**) --allowed-tools write_file(//some/where/**) \
             --allowed-tools notebook_edit(//some/where/**)"
        );
        let read_only = sandbox_args(SandboxMode::ReadOnly, "/some/where").unwrap();
        assert!(
            EDIT_TOOLS
                .iter()
                .chain(&COMMAND_TOOLS)
                .all(|tool| read_only.iter().any(|argument| argument == tool))
        );
    }

    #[test]
    fn a_workspace_that_would_be_a_pattern_is_refused() {
        for path in ["/some/(where)", "/some/*", "relative"] {
            assert!(matches!(
                sandbox_args(SandboxMode::WorkspaceWrite, path),
                Err(UnsupportedOperation::Refused { .. })
            ));
        }
    }
}
