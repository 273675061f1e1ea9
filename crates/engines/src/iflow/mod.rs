//! The adapter for iFlow CLI: one process per turn, which prints its answer as plain text and then an `<Execution
//! Info>` block.
//!
//! The program was withdrawn from its registry before this adapter was written. The adapter follows documentation and
//! reports, and is tested only with a stand-in: see [`AdapterBasis::Documented`]. The held form uses the Agent Client
//! Protocol (`acp`).

mod launch;
mod native;
mod reader;

use abide_domain::engine::{EngineResumeCapability, EngineSessionHandle, ProbeMethod, ProfileKind};
use abide_ports::engine::{
    AbilitySet, AdapterBasis, Engine, EngineAbility, EngineHealth, EngineInstallation, LaunchContext,
    OutputFormat, ProbeCommand, ProbeResult, ProcessInterpreter, ProcessSpec, UnsupportedOperation,
};

use crate::{acp, failing::unusable, tongue::LineInterpreter};

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

    fn speech(&self) -> OutputFormat {
        OutputFormat::Prose
    }

    fn evidence(&self) -> AdapterBasis {
        AdapterBasis::Documented
    }

    fn installation(&self) -> EngineInstallation {
        EngineInstallation::named("iflow").passing(&["IFLOW_*"])
    }

    fn checks(&self, installation: &EngineInstallation) -> Vec<ProbeCommand> {
        let call = |argument: &str| {
            let argv = installation.command.iter().cloned().chain([argument.to_owned()]);
            ProbeCommand {
                env: installation.env.clone().into_iter().collect(),
                ..ProbeCommand::command(argv)
            }
        };
        vec![call("--version"), call("--help")]
    }

    fn judge(&self, observed: &[ProbeResult]) -> EngineHealth {
        let [version, help] = observed else { return EngineHealth::unseen() };
        let resumes = help.success().is_some_and(|help| help.contains("--resume"));
        let detail =
            if resumes { "`iflow --help` shows --resume" } else { "`iflow --help` shows no --resume" };
        EngineHealth {
            version: version.version(),
            trouble: unusable(NAME, version, "npm install -g @iflow-ai/iflow-cli"),
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
            ProfileKind::Resumable => Box::new(LineInterpreter::new(reader::IFlowReader::new(order))),
            ProfileKind::StickyProcess => acp::interpreter(order),
        }
    }

    fn skills_folder(&self) -> &str {
        ".iflow/skills"
    }
}
