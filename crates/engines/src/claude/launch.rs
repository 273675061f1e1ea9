//! Starts Claude Code.
//!
//! | sandbox | setting |
//! |---|---|
//! | none | none: the program's own settings decide |
//! | read-only | `--permission-mode plan`, with two restrictions: see below |
//! | workspace-write | `--permission-mode acceptEdits`: files in the workspace change freely |
//! | danger-full-access | `--permission-mode bypassPermissions`; as root only with `IS_SANDBOX=1` |
//!
//! Plan mode must not be left, so `ExitPlanMode` is removed. No model may approve commands in it
//! (`useAutoModeDuringPlan`). In `acceptEdits`, other commands require permission.
//!
//! These are rules of the program and not barriers of the operating system. Actions that require permission are asked
//! for if the run may ask, and refused otherwise. Rules in the program's own settings files still apply, and so does a
//! `--settings` option of the owner, which replaces ours.
//!
//! The prompt is written to standard input, because it may be long or begin with a dash.

use std::collections::BTreeMap;

use abide_ports::engine::{
    EngineInstallation, LaunchContext, ProcessSpec, ProcessStdin, SandboxMode, UnsupportedOperation,
};

use super::{ClaudeForm, messages};
use crate::{argument::is_uuid, launch_builder::LaunchBuilder};

/// Variables that Claude Code sets for its children. With them the program would act as a part of another instance.
const INHERITED_CLAUDE_VARIABLES: [&str; 11] = [
    "CLAUDECODE",
    "CLAUDE_CODE_ENTRYPOINT",
    "CLAUDE_CODE_SESSION_ID",
    "CLAUDE_CODE_CHILD_SESSION",
    "CLAUDE_CODE_SESSION_ATTENDED",
    "CLAUDE_CODE_EXECPATH",
    "CLAUDE_CODE_SSE_PORT",
    "CLAUDE_PROJECT_DIR",
    "CLAUDE_PID",
    "CLAUDE_EFFORT",
    "AI_AGENT",
];

pub(super) fn launch(context: &LaunchContext<'_>) -> Result<ProcessSpec, UnsupportedOperation> {
    let form = ClaudeForm::of(context);
    let mut launch = LaunchBuilder::new(context);
    launch.spec.env = environment(context, form);
    launch.spec.removed_env = INHERITED_CLAUDE_VARIABLES.map(str::to_owned).to_vec();
    launch.args(&["-p", "--output-format", "stream-json", "--verbose"]);
    if let ClaudeForm::Stream { asks } = form {
        launch.args(&["--input-format", "stream-json"]);
        if asks {
            launch.args(&["--permission-prompt-tool", "stdio"]);
        }
        launch.spec.stdin = ProcessStdin::KeptOpen(messages::prompt_line(context.prompt));
    }
    match context.sandbox {
        None => {}
        Some(SandboxMode::ReadOnly) => launch.args(&[
            "--permission-mode",
            "plan",
            "--disallowedTools=ExitPlanMode",
            "--settings",
            r#"{"useAutoModeDuringPlan":false}"#,
        ]),
        Some(SandboxMode::WorkspaceWrite) => launch.args(&["--permission-mode", "acceptEdits"]),
        Some(SandboxMode::FullAccess) => launch.args(&["--permission-mode", "bypassPermissions"]),
    }
    launch.model_arg()?;
    launch.configured_args();
    // The program would search the titles of sessions for anything but a UUID.
    launch.session_args(is_uuid)?;
    Ok(launch.spec)
}

/// Environment that disables updates during a run. Settings of the owner take precedence.
pub(super) fn environment_without_updates(installation: &EngineInstallation) -> Vec<(String, String)> {
    with_switches(installation, &["DISABLE_AUTOUPDATER"])
}

