//! The adapter for Qwen Code (`qwen -o stream-json`): one process per turn, with a session id that we choose.
//!
//! A headless Qwen Code never asks: tools that require permission are declined. The held form uses the Agent Client
//! Protocol (`acp`). The entry script starts the real program as a child, so the process group must be ended.

mod launch;
mod messages;
mod reader;

use abide_domain::engine::{
    EngineResumeCapability, EngineSessionHandle, HandleType, ProbeMethod, ProfileKind,
};
use abide_ports::engine::{
    AbilitySet, Engine, EngineAbility, EngineHealth, EngineInstallation, LaunchContext, ProbeCommand,
    ProbeResult, ProcessInterpreter, ProcessSpec, UnsupportedOperation,
};

use crate::{acp, failure::missing_program_failure, one_shot};

#[derive(Debug)]
pub(crate) struct QwenEngine;

const NAME: &str = "qwen";

impl Engine for QwenEngine {
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
        EngineInstallation::for_program("qwen").with_pass_env(&[
            "QWEN_*",
            "DASHSCOPE_*",
            "BAILIAN_*",
            "OPENAI_*",
        ])
    }

    fn probe_commands(&self, installation: &EngineInstallation) -> Vec<ProbeCommand> {
        let call = |argument: &str| {
            let argv = installation.command.iter().cloned().chain([argument.to_owned()]);
            ProbeCommand { env: launch::environment(installation), ..ProbeCommand::to_exit(argv) }
        };
        vec![call("--version"), call("--help")]
    }

    fn assess_health(&self, results: &[ProbeResult]) -> EngineHealth {
        let [version, help] = results else { return EngineHealth::unchecked() };
        let help = help.success().unwrap_or_default();
        let (resumes, names) = (help.contains("--resume"), help.contains("--session-id"));
        let detail =
            if resumes { "`qwen --resume` takes a session id" } else { "`qwen --help` shows no --resume" };
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
            failure: missing_program_failure(NAME, version, "npm install -g @qwen-code/qwen-code"),
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
            handle_value: launch::accepted_id(uuid),
            created_at_turn: 1,
        })
    }

    fn launch(&self, context: &LaunchContext<'_>) -> Result<ProcessSpec, UnsupportedOperation> {
        launch::launch(context)
    }

    fn interpreter(&self, context: &LaunchContext<'_>) -> Box<dyn ProcessInterpreter> {
        match context.kind {
            ProfileKind::Resumable => one_shot::interpreter::<reader::QwenReader>(context),
            // The command line has set the model and the sandbox.
            ProfileKind::StickyProcess => {
                acp::interpreter(&LaunchContext { model: None, sandbox: None, ..*context })
            }
        }
    }

    fn skills_folder(&self) -> &str {
        ".qwen/skills"
    }
}
