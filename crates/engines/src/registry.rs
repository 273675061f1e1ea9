//! All engines. The one place besides the adapters that names them.

use abide_ports::engine::{Engine, EngineInstallation};

use crate::{
    acp::Acp,
    claude::Claude,
    codex::Codex,
    gemini::Gemini,
    iflow::IFlow,
    native::Native,
    opencode::OpenCode,
    parrot::{Form, Parrot},
    qwen::Qwen,
};

/// The engines that need no configuration, in the order in which they are shown.
pub fn built_in() -> Vec<Box<dyn Engine>> {
    vec![
        Box::new(Codex),
        Box::new(Claude),
        Box::new(Gemini),
        Box::new(Qwen),
        Box::new(OpenCode),
        Box::new(IFlow),
        Box::new(Native),
        Box::new(Parrot(Form::Resumable)),
        Box::new(Parrot(Form::Sticky)),
    ]
}

/// An agent of the Agent Client Protocol that the owner has named, and how its program is called.
pub fn acp(name: &str, installation: EngineInstallation) -> Box<dyn Engine> {
    Box::new(Acp::new(name, installation))
}
