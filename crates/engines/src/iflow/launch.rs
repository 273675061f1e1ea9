//! Starts iFlow.
//!
//! By default the program approves all calls, and no option is reliably known that would restrict a turn. A one-shot
//! turn is therefore refused unless the run has no sandbox setting or full access. In the held form the protocol lists
//! the modes, and the sandbox is set there.

use abide_domain::{effect::LaunchSession, engine::ProfileKind};
use abide_ports::engine::{LaunchContext, ProcessSpec, SandboxMode, UnsupportedOperation};

use crate::{acp, argument, launch_builder::LaunchBuilder};

pub(super) fn launch(context: &LaunchContext<'_>) -> Result<ProcessSpec, UnsupportedOperation> {
    let mut launch = LaunchBuilder::new(context);
    if context.kind == ProfileKind::StickyProcess {
        launch.args(&["--experimental-acp"]);
        launch.configured_args();
        launch.spec.stdin = acp::launch::initialize_stdin();
        return Ok(launch.spec);
    }
    match context.sandbox {
        None => {}
        Some(SandboxMode::FullAccess) => launch.args(&["--yolo"]),
        Some(SandboxMode::ReadOnly | SandboxMode::WorkspaceWrite) => {
            return Err(UnsupportedOperation::Refused {
                reason: "iflow cannot be confined; choose danger-full-access or another engine".to_owned(),
            });
        }
    }
    launch.model_arg()?;
    launch.configured_args();
    match context.session {
        LaunchSession::New | LaunchSession::Named(_) => {}
        LaunchSession::Resumed(handle) => {
            let is_id = |text: &str| text.starts_with(|first: char| first.is_ascii_alphanumeric());
            launch.args(&["--resume", argument::session_id(handle, "session id", is_id)?]);
        }
    }
    Ok(launch.spec)
}