fn environment(context: &LaunchContext<'_>, form: ClaudeForm) -> Vec<(String, String)> {
    let mut switches = vec!["DISABLE_AUTOUPDATER"];
    if matches!(form, ClaudeForm::Stream { .. }) {
        // The end of a background task, or a timer, makes the program begin a turn without a prompt, and a prompt that
        // arrives then is lost in it. The print form waits for such tasks itself.
        switches.extend(["CLAUDE_CODE_DISABLE_BACKGROUND_TASKS", "CLAUDE_CODE_DISABLE_CRON"]);
    }
    if context.sandbox == Some(SandboxMode::FullAccess) {
        switches.push("IS_SANDBOX");
    }
    with_switches(context.installation, &switches)
}

fn with_switches(installation: &EngineInstallation, switches: &[&str]) -> Vec<(String, String)> {
    let mut env: BTreeMap<String, String> =
        switches.iter().map(|name| ((*name).to_owned(), "1".to_owned())).collect();
    env.extend(installation.env.clone());
    env.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use abide_domain::{effect::LaunchSession, engine::ProfileKind, settings::ExecutionMode};

    use super::*;
    use crate::test_context::{launch_context, session_handle};

    fn launched(
        kind: ProfileKind,
        mode: ExecutionMode,
        sandbox: Option<SandboxMode>,
        session: &LaunchSession,
    ) -> Result<ProcessSpec, UnsupportedOperation> {
        let installation = EngineInstallation::for_program("claude");
        launch(&LaunchContext { kind, mode, sandbox, ..launch_context(&installation, session) })
    }

    #[test]
    fn a_run_that_never_asks_prints_and_one_that_may_ask_converses() {
        use {ExecutionMode as Mode, ProfileKind as Kind};
        for (kind, mode, streams, asks) in [
            (Kind::Resumable, Mode::Auto, false, false),
            (Kind::Resumable, Mode::Interactive, true, true),
            (Kind::Resumable, Mode::Chat, true, true),
            (Kind::StickyProcess, Mode::Auto, true, false),
            (Kind::StickyProcess, Mode::Interactive, true, true),
        ] {
            let launch = launched(kind, mode, None, &LaunchSession::New).unwrap();
            let has = |option: &str| launch.argv.iter().any(|argument| argument == option);
            assert_eq!(has("--input-format"), streams, "{kind:?} {mode:?}");
            assert_eq!(has("--permission-prompt-tool"), asks, "{kind:?} {mode:?}");
            assert_eq!(matches!(launch.stdin, ProcessStdin::KeptOpen(_)), streams, "{kind:?} {mode:?}");
        }
    }

    #[test]
    fn only_full_access_claims_to_be_in_a_sandbox() {
        for sandbox in [
            None,
            Some(SandboxMode::ReadOnly),
            Some(SandboxMode::WorkspaceWrite),
            Some(SandboxMode::FullAccess),
        ] {
            let launch =
                launched(ProfileKind::Resumable, ExecutionMode::Auto, sandbox, &LaunchSession::New).unwrap();
            let claims = launch.env.iter().any(|(name, _)| name == "IS_SANDBOX");
            assert_eq!(claims, sandbox == Some(SandboxMode::FullAccess), "{sandbox:?}");
        }
    }

    #[test]
    fn a_session_is_named_once_and_resumed_later() {
        let id = "01a1e0b7-8feb-4f42-a76c-eeeb075097aa";
        for (session, option) in [
            (LaunchSession::Named(session_handle("claude", id)), "--session-id"),
            (LaunchSession::Resumed(session_handle("claude", id)), "--resume"),
        ] {
            let launch = launched(ProfileKind::Resumable, ExecutionMode::Auto, None, &session).unwrap();
            assert!(launch.argv.ends_with(&[option.to_owned(), id.to_owned()]), "{:?}", launch.argv);
        }
        let title = LaunchSession::Resumed(session_handle("claude", "my session"));
        let launch = launched(ProfileKind::Resumable, ExecutionMode::Auto, None, &title);
        assert!(launch.is_err(), "titles are not ids");
    }
}
