//! The adapter for OpenCode (`opencode run`): one process per turn; a new process resumes the session. The held form is
//! `opencode acp`.
//!
//! The session id is printed with the first output of the model. If a turn is killed before that, its session is
//! unknown and the run starts a new one. A turn of `opencode run` cannot wait for a person: permission requests are
//! refused there, and put to a person in the held form.

mod launch;
mod messages;
mod permission;
mod reader;

use abide_domain::engine::{EngineResumeCapability, EngineSessionHandle, ProbeMethod, ProfileKind};
use abide_ports::engine::{
    AbilitySet, Engine, EngineAbility, EngineHealth, EngineInstallation, LaunchContext, ProbeCommand,
    ProbeResult, ProcessInterpreter, ProcessSpec, UnsupportedOperation,
};

use crate::{acp, failure::missing_program_failure, one_shot};

#[derive(Debug)]
pub(crate) struct OpenCodeEngine;

const NAME: &str = "opencode";

impl Engine for OpenCodeEngine {
    fn name(&self) -> &str {
        NAME
    }

    /// Not [`EngineAbility::Gates`]: only the held form has it, and a program that can resume is not held.
    fn abilities(&self) -> AbilitySet {
        AbilitySet::of(&[EngineAbility::Resume, EngineAbility::Hold, EngineAbility::Progress])
    }

    fn installation(&self) -> EngineInstallation {
        EngineInstallation::for_program("opencode").with_pass_env(&[
            "OPENCODE_*",
            "OPENAI_*",
            "ANTHROPIC_*",
            "GEMINI_*",
            "GOOGLE_*",
        ])
    }

    fn probe_commands(&self, installation: &EngineInstallation) -> Vec<ProbeCommand> {
        let call = |arguments: &[&str]| {
            let arguments = arguments.iter().map(|argument| (*argument).to_owned());
            let argv = installation.command.iter().cloned().chain(arguments);
            ProbeCommand { env: launch::environment(installation), ..ProbeCommand::to_exit(argv) }
        };
        vec![call(&["--version"]), call(&["run", "--help"])]
    }

    fn assess_health(&self, results: &[ProbeResult]) -> EngineHealth {
        let [version, help] = results else { return EngineHealth::unchecked() };
        let resumes = match help {
            // The program prints its help on either stream.
            ProbeResult::Ran { stdout, stderr, .. } => {
                stdout.contains("--session") || stderr.contains("--session")
            }
            ProbeResult::NotFound { .. } | ProbeResult::TimedOut | ProbeResult::Unavailable { .. } => false,
        };
        let detail = if resumes {
            "`opencode run` takes --session"
        } else {
            "`opencode run --help` shows no --session"
        };
        EngineHealth {
            version: version.version(),
            failure: missing_program_failure(NAME, version, "npm install -g opencode-ai"),
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
        match context.kind {
            ProfileKind::Resumable => one_shot::interpreter::<reader::OpenCodeReader>(context),
            // The launch has set the sandbox.
            ProfileKind::StickyProcess => acp::interpreter(&LaunchContext { sandbox: None, ..*context }),
        }
    }

    fn skills_folder(&self) -> &str {
        ".opencode/skills"
    }
}
