//! The adapter for iFlow CLI: one process per turn, which prints its answer as plain text and then an `<Execution
//! Info>` block.
//!
//! The program was withdrawn from its registry before this adapter was written. The adapter follows documentation and
//! reports, and is tested only with a stand-in: see [`AdapterBasis::Documented`]. The held form uses the Agent Client
//! Protocol (`acp`).

mod launch;
mod messages;
mod reader;

use abide_domain::engine::{EngineResumeCapability, EngineSessionHandle, ProbeMethod, ProfileKind};
use abide_ports::engine::{
    AbilitySet, AdapterBasis, Engine, EngineAbility, EngineHealth, EngineInstallation, LaunchContext,
    OutputFormat, ProbeCommand, ProbeResult, ProcessInterpreter, ProcessSpec, UnsupportedOperation,
};

use crate::{acp, failure::missing_program_failure, one_shot};

#[derive(Debug)]
pub(crate) struct IFlowEngine;

const NAME: &str = "iflow";

impl Engine for IFlowEngine {
    fn name(&self) -> &str {
        NAME
    }

    fn abilities(&self) -> AbilitySet {
        AbilitySet::of(&[EngineAbility::Resume, EngineAbility::Hold])
    }

    fn output_format(&self) -> OutputFormat {
        OutputFormat::PlainText
    }

    fn adapter_basis(&self) -> AdapterBasis {
        AdapterBasis::Documented
    }

    fn installation(&self) -> EngineInstallation {
        EngineInstallation::for_program("iflow").with_pass_env(&["IFLOW_*"])
    }

    fn probe_commands(&self, installation: &EngineInstallation) -> Vec<ProbeCommand> {
        let call = |argument: &str| {
            let argv = installation.command.iter().cloned().chain([argument.to_owned()]);
            ProbeCommand {
                env: installation.env.clone().into_iter().collect(),
                ..ProbeCommand::to_exit(argv)
            }
        };
        vec![call("--version"), call("--help")]
    }

    fn assess_health(&self, results: &[ProbeResult]) -> EngineHealth {
        let [version, help] = results else { return EngineHealth::unchecked() };
        let resumes = help.success().is_some_and(|help| help.contains("--resume"));
        let detail =
            if resumes { "`iflow --help` shows --resume" } else { "`iflow --help` shows no --resume" };
        EngineHealth {
            version: version.version(),
            failure: missing_program_failure(NAME, version, "npm install -g @iflow-ai/iflow-cli"),
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
            ProfileKind::Resumable => one_shot::interpreter::<reader::IFlowReader>(context),
            ProfileKind::StickyProcess => acp::interpreter(context),
        }
    }

    fn skills_folder(&self) -> &str {
        ".iflow/skills"
    }
}
