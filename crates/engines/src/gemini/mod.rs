//! The adapter for Gemini CLI (`gemini -o stream-json`): one process per turn, with a session id that we choose.
//!
//! A headless Gemini never asks: tools that require permission are not offered to its model. The held form uses the
//! Agent Client Protocol (`acp`). Gemini checks for updates only in its terminal interface, so updates need not be
//! disabled.

mod launch;
mod messages;
mod reader;
mod session;

use abide_domain::engine::ProfileKind;
use abide_ports::engine::{EngineAbility, LaunchContext, ProcessInterpreter};

use crate::{
    acp,
    command_line::{CommandLineEngine, EngineTraits, HelpOutput, HelpProbe},
    one_shot,
};

/// The held form has gates too. They are not claimed, because the preferred form has none.
pub(crate) const ENGINE: CommandLineEngine = CommandLineEngine {
    name: "gemini",
    command: &["gemini"],
    pass_env: &["GEMINI_*", "GOOGLE_*"],
    abilities: &[
        EngineAbility::Resume,
        EngineAbility::Hold,
        EngineAbility::NamedSessions,
        EngineAbility::Progress,
    ],
    probe: HelpProbe {
        help_args: &["--help"],
        help_output: HelpOutput::Stdout,
        // Without this environment the program restarts itself, even to print its version.
        env: launch::environment,
        required_texts: &[
            (EngineAbility::Resume, "--resume"),
            (EngineAbility::Hold, "--acp"),
            (EngineAbility::NamedSessions, "--session-id"),
        ],
        resumable: "`gemini --resume` takes a session id. Gemini itself deletes sessions that were not used for \
                    30 days; a run that may wait longer needs general.sessionRetention.enabled = false in its \
                    settings",
        not_resumable: "`gemini --help` shows no --resume",
        install_command: "npm install -g @google/gemini-cli",
    },
    new_session_id: Some(session::cleanup_safe_id),
    launch: launch::launch,
    interpreter,
    skills_folder: ".gemini/skills",
    traits: EngineTraits::COMMON,
};

fn interpreter(context: &LaunchContext<'_>) -> Box<dyn ProcessInterpreter> {
    match context.kind {
        ProfileKind::Resumable => one_shot::interpreter::<reader::GeminiReader>(context),
        // The command line has set the model and the sandbox.
        ProfileKind::StickyProcess => {
            acp::interpreter(&LaunchContext { model: None, sandbox: None, ..*context })
        }
    }
}
