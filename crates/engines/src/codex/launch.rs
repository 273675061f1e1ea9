//! Starts Codex.
//!
//! `resume` accepts fewer options than `exec`, but the others are accepted before the subcommand. Both forms therefore
//! have the same options in the same position, and turn 2 has exactly the sandbox of turn 1 (A4). The prompt is written
//! to standard input, because it may be long or begin with a dash. The input is closed, because the program would
//! otherwise wait forever.

use abide_domain::effect::LaunchSession;
use abide_ports::engine::{LaunchContext, ProcessSpec, UnsupportedOperation};

use crate::{
    argument::{self, is_uuid},
    launch_builder::LaunchBuilder,
};

pub(super) fn launch(context: &LaunchContext<'_>) -> Result<ProcessSpec, UnsupportedOperation> {
    let mut launch = LaunchBuilder::new(context);
    launch.args(&["exec", "--json", "--skip-git-repo-check", "--color", "never"]);
    launch.sandbox_arg();
    launch.model_arg()?;
    launch.configured_args();
    match context.session {
        LaunchSession::New | LaunchSession::Named(_) => {}
        LaunchSession::Resumed(handle) => {
            // Other ids are taken for a thread's name, and an unknown name silently starts a new thread.
            launch.args(&["resume", argument::session_id(handle, "thread id", is_uuid)?]);
        }
    }
    launch.args(&["-"]);
    Ok(launch.spec)
}
