//! The adapter for Codex (`codex exec`): one process per turn, which cannot wait for a person; a new process resumes
//! the thread.
//!
//! The app-server, in which approvals and questions arrive inside the turn, would be a separate adapter.

mod launch;
mod messages;
mod reader;

use abide_ports::engine::EngineAbility;

use crate::{
    command_line::{CommandLineEngine, EngineTraits, HelpOutput, HelpProbe, no_env},
    one_shot,
};

pub(crate) const ENGINE: CommandLineEngine = CommandLineEngine {
    name: "codex",
    command: &["codex"],
    pass_env: &["OPENAI_*", "CODEX_*", "AZURE_OPENAI_*"],
    abilities: &[EngineAbility::Resume, EngineAbility::Progress],
    probe: HelpProbe {
        help_args: &["exec", "resume", "--help"],
        help_output: HelpOutput::Stdout,
        env: no_env,
        required_texts: &[(EngineAbility::Resume, "SESSION_ID")],
        resumable: "`codex exec resume` takes a session id",
        not_resumable: "`codex exec resume --help` shows no session id",
        install_command: "npm install -g @openai/codex",
    },
    new_session_id: None,
    launch: launch::launch,
    interpreter: one_shot::interpreter::<reader::CodexReader>,
    skills_folder: ".agents/skills",
    traits: EngineTraits::COMMON,
};
