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
mod reader;

use abide_domain::{
    engine::{EngineResumeCapability, EngineSessionHandle, HandleType, ProbeMethod, ProfileKind},
    settings::ExecutionMode,
};
use abide_ports::engine::{
    AbilitySet, Engine, EngineAbility, EngineHealth, EngineInstallation, LaunchContext, ProbeCommand,
    ProbeResult, ProcessInterpreter, ProcessSpec, UnsupportedOperation,
};

use crate::{failure::missing_program_failure, line_protocol::LineInterpreter};

#[derive(Debug)]
pub(crate) struct ClaudeEngine;

const NAME: &str = "claude";

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

impl Engine for ClaudeEngine {
    fn name(&self) -> &str {
        NAME
    }

    fn abilities(&self) -> AbilitySet {
        AbilitySet::of(&[
            EngineAbility::Resume,
            EngineAbility::Hold,
            EngineAbility::NamedSessions,
            EngineAbility::Progress,
            EngineAbility::Gates,
        ])
    }

    fn installation(&self) -> EngineInstallation {
        EngineInstallation::for_program("claude").with_pass_env(&["ANTHROPIC_*", "CLAUDE_*"])
    }

    fn probe_commands(&self, installation: &EngineInstallation) -> Vec<ProbeCommand> {
        let call = |argument: &str| {
            let mut check =
                ProbeCommand::to_exit(installation.command.iter().cloned().chain([argument.to_owned()]));
            check.env = launch::environment_without_updates(installation);
            check
        };
        vec![call("--version"), call("--help")]
    }

    fn assess_health(&self, results: &[ProbeResult]) -> EngineHealth {
        let [version, help] = results else { return EngineHealth::unchecked() };
        let shows = |option: &str| help.success().is_some_and(|help| help.contains(option));
        let resumes = shows("--resume");
        let mut abilities = self.abilities();
        for (ability, option) in [
            (EngineAbility::Resume, "--resume"),
            (EngineAbility::NamedSessions, "--session-id"),
            (EngineAbility::Hold, "--input-format"),
            (EngineAbility::Gates, "--input-format"),
        ] {
            if !shows(option) {
                abilities = abilities.without(ability);
            }
        }
        let detail = if resumes {
            "`claude --resume` takes a session id"
        } else {
            "`claude --help` shows no `--resume`"
        };
        EngineHealth {
            // The output is, for instance, "2.1.325 (Claude Code)".
            version: version.version(),
            failure: missing_program_failure(NAME, version, "npm install -g @anthropic-ai/claude-code"),
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
            handle_value: uuid.to_owned(),
            created_at_turn: 1,
        })
    }

    fn launch(&self, context: &LaunchContext<'_>) -> Result<ProcessSpec, UnsupportedOperation> {
        launch::launch(context)
    }

    fn interpreter(&self, context: &LaunchContext<'_>) -> Box<dyn ProcessInterpreter> {
        Box::new(LineInterpreter::new(reader::ClaudeReader::new(context)))
    }

    fn skills_folder(&self) -> &str {
        ".claude/skills"
    }
}
