//! Starts Codex.
//!
//! `resume` accepts fewer options than `exec`, but the others are accepted before the subcommand. Both forms therefore
//! have the same options in the same position, and turn 2 has exactly the sandbox of turn 1 (A4). The prompt is written
//! to standard input, because it may be long or begin with a dash. The input is closed, because the program would
//! otherwise wait forever.

use abide_domain::effect::LaunchSession;
use abide_ports::engine::{LaunchContext, ProcessSpec, ProcessStdin, UnsupportedOperation};

use crate::{argument, ids::is_uuid};

pub(super) fn launch(context: &LaunchContext<'_>) -> Result<ProcessSpec, UnsupportedOperation> {
    let mut argv = context.installation.command.clone();
    let mut add = |arguments: &[&str]| argv.extend(arguments.iter().map(|argument| (*argument).to_owned()));
    add(&["exec", "--json", "--skip-git-repo-check", "--color", "never"]);
    if let Some(sandbox) = context.sandbox {
        add(&["--sandbox", sandbox.name()]);
    }
    if let Some(model) = argument::model(context)? {
        add(&["--model", model]);
    }
    let configured_args: Vec<&str> = context.installation.args.iter().map(String::as_str).collect();
    add(&configured_args);
    match context.session {
        LaunchSession::New | LaunchSession::Named(_) => {}
        LaunchSession::Resumed(handle) => {
            let id = handle.handle_value.as_str();
            if !is_uuid(id) {
                // Other ids are taken for a thread's name, and an unknown name silently starts a new thread.
                return Err(UnsupportedOperation::Refused { reason: format!("{id:?} is not a thread id") });
            }
            add(&["resume", id]);
        }
    }
    add(&["-"]);
    Ok(ProcessSpec {
        argv,
        env: context.installation.env.clone().into_iter().collect(),
        removed_env: vec![],
        appended_env: vec![],
        files: vec![],
        stdin: ProcessStdin::Complete(context.prompt.as_bytes().to_vec()),
        not_before: None,
        surviving_keepers_dir: None,
    })
}
