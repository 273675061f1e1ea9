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

pub(super) fn launch(order: &LaunchContext<'_>) -> Result<ProcessSpec, UnsupportedOperation> {
    let mut env = environment(order.installation).into_iter().collect();
    permission::configure(order, &mut env)?;
    let mut argv = order.installation.command.clone();
    let mut add = |arguments: &[&str]| argv.extend(arguments.iter().map(|argument| (*argument).to_owned()));
    let own: Vec<&str> = order.installation.args.iter().map(String::as_str).collect();
    let stdin = match order.kind {
        ProfileKind::StickyProcess => {
            add(&["acp", "--cwd", order.workspace]);
            add(&own);
            acp::launch::opening()
        }
        ProfileKind::Resumable => {
            add(&["run", "--format", "json", "--dir", order.workspace]);
            if let Some(sandbox) = order.sandbox {
                add(&["--agent", permission::agent(sandbox)]);
            }
            if let Some(model) = argument::model(order)? {
                add(&["--model", model]);
            }
            add(&own);
            match order.session {
                LaunchSession::New | LaunchSession::Named(_) => {}
                LaunchSession::Resumed(handle) => add(&[&format!("--session={}", handle.handle_value)]),
            }
            ProcessStdin::Whole(order.prompt.as_bytes().to_vec())
        }
    };
    Ok(ProcessSpec {
        argv,
        env: env.into_iter().collect(),
        without_env: vec![],
        appended_env: vec![],
        files: vec![],
        stdin,
        not_before: None,
        outliving: None,
    })
}

/// The owner's environment, with updates during a run disabled.
pub(super) fn environment(installation: &EngineInstallation) -> Vec<(String, String)> {
    let mut env = installation.env.clone();
    env.entry("OPENCODE_DISABLE_AUTOUPDATE".to_owned()).or_insert_with(|| "1".to_owned());
    env.into_iter().collect()
}
