//! Starts Codex.
//!
//! `resume` accepts fewer options than `exec`, but the others are accepted before the subcommand. Both forms therefore
//! have the same options in the same position, and turn 2 has exactly the sandbox of turn 1 (A4). The prompt is written
//! to standard input, because it may be long or begin with a dash. The input is closed, because the program would
//! otherwise wait forever.

use abide_domain::effect::LaunchSession;
use abide_ports::engine::{LaunchContext, ProcessSpec, ProcessStdin, UnsupportedOperation};

use crate::{argument, ids::is_uuid};

pub(super) fn launch(order: &LaunchContext<'_>) -> Result<ProcessSpec, UnsupportedOperation> {
    let mut argv = order.installation.command.clone();
    let mut add = |arguments: &[&str]| argv.extend(arguments.iter().map(|argument| (*argument).to_owned()));
    add(&["exec", "--json", "--skip-git-repo-check", "--color", "never"]);
    if let Some(sandbox) = order.sandbox {
        add(&["--sandbox", sandbox.name()]);
    }
    if let Some(model) = argument::model(order)? {
        add(&["--model", model]);
    }
    let own: Vec<&str> = order.installation.args.iter().map(String::as_str).collect();
    add(&own);
    match order.session {
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
        env: order.installation.env.clone().into_iter().collect(),
        without_env: vec![],
        appended_env: vec![],
        files: vec![],
        stdin: ProcessStdin::Whole(order.prompt.as_bytes().to_vec()),
        not_before: None,
        outliving: None,
    })
}
