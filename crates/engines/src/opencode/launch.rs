//! Starts OpenCode.
//!
//! The directory is always passed. A session that is resumed from another directory continues, but the program then
//! prints nothing and never exits. The prompt is written to standard input, because arguments reach the model in
//! quotes.

use abide_domain::{effect::LaunchSession, engine::ProfileKind};
use abide_ports::engine::{
    EngineInstallation, LaunchContext, ProcessSpec, ProcessStdin, UnsupportedOperation,
};

use super::permission;
use crate::{acp, argument};

pub(super) fn launch(context: &LaunchContext<'_>) -> Result<ProcessSpec, UnsupportedOperation> {
    let mut env = environment(context.installation).into_iter().collect();
    permission::configure(context, &mut env)?;
    let mut argv = context.installation.command.clone();
    let mut add = |arguments: &[&str]| argv.extend(arguments.iter().map(|argument| (*argument).to_owned()));
    let configured_args: Vec<&str> = context.installation.args.iter().map(String::as_str).collect();
    let stdin = match context.kind {
        ProfileKind::StickyProcess => {
            add(&["acp", "--cwd", context.workspace]);
            add(&configured_args);
            acp::launch::initialize_stdin()
        }
        ProfileKind::Resumable => {
            add(&["run", "--format", "json", "--dir", context.workspace]);
            if let Some(sandbox) = context.sandbox {
                add(&["--agent", permission::agent(sandbox)]);
            }
            if let Some(model) = argument::model(context)? {
                add(&["--model", model]);
            }
            add(&configured_args);
            match context.session {
                LaunchSession::New | LaunchSession::Named(_) => {}
                LaunchSession::Resumed(handle) => add(&[&format!("--session={}", handle.handle_value)]),
            }
            ProcessStdin::Complete(context.prompt.as_bytes().to_vec())
        }
    };
    Ok(ProcessSpec {
        argv,
        env: env.into_iter().collect(),
        removed_env: vec![],
        appended_env: vec![],
        files: vec![],
        stdin,
        not_before: None,
        surviving_keepers_dir: None,
    })
}

/// The owner's environment, with updates during a run disabled.
pub(super) fn environment(installation: &EngineInstallation) -> Vec<(String, String)> {
    let mut env = installation.env.clone();
    env.entry("OPENCODE_DISABLE_AUTOUPDATE".to_owned()).or_insert_with(|| "1".to_owned());
    env.into_iter().collect()
}
