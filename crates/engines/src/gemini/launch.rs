//! Starts Gemini.
//!
//! | sandbox | approval mode | and a policy that forbids |
//! |---|---|---|
//! | read-only | `plan` | writing files, shell commands, leaving plan mode |
//! | workspace-write | `auto_edit`: files in the workspace, no shell commands | entering and leaving plan mode |
//! | danger-full-access | `yolo` | nothing |
//!
//! The policies are needed because a headless Gemini lets its model leave plan mode, and then approves all calls. From
//! each other mode the model may enter plan mode first. The policies are passed as administrator policies, the only
//! kind that takes precedence over the owner's without replacing them. If an administrator has installed other
//! policies, Gemini ignores ours with a warning. Those must then forbid the two tools.
//!
//! The held form is `gemini --acp` with the same options. Calls that neither a policy nor the mode decides are put to a
//! person.
//!
//! Gemini refuses a workspace that its owner does not trust. `--skip-trust` is not used, because it would also allow
//! the workspace's own settings to start programs.

use abide_domain::{effect::LaunchSession, engine::ProfileKind};
use abide_ports::engine::{
    EngineInstallation, LaunchContext, PrivateFile, ProcessSpec, ProcessStdin, SandboxMode,
    UnsupportedOperation,
};

use super::session::is_id;
use crate::{acp, argument, node_output::WholeOutput};

/// Name of the policy file in the run's private folder.
const POLICY_FILE: &str = "gemini-policy.toml";

pub(super) fn launch(context: &LaunchContext<'_>) -> Result<ProcessSpec, UnsupportedOperation> {
    let mut argv = context.installation.command.clone();
    let mut add = |arguments: &[&str]| argv.extend(arguments.iter().map(|argument| (*argument).to_owned()));
    match context.kind {
        ProfileKind::Resumable => add(&["--output-format", "stream-json"]),
        ProfileKind::StickyProcess => add(&["--acp"]),
    }
    let mut files = vec![];
    if let Some(sandbox) = context.sandbox {
        add(&["--approval-mode", approval_mode(sandbox)]);
        if let Some(policy) = policy(sandbox) {
            if context.private_dir.contains(',') {
                // Gemini would parse the path as a list of two, find neither, and continue without the policy.
                return Err(UnsupportedOperation::Refused {
                    reason: format!(
                        "the path {:?} has a comma; use another data directory",
                        context.private_dir
                    ),
                });
            }
            add(&["--admin-policy", &format!("{}/{POLICY_FILE}", context.private_dir)]);
            files.push(PrivateFile { relative_path: POLICY_FILE.to_owned(), contents: policy.to_owned() });
        }
    }
    if let Some(model) = argument::model(context)? {
        add(&["--model", model]);
    }
    let configured_args: Vec<&str> = context.installation.args.iter().map(String::as_str).collect();
    add(&configured_args);
    if context.kind == ProfileKind::StickyProcess {
        // The protocol creates or loads the session and does not accept our ids.
        return Ok(ProcessSpec {
            argv,
            env: environment(context.installation),
            removed_env: vec![],
            appended_env: vec![],
            files,
            stdin: acp::launch::initialize_stdin(),
            not_before: acp::launch::not_before(context),
            surviving_keepers_dir: None,
        });
    }
    match context.session {
        LaunchSession::New => {}
        LaunchSession::Named(handle) => add(&["--session-id", &handle.handle_value]),
        LaunchSession::Resumed(handle) => {
            let id = handle.handle_value.as_str();
            if !is_id(id) {
                return Err(UnsupportedOperation::Refused { reason: format!("{id:?} is not a session id") });
            }
            add(&["--resume", id]);
        }
    }
    let whole_output = WholeOutput::new(context.private_dir);
    files.push(whole_output.file);
    Ok(ProcessSpec {
        argv,
        env: environment(context.installation),
        removed_env: vec![],
        appended_env: vec![whole_output.env],
        files,
        stdin: ProcessStdin::Complete(context.prompt.as_bytes().to_vec()),
        not_before: None,
        surviving_keepers_dir: None,
    })
}

/// The environment of each start of the program.
pub(super) fn environment(installation: &EngineInstallation) -> Vec<(String, String)> {
    let mut env = installation.env.clone();
    // Otherwise the program restarts itself as a child, and signals to the parent do not reach the turn.
    env.insert("GEMINI_CLI_NO_RELAUNCH".to_owned(), "1".to_owned());
    // Error messages are shown to people, without colour codes.
    env.insert("NO_COLOR".to_owned(), "1".to_owned());
    env.into_iter().collect()
}

