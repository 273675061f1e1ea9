//! The adapter for Gemini CLI (`gemini -o stream-json`): one process per turn, with a session id that we choose.
//!
//! A headless Gemini never asks: tools that require permission are not offered to its model. The held form uses the
//! Agent Client Protocol (`acp`). Gemini checks for updates only in its terminal interface, so updates need not be
//! disabled.

mod launch;
mod messages;
mod reader;
mod session;

use abide_domain::engine::{
    EngineResumeCapability, EngineSessionHandle, HandleType, ProbeMethod, ProfileKind,
};
use abide_ports::engine::{
    AbilitySet, Engine, EngineAbility, EngineHealth, EngineInstallation, LaunchContext, ProbeCommand,
    ProbeResult, ProcessInterpreter, ProcessSpec, UnsupportedOperation,
};

use crate::{acp, failure::missing_program_failure, one_shot};

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
        EngineInstallation::for_program("gemini").with_pass_env(&["GEMINI_*", "GOOGLE_*"])
    }

    fn probe_commands(&self, installation: &EngineInstallation) -> Vec<ProbeCommand> {
        let call = |argument: &str| {
            let argv = installation.command.iter().cloned().chain([argument.to_owned()]);
            // Without this environment the program restarts itself, even to print its version.
            ProbeCommand { env: launch::environment(installation), ..ProbeCommand::to_exit(argv) }
        };
        vec![call("--version"), call("--help")]
    }

    fn assess_health(&self, results: &[ProbeResult]) -> EngineHealth {
        let [version, help] = results else { return EngineHealth::unchecked() };
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
            abilities = abilities.without(EngineAbility::Resume);
        }
        if !help.contains("--acp") {
            abilities = abilities.without(EngineAbility::Hold);
        }
        if !names {
            abilities = abilities.without(EngineAbility::NamedSessions);
        }
        EngineHealth {
            version: version.version(),
            failure: missing_program_failure(NAME, version, "npm install -g @google/gemini-cli"),
            resume: EngineResumeCapability {
                supported: resumes,
                probe_method: ProbeMethod::Command,
                detail: detail.to_owned(),
            },
            abilities,
        }
    }

    fn new_session_handle(&self, uuid: &str) -> Option<EngineSessionHandle> {
        Some(EngineSessionHandle {
            engine: NAME.to_owned(),
            handle_type: HandleType::SessionId,
            handle_value: session::cleanup_safe_id(uuid),
            created_at_turn: 1,
        })
    }

    fn launch(&self, context: &LaunchContext<'_>) -> Result<ProcessSpec, UnsupportedOperation> {
        launch::launch(context)
    }

    fn interpreter(&self, context: &LaunchContext<'_>) -> Box<dyn ProcessInterpreter> {
        match context.kind {
            ProfileKind::Resumable => one_shot::interpreter::<reader::GeminiReader>(context),
            // The command line has set the model and the sandbox.
            ProfileKind::StickyProcess => {
                acp::interpreter(&LaunchContext { model: None, sandbox: None, ..*context })
            }
        }
    }

    fn skills_folder(&self) -> &str {
        ".gemini/skills"
    }
}
