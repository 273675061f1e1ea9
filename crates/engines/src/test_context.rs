//! Launch contexts and session handles for the tests of adapters.

use abide_domain::{
    effect::LaunchSession,
    engine::{EngineSessionHandle, HandleType, ProfileKind},
    settings::ExecutionMode,
};
use abide_ports::engine::{EngineInstallation, LaunchContext, PromptSource};

/// A launch of a resumable run that may ask, without a model and a sandbox. Tests replace the fields they are about.
pub(crate) fn launch_context<'a>(
    installation: &'a EngineInstallation,
    session: &'a LaunchSession,
) -> LaunchContext<'a> {
    LaunchContext {
        installation,
        kind: ProfileKind::Resumable,
        session,
        prompt: "hello",
        workspace: "/somewhere",
        private_dir: "/elsewhere",
        mode: ExecutionMode::Interactive,
        model: None,
        sandbox: None,
        isolation: Default::default(),
        skill: None,
        session_started_at: None,
        resume_detail: "",
        prompt_source: PromptSource::Message,
    }
}

pub(crate) fn session_handle(engine: &str, id: &str) -> EngineSessionHandle {
    EngineSessionHandle {
        engine: engine.to_owned(),
        handle_type: HandleType::SessionId,
        handle_value: id.to_owned(),
        created_at_turn: 1,
    }
}