fn approval_mode(sandbox: SandboxMode) -> &'static str {
    match sandbox {
        SandboxMode::ReadOnly => "plan",
        SandboxMode::WorkspaceWrite => "auto_edit",
        SandboxMode::FullAccess => "yolo",
    }
}

fn policy(sandbox: SandboxMode) -> Option<&'static str> {
    match sandbox {
        SandboxMode::ReadOnly => Some(
            r#"[[rule]]
toolName = ["enter_plan_mode", "exit_plan_mode", "write_file", "replace", "run_shell_command"]
decision = "deny"
priority = 999
"#,
        ),
        SandboxMode::WorkspaceWrite => Some(
            r#"[[rule]]
toolName = ["enter_plan_mode", "exit_plan_mode"]
decision = "deny"
priority = 999
"#,
        ),
        SandboxMode::FullAccess => None,
    }
}

#[cfg(test)]
mod tests {
    use abide_domain::settings::ExecutionMode;

    use super::*;
    use crate::gemini::ENGINE;
    use abide_ports::engine::Engine as _;

    fn check(
        sandbox: Option<SandboxMode>,
        private: &str,
    ) -> Result<(String, Vec<String>), UnsupportedOperation> {
        let named =
            ENGINE.new_session_handle("01a1e0b7-8feb-7f42-a76c-eeeb075097aa").expect("we name sessions");
        let launch = launch(&LaunchContext {
            installation: &EngineInstallation::for_program("gemini"),
            kind: ProfileKind::Resumable,
            session: &LaunchSession::Resumed(named),
            prompt: "-5 + 3?",
            workspace: "/somewhere",
            private_dir: private,
            mode: ExecutionMode::Auto,
            model: None,
            sandbox,
            isolation: Default::default(),
            skill: None,
            session_started_at: None,
            resume_detail: "",
            prompt_source: abide_ports::engine::PromptSource::Message,
        })?;
        assert_eq!(launch.stdin, ProcessStdin::Complete(b"-5 + 3?".to_vec()));
        let policies = launch.files.into_iter().filter(|file| file.relative_path == POLICY_FILE);
        Ok((launch.argv.join(" "), policies.map(|file| file.contents).collect()))
    }

    #[test]
    fn a_narrow_sandbox_takes_the_way_out_of_plan_mode_away() {
        let session = "--resume _eeeb075097aa-01a1e0b7-8feb-7f42-a76c";
        for (sandbox, mode) in [(SandboxMode::ReadOnly, "plan"), (SandboxMode::WorkspaceWrite, "auto_edit")] {
            let (argv, policies) = check(Some(sandbox), "/elsewhere").unwrap();
            assert_eq!(
                argv,
                format!(
                    "gemini --output-format stream-json --approval-mode {mode} \
                     --admin-policy /elsewhere/gemini-policy.toml {session}"
                )
            );
            let [policy] = policies.as_slice() else { panic!("one policy, not {policies:?}") };
            assert!(policy.contains("exit_plan_mode") && policy.contains("deny"));
        }
        let (argv, policies) = check(Some(SandboxMode::FullAccess), "/elsewhere").unwrap();
        assert_eq!(argv, format!("gemini --output-format stream-json --approval-mode yolo {session}"));
        assert!(policies.is_empty());
        let (argv, _) = check(None, "/elsewhere").unwrap();
        assert_eq!(argv, format!("gemini --output-format stream-json {session}"));
    }

    #[test]
    fn the_held_form_is_confined_in_the_same_way() {
        let held = launch(&LaunchContext {
            installation: &EngineInstallation::for_program("gemini"),
            kind: ProfileKind::StickyProcess,
            session: &LaunchSession::New,
            prompt: "hello",
            workspace: "/somewhere",
            private_dir: "/elsewhere",
            mode: ExecutionMode::Interactive,
            model: Some("a-model"),
            sandbox: Some(SandboxMode::ReadOnly),
            isolation: Default::default(),
            skill: None,
            session_started_at: None,
            resume_detail: "",
            prompt_source: abide_ports::engine::PromptSource::Message,
        });
        let held = held.unwrap();
        assert_eq!(
            held.argv.join(" "),
            "gemini --acp --approval-mode plan --admin-policy /elsewhere/gemini-policy.toml --model a-model"
        );
        assert_eq!(held.files.len(), 1);
        assert!(matches!(held.stdin, ProcessStdin::KeptOpen(_)));
    }

    #[test]
    fn a_policy_that_would_not_be_found_stops_the_launch() {
        assert!(matches!(
            check(Some(SandboxMode::ReadOnly), "/else,where"),
            Err(UnsupportedOperation::Refused { .. })
        ));
        assert!(check(Some(SandboxMode::FullAccess), "/else,where").is_ok());
    }
}
