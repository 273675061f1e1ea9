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

use abide_domain::engine::ProfileKind;
use abide_ports::engine::{
    EngineInstallation, LaunchContext, PrivateFile, ProcessSpec, SandboxMode, UnsupportedOperation,
};

use super::session::is_id;
use crate::{acp, launch_builder::LaunchBuilder, node_output::WholeOutput};

/// Name of the policy file in the run's private folder.
const POLICY_FILE: &str = "gemini-policy.toml";

pub(super) fn launch(context: &LaunchContext<'_>) -> Result<ProcessSpec, UnsupportedOperation> {
    let mut launch = LaunchBuilder::new(context);
    launch.spec.env = environment(context.installation);
    match context.kind {
        ProfileKind::Resumable => launch.args(&["--output-format", "stream-json"]),
        ProfileKind::StickyProcess => launch.args(&["--acp"]),
    }
    if let Some(sandbox) = context.sandbox {
        launch.args(&["--approval-mode", approval_mode(sandbox)]);
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
            launch.args(&["--admin-policy", &format!("{}/{POLICY_FILE}", context.private_dir)]);
            let file = PrivateFile { relative_path: POLICY_FILE.to_owned(), contents: policy.to_owned() };
            launch.spec.files.push(file);
        }
    }
    launch.model_arg()?;
    launch.configured_args();
    match context.kind {
        ProfileKind::Resumable => {
            launch.session_args(is_id)?;
            WholeOutput::new(context.private_dir).add_to(&mut launch.spec);
        }
        // The protocol creates or loads the session and does not accept our ids.
        ProfileKind::StickyProcess => {
            launch.spec.stdin = acp::launch::initialize_stdin();
            launch.spec.not_before = acp::launch::not_before(context);
        }
    }
    Ok(launch.spec)
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
    use abide_domain::effect::LaunchSession;
    use abide_ports::engine::{Engine as _, ProcessStdin};

    use super::*;
    use crate::{gemini::ENGINE, test_context::launch_context};

    fn check(
        sandbox: Option<SandboxMode>,
        private: &str,
    ) -> Result<(String, Vec<String>), UnsupportedOperation> {
        let named =
            ENGINE.new_session_handle("01a1e0b7-8feb-7f42-a76c-eeeb075097aa").expect("we name sessions");
        let (installation, session) = (ENGINE.installation(), LaunchSession::Resumed(named));
        let launch = launch(&LaunchContext {
            prompt: "-5 + 3?",
            private_dir: private,
            sandbox,
            ..launch_context(&installation, &session)
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
            kind: ProfileKind::StickyProcess,
            model: Some("a-model"),
            sandbox: Some(SandboxMode::ReadOnly),
            ..launch_context(&ENGINE.installation(), &LaunchSession::New)
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
