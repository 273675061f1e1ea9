//! The adapter for Claude Code (`claude -p`), in two forms.
//!
//! A run that never asks and can be resumed uses the print form: one process takes the prompt, executes one turn and
//! exits. Other runs use the stream form, in which permission requests and questions arrive inside the turn and wait,
//! and in which one process executes several turns. Claude through the Agent Client Protocol is a separate adapter.
//!
//! Steering is not claimed. A message during a turn either joins the turn or starts another one, depending on its time,
//! so the number of turns that will end is unknown.

mod gates;
mod launch;
mod messages;
mod outcome;
mod progress;
mod reader;

use abide_domain::{engine::ProfileKind, settings::ExecutionMode};
use abide_ports::engine::{EngineAbility, LaunchContext, ProcessInterpreter};

use crate::{
    command_line::{CommandLineEngine, EngineTraits, HelpOutput, HelpProbe},
    line_protocol::LineInterpreter,
};

pub(crate) const ENGINE: CommandLineEngine = CommandLineEngine {
    name: "claude",
    command: &["claude"],
    pass_env: &["ANTHROPIC_*", "CLAUDE_*"],
    abilities: &[
        EngineAbility::Resume,
        EngineAbility::Hold,
        EngineAbility::NamedSessions,
        EngineAbility::Progress,
        EngineAbility::Gates,
    ],
    probe: HelpProbe {
        help_args: &["--help"],
        help_output: HelpOutput::Stdout,
        env: launch::environment_without_updates,
        required_texts: &[
            (EngineAbility::Resume, "--resume"),
            (EngineAbility::NamedSessions, "--session-id"),
            (EngineAbility::Hold, "--input-format"),
            (EngineAbility::Gates, "--input-format"),
        ],
        resumable: "`claude --resume` takes a session id",
        not_resumable: "`claude --help` shows no `--resume`",
        install_command: "npm install -g @anthropic-ai/claude-code",
    },
    new_session_id: Some(str::to_owned),
    launch: launch::launch,
    interpreter,
    skills_folder: ".claude/skills",
    traits: EngineTraits::COMMON,
};

fn interpreter(context: &LaunchContext<'_>) -> Box<dyn ProcessInterpreter> {
    Box::new(LineInterpreter::new(reader::ClaudeReader::new(context)))
}

/// The form of the conversation with the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
enum ClaudeForm {
    /// One prompt on standard input and one turn, without questions to a person.
    Print,
    /// Lines in both directions, for all turns of the process.
    Stream {
        /// Whether questions to a person are allowed.
        asks: bool,
    },
}

impl ClaudeForm {
    fn of(context: &LaunchContext<'_>) -> Self {
        match (context.kind, context.mode) {
            (ProfileKind::Resumable, ExecutionMode::Auto) => Self::Print,
            (ProfileKind::StickyProcess, ExecutionMode::Auto) => Self::Stream { asks: false },
            (
                ProfileKind::Resumable | ProfileKind::StickyProcess,
                ExecutionMode::Interactive | ExecutionMode::Chat,
            ) => Self::Stream { asks: true },
        }
    }
}
