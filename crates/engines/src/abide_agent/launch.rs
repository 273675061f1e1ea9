//! Starts the native agent.
//!
//! The person's text is written to standard input and never part of the command line, which all users of the machine
//! can read. It may be a requested password. A message is never used as the answer to a question, even if an earlier
//! process crashed before it read the answer; the agent then asks again. A reply may answer a question of Abide itself.
//! Only the agent's journal shows whether the agent's own question is open, so the agent decides (`--say`). Each
//! message and reply counts as new, even with the same text (`--again`).

use abide_domain::{effect::LaunchSession, settings::ExecutionMode};
use abide_ports::engine::{LaunchContext, ProcessSpec, ProcessStdin, PromptSource, UnsupportedOperation};

use crate::{argument, ids::is_uuid};

pub(super) fn launch(context: &LaunchContext<'_>) -> Result<ProcessSpec, UnsupportedOperation> {
    let mut argv = context.installation.command.clone();
    let mut add = |arguments: &[&str]| argv.extend(arguments.iter().map(|argument| (*argument).to_owned()));
    add(&["agent", "run", "--json", "--again"]);
    match context.prompt_source {
        PromptSource::Message => add(&["--message", "-"]),
        PromptSource::Reply => add(&["--say", "-"]),
    }
    match context.mode {
        ExecutionMode::Auto => add(&["--auto"]),
        ExecutionMode::Interactive => {}
        // In a chat, stateful tools keep running until the next message.
        ExecutionMode::Chat => add(&["--keep-sessions"]),
    }
    // The agent isolates and restricts its tools itself, and checks whether this machine supports that.
    if let Some(sandbox) = context.sandbox {
        add(&["--sandbox", sandbox.name()]);
    }
    add(&["--isolation", context.isolation.name()]);
    if let Some(model) = argument::model(context)? {
        add(&["--model", model]);
    }
    let outliving = match context.session {
        // Only a daemon that found no resume in the program's help gets here, and then there is no second turn.
        LaunchSession::New => None,
        LaunchSession::Named(handle) | LaunchSession::Resumed(handle) => {
            let id = handle.handle_value.as_str();
            if !is_uuid(id) {
                // The id becomes the name of a folder.
                return Err(UnsupportedOperation::Refused { reason: format!("{id:?} is not a session id") });
            }
            add(&["--session", id]);
            Some(format!("agents/{id}/sessions"))
        }
    };
    if let LaunchSession::Resumed(_) = context.session {
        add(&["--resume"]);
    }
    let configured_args: Vec<&str> = context.installation.args.iter().map(String::as_str).collect();
    add(&configured_args);
    Ok(ProcessSpec {
        argv,
        env: context.installation.env.clone().into_iter().collect(),
        removed_env: vec![],
        appended_env: vec![],
        files: vec![],
        stdin: ProcessStdin::Complete(context.prompt.as_bytes().to_vec()),
        not_before: None,
        surviving_keepers_dir: outliving,
    })
}
