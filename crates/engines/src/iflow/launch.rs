//! Starts iFlow.
//!
//! By default the program approves all calls, and no option is reliably known that would restrict a turn. A one-shot
//! turn is therefore refused unless the run has no sandbox setting or full access. In the held form the protocol lists
//! the modes, and the sandbox is set there.

use abide_domain::{effect::LaunchSession, engine::ProfileKind};
use abide_ports::engine::{LaunchContext, ProcessSpec, ProcessStdin, SandboxMode, UnsupportedOperation};

use crate::{acp, argument};

pub(super) fn launch(order: &LaunchContext<'_>) -> Result<ProcessSpec, UnsupportedOperation> {
    let mut argv = order.installation.command.clone();
    let mut add = |arguments: &[&str]| argv.extend(arguments.iter().map(|argument| (*argument).to_owned()));
    let stdin = match order.kind {
        ProfileKind::Resumable => {
            match order.sandbox {
                None => {}
                Some(SandboxMode::FullAccess) => add(&["--yolo"]),
                Some(SandboxMode::ReadOnly | SandboxMode::WorkspaceWrite) => {
                    return Err(UnsupportedOperation::Refused {
                        reason: "iflow cannot be confined; choose danger-full-access or another engine"
                            .to_owned(),
                    });
                }
            }
            if let Some(model) = argument::model(order)? {
                add(&["--model", model]);
            }
            ProcessStdin::Whole(order.prompt.as_bytes().to_vec())
        }
        ProfileKind::StickyProcess => {
            add(&["--experimental-acp"]);
            acp::launch::opening()
        }
    };
    let own: Vec<&str> = order.installation.args.iter().map(String::as_str).collect();
    add(&own);
    match (order.kind, order.session) {
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
        env: order.installation.env.clone().into_iter().collect(),
        without_env: vec![],
        appended_env: vec![],
        files: vec![],
        stdin,
        not_before: None,
        outliving: None,
    })
}
