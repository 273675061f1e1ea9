//! Starts a parrot.
//!
//! Sandboxes are passed by their names. `read-only` makes `write` and `append` fail; the other two allow both, but only
//! below the workspace, so no sandbox is wider than requested. Without a setting, files may be written. The model is
//! passed and ignored.

use abide_domain::effect::LaunchSession;
use abide_ports::engine::{EngineAbility, LaunchContext, ProcessSpec, ProcessStdin, UnsupportedOperation};

use super::{ParrotForm, messages::ParrotCommand};
use crate::launch_builder::LaunchBuilder;

pub(super) fn launch(
    form: ParrotForm,
    context: &LaunchContext<'_>,
) -> Result<ProcessSpec, UnsupportedOperation> {
    let mut launch = LaunchBuilder::new(context);
    launch.spec.stdin = ProcessStdin::KeptOpen(ParrotCommand::Prompt { text: context.prompt }.line());
    launch.sandbox_arg();
    launch.model_arg()?;
    launch.configured_args();
    match (form, context.session) {
        (ParrotForm::Sticky, LaunchSession::Resumed(_)) => {
            return Err(UnsupportedOperation::MissingAbility { ability: EngineAbility::Resume });
        }
        (ParrotForm::Sticky, LaunchSession::New | LaunchSession::Named(_)) => launch.args(&["--sticky"]),
        (ParrotForm::Resumable, LaunchSession::New | LaunchSession::Named(_) | LaunchSession::Resumed(_)) => {
            launch.session_args(is_session_id)?;
        }
    }
    Ok(launch.spec)
}

/// Session ids become file names and must not look like options.
fn is_session_id(id: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    !id.is_empty() && !id.starts_with('-') && id.bytes().all(allowed)
}
