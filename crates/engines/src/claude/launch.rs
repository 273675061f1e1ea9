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

use abide_domain::{effect::LaunchSession, engine::EngineSessionHandle};
use abide_ports::engine::{
    EngineInstallation, LaunchContext, ProcessSpec, ProcessStdin, SandboxMode, UnsupportedOperation,
};

use super::{ClaudeForm, messages};
use crate::{argument, ids::is_uuid};

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
    let mut argv = context.installation.command.clone();
    let mut add = |arguments: &[&str]| argv.extend(arguments.iter().map(|argument| (*argument).to_owned()));
    add(&["-p", "--output-format", "stream-json", "--verbose"]);
    match form {
        ClaudeForm::Print => {}
        ClaudeForm::Stream { asks: false } => add(&["--input-format", "stream-json"]),
        ClaudeForm::Stream { asks: true } => {
            add(&["--input-format", "stream-json", "--permission-prompt-tool", "stdio"]);
        }
    }
    match context.sandbox {
        None => {}
        Some(SandboxMode::ReadOnly) => add(&[
            "--permission-mode",
            "plan",
            "--disallowedTools=ExitPlanMode",
            "--settings",
            r#"{"useAutoModeDuringPlan":false}"#,
        ]),
        Some(SandboxMode::WorkspaceWrite) => add(&["--permission-mode", "acceptEdits"]),
        Some(SandboxMode::FullAccess) => add(&["--permission-mode", "bypassPermissions"]),
    }
    if let Some(model) = argument::model(context)? {
        add(&["--model", model]);
    }
    let configured_args: Vec<&str> = context.installation.args.iter().map(String::as_str).collect();
    add(&configured_args);
    match context.session {
        LaunchSession::New => {}
        LaunchSession::Named(handle) => add(&["--session-id", session_id(handle)?]),
        LaunchSession::Resumed(handle) => add(&["--resume", session_id(handle)?]),
    }
    Ok(ProcessSpec {
        argv,
        env: environment(context, form),
        removed_env: INHERITED_CLAUDE_VARIABLES.map(str::to_owned).to_vec(),
        appended_env: vec![],
        files: vec![],
        stdin: match form {
            ClaudeForm::Print => ProcessStdin::Complete(context.prompt.as_bytes().to_vec()),
            ClaudeForm::Stream { .. } => ProcessStdin::KeptOpen(messages::prompt_line(context.prompt)),
        },
        not_before: None,
        surviving_keepers_dir: None,
    })
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

/// The session id of a handle. The program would search titles of sessions for anything but a UUID.
fn session_id(handle: &EngineSessionHandle) -> Result<&str, UnsupportedOperation> {
    let id = handle.handle_value.as_str();
    if is_uuid(id) {
        Ok(id)
    } else {
        Err(UnsupportedOperation::Refused { reason: format!("{id:?} is not a session id") })
    }
}

#[cfg(test)]
mod tests {
    use abide_domain::{
        engine::{HandleType, ProfileKind},
        settings::ExecutionMode,
    };

    use super::*;

    fn launched(
        kind: ProfileKind,
        mode: ExecutionMode,
        sandbox: Option<SandboxMode>,
        session: &LaunchSession,
    ) -> ProcessSpec {
        let installation = EngineInstallation::for_program("claude");
        launch(&LaunchContext {
            installation: &installation,
            kind,
            session,
            prompt: "-hello",
            workspace: "/somewhere",
            private_dir: "/elsewhere",
            mode,
            model: None,
            sandbox,
            isolation: Default::default(),
            skill: None,
            session_started_at: None,
            resume_detail: "",
            prompt_source: abide_ports::engine::PromptSource::Message,
        })
        .expect("the session id is one")
    }

    fn handle(id: &str) -> EngineSessionHandle {
        EngineSessionHandle {
            engine: "claude".to_owned(),
            handle_type: HandleType::SessionId,
            handle_value: id.to_owned(),
            created_at_turn: 1,
        }
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
            let launch = launched(kind, mode, None, &LaunchSession::New);
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
            let launch = launched(ProfileKind::Resumable, ExecutionMode::Auto, sandbox, &LaunchSession::New);
            let claims = launch.env.iter().any(|(name, _)| name == "IS_SANDBOX");
            assert_eq!(claims, sandbox == Some(SandboxMode::FullAccess), "{sandbox:?}");
        }
    }

    #[test]
    fn a_session_is_named_once_and_resumed_later() {
        let id = "01a1e0b7-8feb-4f42-a76c-eeeb075097aa";
        for (session, option) in [
            (LaunchSession::Named(handle(id)), "--session-id"),
            (LaunchSession::Resumed(handle(id)), "--resume"),
        ] {
            let launch = launched(ProfileKind::Resumable, ExecutionMode::Auto, None, &session);
            assert!(launch.argv.ends_with(&[option.to_owned(), id.to_owned()]), "{:?}", launch.argv);
        }
        assert!(session_id(&handle("my session")).is_err(), "titles are not ids");
    }
}
