//! How the native agent is started.
//!
//! What the person says goes in by standard input and never stands in the command, where everybody on the machine could
//! read it: it may be the password that was asked for. A message is never taken for the answer to a question, not even if
//! an earlier process died before it had heard the answer: then the agent asks again. A reply may be one to Abide's own
//! question; whether the agent's is open is known to its journal, so it decides (`--say`). Either is a new one each time,
//! even if the words are the same (`--again`).

use abide_domain::{effect::LaunchSession, settings::ExecutionMode};
use abide_ports::engine::{LaunchContext, ProcessSpec, ProcessStdin, PromptSource, UnsupportedOperation};

use crate::{argument, ids::is_uuid};

pub(super) fn launch(order: &LaunchContext<'_>) -> Result<ProcessSpec, UnsupportedOperation> {
    let mut argv = order.installation.command.clone();
    let mut add = |arguments: &[&str]| argv.extend(arguments.iter().map(|argument| (*argument).to_owned()));
    add(&["agent", "run", "--json", "--again"]);
    match order.prompted {
        PromptSource::ByMessage => add(&["--message", "-"]),
        PromptSource::ByReply => add(&["--say", "-"]),
    }
    match order.mode {
        ExecutionMode::Auto => add(&["--auto"]),
        ExecutionMode::Interactive => {}
        // What a chat's tools hold is still there when the next message comes.
        ExecutionMode::Chat => add(&["--keep-sessions"]),
    }
    // It isolates and restricts its tools itself; whether this machine lets it is found out there.
    if let Some(sandbox) = order.sandbox {
        add(&["--sandbox", sandbox.name()]);
    }
    add(&["--isolation", order.isolation.name()]);
    if let Some(model) = argument::model(order)? {
        add(&["--model", model]);
    }
    let outliving = match order.session {
        // Only a daemon that found no resume in the program's help comes here, and then there is no second turn.
        LaunchSession::New => None,
        LaunchSession::Named(handle) | LaunchSession::Resumed(handle) => {
            let id = handle.handle_value.as_str();
            if !is_uuid(id) {
                // It is the name of a folder.
                return Err(UnsupportedOperation::Refused { reason: format!("{id:?} is not a session id") });
            }
            add(&["--session", id]);
            Some(format!("agents/{id}/sessions"))
        }
    };
    if let LaunchSession::Resumed(_) = order.session {
        add(&["--resume"]);
    }
    let own: Vec<&str> = order.installation.args.iter().map(String::as_str).collect();
    add(&own);
    Ok(ProcessSpec {
        argv,
        env: order.installation.env.clone().into_iter().collect(),
        without_env: vec![],
        appended_env: vec![],
        files: vec![],
        stdin: ProcessStdin::Whole(order.prompt.as_bytes().to_vec()),
        not_before: None,
        outliving,
    })
}
