//! The adapter for the native agent, `abide agent run`, which is part of this product and a child process like other
//! engines (B10).
//!
//! There is one process per turn. A session is a folder of the workspace, `.abide/native/<id>`, with an id that we
//! choose. Several runs can therefore share a workspace, and the handle is durable before the first process starts. A
//! question ends the process; its stateful tools keep running for the next one. The agent is never held.
//!
//! `--agent DIR` in the engine's configured arguments selects the agent. Without it, the workspace itself must contain
//! the definition. The agent itself is not isolated; it starts each tool with the sandbox and the isolation of the run.

mod journal;
mod launch;
mod reader;

use abide_domain::engine::{EngineResumeCapability, EngineSessionHandle, HandleType, ProbeMethod};
use abide_ports::engine::{
    AbilitySet, Engine, EngineAbility, EngineHealth, EngineInstallation, IsolationScope, LaunchContext,
    ProbeCommand, ProbeResult, ProcessInterpreter, ProcessSpec, QuestionStyle, UnsupportedOperation,
};

use crate::{failing::missing_program_failure, tongue::LineInterpreter};

#[derive(Debug)]
pub(crate) struct AbideAgentEngine;

const NAME: &str = "native";

impl Engine for AbideAgentEngine {
    fn name(&self) -> &str {
        NAME
    }

    fn abilities(&self) -> AbilitySet {
        AbilitySet::of(&[EngineAbility::Resume, EngineAbility::NamedSessions, EngineAbility::Progress])
    }

    fn question_style(&self) -> QuestionStyle {
        QuestionStyle::OwnMechanism
    }

    fn installation(&self) -> EngineInstallation {
        // The path of the running program is not known here. The composition root replaces `abide` by it.
        EngineInstallation::for_program("abide").with_pass_env(&[
            "ABIDE_HOME",
            "ABIDE_MODEL*",
            "OPENAI_API_KEY",
        ])
    }

    fn isolation_scope(&self) -> IsolationScope {
        IsolationScope::Tools
    }

    fn probe_commands(&self, installation: &EngineInstallation) -> Vec<ProbeCommand> {
        let call = |arguments: &[&str]| {
            let arguments = arguments.iter().map(|argument| (*argument).to_owned());
            ProbeCommand::to_exit(installation.command.iter().cloned().chain(arguments))
        };
        vec![call(&["--version"]), call(&["agent", "run", "--help"])]
    }

    fn assess_health(&self, results: &[ProbeResult]) -> EngineHealth {
        let [version, help] = results else { return EngineHealth::unchecked() };
        let resumes = help.success().is_some_and(|help| help.contains("--resume"));
        let detail = if resumes {
            "`abide agent run --resume` continues a session"
        } else {
            "`abide agent run --help` shows no --resume"
        };
        EngineHealth {
            version: version.version(),
            failure: missing_program_failure(NAME, version, "cargo install abide"),
            resume: EngineResumeCapability {
                supported: resumes,
                probe_method: ProbeMethod::Command,
                detail: detail.to_owned(),
            },
            abilities: if resumes {
                self.abilities()
            } else {
                self.abilities().without(EngineAbility::Resume)
            },
        }
    }

    fn new_session_handle(&self, uuid: &str) -> Option<EngineSessionHandle> {
        Some(EngineSessionHandle {
            engine: NAME.to_owned(),
            handle_type: HandleType::SessionId,
            handle_value: uuid.to_owned(),
            created_at_turn: 1,
        })
    }

    fn launch(&self, context: &LaunchContext<'_>) -> Result<ProcessSpec, UnsupportedOperation> {
        launch::launch(context)
    }

    fn interpreter(&self, context: &LaunchContext<'_>) -> Box<dyn ProcessInterpreter> {
        Box::new(LineInterpreter::new(reader::AbideAgentReader::new(context)))
    }

    fn skills_folder(&self) -> &str {
        ".agents/skills"
    }
}
