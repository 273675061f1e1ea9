//! Starts a parrot.
//!
//! Sandboxes are passed by their names. `read-only` makes `write` and `append` fail; the other two allow both, but only
//! below the workspace, so no sandbox is wider than requested. Without a setting, files may be written. The model is
//! passed and ignored.

use abide_domain::effect::LaunchSession;
use abide_ports::engine::{EngineAbility, LaunchContext, ProcessSpec, ProcessStdin, UnsupportedOperation};

use super::{ParrotForm, messages::ParrotCommand};
use crate::argument;

pub(super) fn launch(
    form: ParrotForm,
    context: &LaunchContext<'_>,
) -> Result<ProcessSpec, UnsupportedOperation> {
    let mut argv = context.installation.command.clone();
    let mut add = |arguments: &[&str]| argv.extend(arguments.iter().map(|argument| (*argument).to_owned()));
    if let Some(sandbox) = context.sandbox {
        add(&["--sandbox", sandbox.name()]);
    }
    if let Some(model) = argument::model(context)? {
        add(&["--model", model]);
    }
    let configured_args: Vec<&str> = context.installation.args.iter().map(String::as_str).collect();
    add(&configured_args);
    match (form, context.session) {
        (ParrotForm::Sticky, LaunchSession::Resumed(_)) => {
            return Err(UnsupportedOperation::MissingAbility { ability: EngineAbility::Resume });
        }
        (ParrotForm::Sticky, LaunchSession::New | LaunchSession::Named(_)) => add(&["--sticky"]),
        (ParrotForm::Resumable, LaunchSession::New) => {}
        (ParrotForm::Resumable, LaunchSession::Named(handle)) => {
            add(&["--session-id", check_session_id(&handle.handle_value)?])
        }
        (ParrotForm::Resumable, LaunchSession::Resumed(handle)) => {
            add(&["--resume", check_session_id(&handle.handle_value)?])
        }
    }
    Ok(ProcessSpec {
        argv,
        env: context.installation.env.clone().into_iter().collect(),
        removed_env: vec![],
        appended_env: vec![],
        files: vec![],
        stdin: ProcessStdin::KeptOpen(ParrotCommand::Prompt { text: context.prompt }.line()),
        not_before: None,
        surviving_keepers_dir: None,
    })
}

/// Checks a session id, which becomes a file name and must not look like an option.
fn check_session_id(id: &str) -> Result<&str, UnsupportedOperation> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if id.is_empty() || id.starts_with('-') || !id.bytes().all(allowed) {
        return Err(UnsupportedOperation::Refused { reason: format!("{id:?} is not a parrot's session id") });
    }
    Ok(id)
}
