//! The adapter for Qwen Code (`qwen -o stream-json`): one process per turn, with a session id that we choose.
//!
//! A headless Qwen Code never asks: tools that require permission are declined. The held form uses the Agent Client
//! Protocol (`acp`). The entry script starts the real program as a child, so the process group must be ended.

mod launch;
mod messages;
mod reader;

use abide_domain::engine::ProfileKind;
use abide_ports::engine::{EngineAbility, LaunchContext, ProcessInterpreter};

use crate::{
    acp,
    command_line::{CommandLineEngine, EngineTraits, HelpOutput, HelpProbe},
    one_shot,
};

/// The held form has gates too. They are not claimed, because the preferred form has none.
pub(crate) const ENGINE: CommandLineEngine = CommandLineEngine {
    name: "qwen",
    command: &["qwen"],
    pass_env: &["QWEN_*", "DASHSCOPE_*", "BAILIAN_*", "OPENAI_*"],
    abilities: &[
        EngineAbility::Resume,
        EngineAbility::Hold,
        EngineAbility::NamedSessions,
        EngineAbility::Progress,
    ],
    probe: HelpProbe {
        help_args: &["--help"],
        help_output: HelpOutput::Stdout,
        env: launch::environment,
        required_texts: &[
            (EngineAbility::Resume, "--resume"),
            (EngineAbility::Hold, "--acp"),
            (EngineAbility::NamedSessions, "--session-id"),
        ],
        resumable: "`qwen --resume` takes a session id",
        not_resumable: "`qwen --help` shows no --resume",
        install_command: "npm install -g @qwen-code/qwen-code",
    },
    new_session_id: Some(launch::accepted_id),
    launch: launch::launch,
    interpreter,
    skills_folder: ".qwen/skills",
    traits: EngineTraits::COMMON,
};

fn interpreter(context: &LaunchContext<'_>) -> Box<dyn ProcessInterpreter> {
    match context.kind {
        ProfileKind::Resumable => one_shot::interpreter::<reader::QwenReader>(context),
        // The command line has set the model and the sandbox.
        ProfileKind::StickyProcess => {
            acp::interpreter(&LaunchContext { model: None, sandbox: None, ..*context })
        }
    }
}
