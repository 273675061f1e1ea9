//! The adapter for iFlow CLI: one process per turn, which prints its answer as plain text and then an `<Execution
//! Info>` block.
//!
//! The program was withdrawn from its registry before this adapter was written. The adapter follows documentation and
//! reports, and is tested only with a substitute program: see [`AdapterBasis::Documented`]. The held form uses the Agent Client
//! Protocol (`acp`).

mod launch;
mod messages;
mod reader;

use abide_domain::engine::ProfileKind;
use abide_ports::engine::{AdapterBasis, EngineAbility, LaunchContext, OutputFormat, ProcessInterpreter};

use crate::{
    acp,
    command_line::{CommandLineEngine, EngineTraits, HelpOutput, HelpProbe, installation_env},
    one_shot,
};

pub(crate) const ENGINE: CommandLineEngine = CommandLineEngine {
    name: "iflow",
    command: &["iflow"],
    pass_env: &["IFLOW_*"],
    abilities: &[EngineAbility::Resume, EngineAbility::Hold],
    probe: HelpProbe {
        help_args: &["--help"],
        help_output: HelpOutput::Stdout,
        env: installation_env,
        required_texts: &[(EngineAbility::Resume, "--resume")],
        resumable: "`iflow --help` shows --resume",
        not_resumable: "`iflow --help` shows no --resume",
        install_command: "npm install -g @iflow-ai/iflow-cli",
    },
    new_session_id: None,
    launch: launch::launch,
    interpreter,
    skills_folder: ".iflow/skills",
    traits: EngineTraits {
        output_format: OutputFormat::PlainText,
        adapter_basis: AdapterBasis::Documented,
        ..EngineTraits::COMMON
    },
};

fn interpreter(context: &LaunchContext<'_>) -> Box<dyn ProcessInterpreter> {
    match context.kind {
        ProfileKind::Resumable => one_shot::interpreter::<reader::IFlowReader>(context),
        ProfileKind::StickyProcess => acp::interpreter(context),
    }
}
