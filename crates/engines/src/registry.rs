//! The list of all engines, the only place outside the adapters that names them.

use abide_ports::engine::{Engine, EngineInstallation};

use crate::{
    abide_agent::AbideAgentEngine,
    acp::AcpEngine,
    claude::ClaudeEngine,
    codex::CodexEngine,
    gemini::GeminiEngine,
    iflow::IFlowEngine,
    opencode::OpenCodeEngine,
    parrot::{ParrotEngine, ParrotForm},
    qwen::QwenEngine,
};

/// The engines without configuration, in display order.
pub fn built_in() -> Vec<Box<dyn Engine>> {
    vec![
        Box::new(CodexEngine),
        Box::new(ClaudeEngine),
        Box::new(GeminiEngine),
        Box::new(QwenEngine),
        Box::new(OpenCodeEngine),
        Box::new(IFlowEngine),
        Box::new(AbideAgentEngine),
        Box::new(ParrotEngine(ParrotForm::Resumable)),
        Box::new(ParrotEngine(ParrotForm::Sticky)),
    ]
}

/// A configured agent of the Agent Client Protocol.
pub fn acp(name: &str, installation: EngineInstallation) -> Box<dyn Engine> {
    Box::new(AcpEngine::new(name, installation))
}
