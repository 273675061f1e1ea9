//! Starts the native agent.
//!
//! The person's text is written to standard input and never part of the command line, which all users of the machine
//! can read. It may be a requested password. A message is never used as the answer to a question, even if an earlier
//! process crashed before it read the answer; the agent then asks again. A reply may answer a question of Abide itself.
//! Only the agent's journal shows whether the agent's own question is open, so the agent decides (`--say`). Each
//! message and reply counts as new, even with the same text (`--again`).

use abide_domain::{effect::LaunchSession, settings::ExecutionMode};
use abide_ports::engine::{LaunchContext, ProcessSpec, PromptSource, UnsupportedOperation};

use crate::{
    argument::{self, is_uuid},
    launch_builder::LaunchBuilder,
};

pub(super) fn launch(context: &LaunchContext<'_>) -> Result<ProcessSpec, UnsupportedOperation> {
    let mut launch = LaunchBuilder::new(context);
    launch.args(&["agent", "run", "--json", "--again"]);
    match context.prompt_source {
        PromptSource::Message => launch.args(&["--message", "-"]),
        PromptSource::Reply => launch.args(&["--say", "-"]),
    }
    match context.mode {
        ExecutionMode::Auto => launch.args(&["--auto"]),
        ExecutionMode::Interactive => {}
        // In a chat, stateful tools keep running until the next message.
        ExecutionMode::Chat => launch.args(&["--keep-sessions"]),
    }
    // The agent isolates and restricts its tools itself, and checks whether this machine supports that.
    launch.sandbox_arg();
    launch.args(&["--isolation", context.isolation.name()]);
    launch.model_arg()?;
    match context.session {
        // Only a daemon that found no resume in the program's help gets here, and then there is no second turn.
        LaunchSession::New => {}
        LaunchSession::Named(handle) | LaunchSession::Resumed(handle) => {
            // The id becomes the name of a folder.
            let id = argument::session_id(handle, "session id", is_uuid)?;
            launch.args(&["--session", id]);
            launch.spec.surviving_keepers_dir = Some(format!("agents/{id}/sessions"));
        }
    }
    if let LaunchSession::Resumed(_) = context.session {
        launch.args(&["--resume"]);
    }
    launch.configured_args();
    Ok(launch.spec)
}
