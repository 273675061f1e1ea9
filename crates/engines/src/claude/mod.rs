//! Claude Code by `claude -p`, in two forms.
//!
//! A run that never asks and can be resumed gets the print form: the prompt goes in, the process does its turn and
//! exits. All others get the stream form, where requests for permission and questions arrive inside the turn and wait,
//! and where one process can be given one turn after the other. Claude by the Agent Client Protocol is another adapter.
//!
//! What a message sent into a running turn does depends on the moment (it joins the turn, or makes one of its own), so
//! steering is not claimed: nobody could tell how many turns will end.

mod gates;
mod launch;
mod native;
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

use crate::{failing::unusable, tongue::LineInterpreter};

/// The adapter.
#[derive(Debug)]
pub(crate) struct ClaudeEngine;

/// Its name.
const NAME: &str = "claude";

/// How the program is talked with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
enum ClaudeForm {
    /// One prompt by standard input, one turn, and nobody can be asked.
    Print,
    /// Lines in both directions, over all turns that the process is given.
    Stream {
        /// Whether it may ask.
        asks: bool,
    },
}

impl ClaudeForm {
    fn of(order: &LaunchContext<'_>) -> Self {
        match (order.kind, order.mode) {
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
        EngineInstallation::named("claude").passing(&["ANTHROPIC_*", "CLAUDE_*"])
    }

    fn checks(&self, installation: &EngineInstallation) -> Vec<ProbeCommand> {
        let call = |argument: &str| {
            let mut check =
                ProbeCommand::command(installation.command.iter().cloned().chain([argument.to_owned()]));
            check.env = launch::quiet(installation);
            check
        };
        vec![call("--version"), call("--help")]
    }

    fn judge(&self, observed: &[ProbeResult]) -> EngineHealth {
        let [version, help] = observed else { return EngineHealth::unseen() };
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
                abilities = abilities.except(ability);
            }
        }
        let detail = if resumes {
            "`claude --resume` takes a session id"
        } else {
            "`claude --help` shows no `--resume`"
        };
        EngineHealth {
            // "2.1.325 (Claude Code)"
            version: version.version(),
            trouble: unusable(NAME, version, "npm install -g @anthropic-ai/claude-code"),
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
            handle_value: fresh.to_owned(),
            created_at_turn: 1,
        })
    }

    fn launch(&self, order: &LaunchContext<'_>) -> Result<ProcessSpec, UnsupportedOperation> {
        launch::launch(order)
    }

    fn interpreter(&self, order: &LaunchContext<'_>) -> Box<dyn ProcessInterpreter> {
        Box::new(LineInterpreter::new(reader::ClaudeReader::new(order)))
    }

    fn skills_folder(&self) -> &str {
        ".claude/skills"
    }
}
