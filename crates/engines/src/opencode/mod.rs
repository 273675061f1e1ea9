//! OpenCode by `opencode run`: one process for each turn; a new process resumes the session. Held by `opencode acp`.
//!
//! Its session has no name before the model has said its first word: a turn that is killed earlier leaves a session
//! that nobody knows, and the run starts afresh. A turn of `opencode run` cannot wait for a person; what the program
//! would ask is refused there, and asked in the held form.

mod launch;
mod native;
mod permission;
mod reader;

use abide_domain::engine::{EngineResumeCapability, EngineSessionHandle, ProbeMethod, ProfileKind};
use abide_ports::engine::{
    AbilitySet, Engine, EngineAbility, EngineHealth, EngineInstallation, LaunchContext, ProbeCommand,
    ProbeResult, ProcessInterpreter, ProcessSpec, UnsupportedOperation,
};

use crate::{acp, failing::unusable, tongue::LineInterpreter};

/// The adapter.
#[derive(Debug)]
pub(crate) struct OpenCodeEngine;

/// Its name.
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
        EngineInstallation::named("opencode").passing(&[
            "OPENCODE_*",
            "OPENAI_*",
            "ANTHROPIC_*",
            "GEMINI_*",
            "GOOGLE_*",
        ])
    }

    fn checks(&self, installation: &EngineInstallation) -> Vec<ProbeCommand> {
        let call = |arguments: &[&str]| {
            let arguments = arguments.iter().map(|argument| (*argument).to_owned());
            let argv = installation.command.iter().cloned().chain(arguments);
            ProbeCommand { env: launch::environment(installation), ..ProbeCommand::command(argv) }
        };
        vec![call(&["--version"]), call(&["run", "--help"])]
    }

    fn judge(&self, observed: &[ProbeResult]) -> EngineHealth {
        let [version, help] = observed else { return EngineHealth::unseen() };
        let resumes = match help {
            // It prints its help on one stream or the other, depending on who asks.
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
            trouble: unusable(NAME, version, "npm install -g opencode-ai"),
            resume: EngineResumeCapability {
                supported: resumes,
                probe_method: ProbeMethod::Command,
                detail: detail.to_owned(),
            },
            abilities: if resumes {
                self.abilities()
            } else {
                self.abilities().except(EngineAbility::Resume)
            },
        }
    }

    fn name_session(&self, _fresh: &str) -> Option<EngineSessionHandle> {
        None
    }

    fn launch(&self, order: &LaunchContext<'_>) -> Result<ProcessSpec, UnsupportedOperation> {
        launch::launch(order)
    }

    fn interpreter(&self, order: &LaunchContext<'_>) -> Box<dyn ProcessInterpreter> {
        match order.kind {
            ProfileKind::Resumable => Box::new(LineInterpreter::new(reader::OpenCodeReader::new(order))),
            // The sandbox is settled by the launch.
            ProfileKind::StickyProcess => acp::interpreter(&LaunchContext { sandbox: None, ..*order }),
        }
    }

    fn skills_folder(&self) -> &str {
        ".opencode/skills"
    }
}
