//! The adapter for Gemini CLI (`gemini -o stream-json`): one process per turn, with a session id that we choose.
//!
//! A headless Gemini never asks: tools that require permission are not offered to its model. The held form uses the
//! Agent Client Protocol (`acp`). Gemini checks for updates only in its terminal interface, so updates need not be
//! disabled.

mod launch;
mod native;
mod reader;
mod session;

use abide_domain::engine::{
    EngineResumeCapability, EngineSessionHandle, HandleType, ProbeMethod, ProfileKind,
};
use abide_ports::engine::{
    AbilitySet, Engine, EngineAbility, EngineHealth, EngineInstallation, LaunchContext, ProbeCommand,
    ProbeResult, ProcessInterpreter, ProcessSpec, UnsupportedOperation,
};

use crate::{acp, failing::unusable, tongue::LineInterpreter};

#[derive(Debug)]
pub(crate) struct GeminiEngine;

const NAME: &str = "gemini";

impl Engine for GeminiEngine {
    fn name(&self) -> &str {
        NAME
    }

    fn abilities(&self) -> AbilitySet {
        // The held form has gates too. They are not claimed, because the preferred form has none.
        AbilitySet::of(&[
            EngineAbility::Resume,
            EngineAbility::Hold,
            EngineAbility::NamedSessions,
            EngineAbility::Progress,
        ])
    }

    fn installation(&self) -> EngineInstallation {
        EngineInstallation::named("gemini").passing(&["GEMINI_*", "GOOGLE_*"])
    }

    fn checks(&self, installation: &EngineInstallation) -> Vec<ProbeCommand> {
        let call = |argument: &str| {
            let argv = installation.command.iter().cloned().chain([argument.to_owned()]);
            // Without this environment the program restarts itself, even to print its version.
            ProbeCommand { env: launch::environment(installation), ..ProbeCommand::command(argv) }
        };
        vec![call("--version"), call("--help")]
    }

    fn judge(&self, observed: &[ProbeResult]) -> EngineHealth {
        let [version, help] = observed else { return EngineHealth::unseen() };
        let help = help.success().unwrap_or_default();
        let (resumes, names) = (help.contains("--resume"), help.contains("--session-id"));
        let detail = if resumes {
            "`gemini --resume` takes a session id. Gemini itself deletes sessions that were not used for 30 days; a \
             run that may wait longer needs general.sessionRetention.enabled = false in its settings"
        } else {
            "`gemini --help` shows no --resume"
        };
        let mut abilities = self.abilities();
        if !resumes {
            abilities = abilities.except(EngineAbility::Resume);
        }
        if !help.contains("--acp") {
            abilities = abilities.except(EngineAbility::Hold);
        }
        if !names {
            abilities = abilities.except(EngineAbility::NamedSessions);
        }
        EngineHealth {
            version: version.version(),
            trouble: unusable(NAME, version, "npm install -g @google/gemini-cli"),
            resume: EngineResumeCapability {
                supported: resumes,
                probe_method: ProbeMethod::Command,
                detail: detail.to_owned(),
            },
            abilities,
        }
    }

    fn name_session(&self, fresh: &str) -> Option<EngineSessionHandle> {
        Some(EngineSessionHandle {
            engine: NAME.to_owned(),
            handle_type: HandleType::SessionId,
            handle_value: session::spared(fresh),
            created_at_turn: 1,
        })
    }

    fn launch(&self, order: &LaunchContext<'_>) -> Result<ProcessSpec, UnsupportedOperation> {
        launch::launch(order)
    }

    fn interpreter(&self, order: &LaunchContext<'_>) -> Box<dyn ProcessInterpreter> {
        match order.kind {
            ProfileKind::Resumable => Box::new(LineInterpreter::new(reader::GeminiReader::new(order))),
            // The command line has set the model and the sandbox.
            ProfileKind::StickyProcess => {
                acp::interpreter(&LaunchContext { model: None, sandbox: None, ..*order })
            }
        }
    }

    fn skills_folder(&self) -> &str {
        ".gemini/skills"
    }
}
