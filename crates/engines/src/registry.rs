//! The list of all engines, the only place outside the adapters that names them.

use abide_ports::engine::{Engine, EngineInstallation};

use crate::{abide_agent, acp::AcpEngine, claude, codex, gemini, iflow, opencode, parrot, qwen};

/// The engines without configuration, in display order.
pub fn built_in() -> Vec<Box<dyn Engine>> {
    vec![
        Box::new(codex::ENGINE),
        Box::new(claude::ENGINE),
        Box::new(gemini::ENGINE),
        Box::new(qwen::ENGINE),
        Box::new(opencode::ENGINE),
        Box::new(iflow::ENGINE),
        Box::new(abide_agent::ENGINE),
        Box::new(parrot::RESUMABLE_ENGINE),
        Box::new(parrot::STICKY_ENGINE),
    ]
}

/// A configured agent of the Agent Client Protocol.
pub fn acp(name: &str, installation: EngineInstallation) -> Box<dyn Engine> {
    Box::new(AcpEngine::new(name, installation))
}
