//! The adapter for Codex (`codex exec`): one process per turn, which cannot wait for a person; a new process resumes
//! the thread.
//!
//! The app-server, in which approvals and questions arrive inside the turn, would be a separate adapter.

mod launch;
mod messages;
mod reader;

use abide_domain::engine::{EngineResumeCapability, EngineSessionHandle, ProbeMethod};
use abide_ports::engine::{
    AbilitySet, Engine, EngineAbility, EngineHealth, EngineInstallation, LaunchContext, ProbeCommand,
    ProbeResult, ProcessInterpreter, ProcessSpec, UnsupportedOperation,
};

use crate::{failure::missing_program_failure, one_shot};

#[derive(Debug)]
pub(crate) struct CodexEngine;

const NAME: &str = "codex";

impl Engine for CodexEngine {
    fn name(&self) -> &str {
        NAME
    }

    fn abilities(&self) -> AbilitySet {
        AbilitySet::of(&[EngineAbility::Resume, EngineAbility::Progress])
    }

    fn installation(&self) -> EngineInstallation {
        EngineInstallation::for_program("codex").with_pass_env(&["OPENAI_*", "CODEX_*", "AZURE_OPENAI_*"])
    }

    fn probe_commands(&self, installation: &EngineInstallation) -> Vec<ProbeCommand> {
        let call = |arguments: &[&str]| {
            let arguments = arguments.iter().map(|argument| (*argument).to_owned());
            ProbeCommand::to_exit(installation.command.iter().cloned().chain(arguments))
        };
        vec![call(&["--version"]), call(&["exec", "resume", "--help"])]
    }

    fn assess_health(&self, results: &[ProbeResult]) -> EngineHealth {
        let [version, help] = results else { return EngineHealth::unchecked() };
        let resumes = help.success().is_some_and(|help| help.contains("SESSION_ID"));
        let detail = if resumes {
            "`codex exec resume` takes a session id"
        } else {
            "`codex exec resume --help` shows no session id"
        };
        EngineHealth {
            version: version.version(),
            failure: missing_program_failure(NAME, version, "npm install -g @openai/codex"),
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

    fn new_session_handle(&self, _uuid: &str) -> Option<EngineSessionHandle> {
        None
    }

    fn launch(&self, context: &LaunchContext<'_>) -> Result<ProcessSpec, UnsupportedOperation> {
        launch::launch(context)
    }

    fn interpreter(&self, context: &LaunchContext<'_>) -> Box<dyn ProcessInterpreter> {
        one_shot::interpreter::<reader::CodexReader>(context)
    }

    fn skills_folder(&self) -> &str {
        ".agents/skills"
    }
}
