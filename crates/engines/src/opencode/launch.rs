//! Starts OpenCode.
//!
//! The directory is always passed. A session that is resumed from another directory continues, but the program then
//! prints nothing and never exits. The prompt is written to standard input, because arguments reach the model in
//! quotes.

use abide_domain::{effect::LaunchSession, engine::ProfileKind};
use abide_ports::engine::{EngineInstallation, LaunchContext, ProcessSpec, UnsupportedOperation};

use super::permission;
use crate::{acp, launch_builder::LaunchBuilder};

pub(super) fn launch(context: &LaunchContext<'_>) -> Result<ProcessSpec, UnsupportedOperation> {
    let mut env = environment(context.installation).into_iter().collect();
    permission::configure(context, &mut env)?;
    let mut launch = LaunchBuilder::new(context);
    launch.spec.env = env.into_iter().collect();
    match context.kind {
        ProfileKind::StickyProcess => {
            launch.args(&["acp", "--cwd", context.workspace]);
            launch.configured_args();
            launch.spec.stdin = acp::launch::initialize_stdin();
        }
        ProfileKind::Resumable => {
            launch.args(&["run", "--format", "json", "--dir", context.workspace]);
            if let Some(sandbox) = context.sandbox {
                launch.args(&["--agent", permission::agent(sandbox)]);
            }
            launch.model_arg()?;
            launch.configured_args();
            match context.session {
                LaunchSession::New | LaunchSession::Named(_) => {}
                LaunchSession::Resumed(handle) => {
                    launch.args(&[&format!("--session={}", handle.handle_value)]);
                }
            }
        }
    }
    Ok(launch.spec)
}

/// The owner's environment, with updates during a run disabled.
pub(super) fn environment(installation: &EngineInstallation) -> Vec<(String, String)> {
    let mut env = installation.env.clone();
    env.entry("OPENCODE_DISABLE_AUTOUPDATE".to_owned()).or_insert_with(|| "1".to_owned());
    env.into_iter().collect()
}
