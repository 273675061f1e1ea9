//! Starts iFlow.
//!
//! By default the program approves all calls, and no option is reliably known that would restrict a turn. A one-shot
//! turn is therefore refused unless the run has no sandbox setting or full access. In the held form the protocol lists
//! the modes, and the sandbox is set there.

use abide_domain::{effect::LaunchSession, engine::ProfileKind};
use abide_ports::engine::{LaunchContext, ProcessSpec, ProcessStdin, SandboxMode, UnsupportedOperation};

use crate::{acp, argument};

pub(super) fn launch(context: &LaunchContext<'_>) -> Result<ProcessSpec, UnsupportedOperation> {
    let mut argv = context.installation.command.clone();
    let mut add = |arguments: &[&str]| argv.extend(arguments.iter().map(|argument| (*argument).to_owned()));
    let stdin = match context.kind {
        ProfileKind::Resumable => {
            match context.sandbox {
                None => {}
                Some(SandboxMode::FullAccess) => add(&["--yolo"]),
                Some(SandboxMode::ReadOnly | SandboxMode::WorkspaceWrite) => {
                    return Err(UnsupportedOperation::Refused {
                        reason: "iflow cannot be confined; choose danger-full-access or another engine"
                            .to_owned(),
                    });
                }
            }
            if let Some(model) = argument::model(context)? {
                add(&["--model", model]);
            }
            ProcessStdin::Complete(context.prompt.as_bytes().to_vec())
        }
        ProfileKind::StickyProcess => {
            add(&["--experimental-acp"]);
            acp::launch::initialize_stdin()
        }
    };
    let configured_args: Vec<&str> = context.installation.args.iter().map(String::as_str).collect();
    add(&configured_args);
    match (context.kind, context.session) {
        (ProfileKind::StickyProcess, _)
        | (ProfileKind::Resumable, LaunchSession::New | LaunchSession::Named(_)) => {}
        (ProfileKind::Resumable, LaunchSession::Resumed(handle)) => {
            let id = handle.handle_value.as_str();
            if !id.starts_with(|first: char| first.is_ascii_alphanumeric()) {
                return Err(UnsupportedOperation::Refused { reason: format!("{id:?} is not a session id") });
            }
            add(&["--resume", id]);
        }
    }
    Ok(ProcessSpec {
        argv,
        env: context.installation.env.clone().into_iter().collect(),
        removed_env: vec![],
        appended_env: vec![],
        files: vec![],
        stdin,
        not_before: None,
        surviving_keepers_dir: None,
    })
}
