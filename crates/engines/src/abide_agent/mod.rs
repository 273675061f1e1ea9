//! The adapter for the native agent, `abide agent run`, which is part of this product and a child process like other
//! engines (B10).
//!
//! There is one process per turn. A session is a folder of the workspace, `.abide/native/<id>`, with an id that we
//! choose. Several runs can therefore share a workspace, and the handle is durable before the first process starts. A
//! question ends the process; its stateful tools keep running for the next one. The agent is never held.
//!
//! `--agent DIR` in the engine's configured arguments selects the agent. Without it, the workspace itself must contain
//! the definition. The agent itself is not isolated; it starts each tool with the sandbox and the isolation of the run.

mod launch;
mod messages;
mod reader;

use abide_ports::engine::{EngineAbility, IsolationScope, QuestionStyle};

use crate::{
    command_line::{CommandLineEngine, EngineTraits, HelpOutput, HelpProbe, no_env},
    one_shot,
};

pub(crate) const ENGINE: CommandLineEngine = CommandLineEngine {
    name: "native",
    // The path of the running program is not known here. The composition root replaces `abide` by it.
    command: &["abide"],
    pass_env: &["ABIDE_HOME", "ABIDE_MODEL*", "OPENAI_API_KEY"],
    abilities: &[EngineAbility::Resume, EngineAbility::NamedSessions, EngineAbility::Progress],
    probe: HelpProbe {
        help_args: &["agent", "run", "--help"],
        help_output: HelpOutput::Stdout,
        env: no_env,
        required_texts: &[(EngineAbility::Resume, "--resume")],
        resumable: "`abide agent run --resume` continues a session",
        not_resumable: "`abide agent run --help` shows no --resume",
        install_command: "cargo install abide",
    },
    new_session_id: Some(str::to_owned),
    launch: launch::launch,
    interpreter: one_shot::interpreter::<reader::AbideAgentReader>,
    skills_folder: ".agents/skills",
    traits: EngineTraits {
        question_style: QuestionStyle::OwnMechanism,
        isolation_scope: IsolationScope::Tools,
        ..EngineTraits::COMMON
    },
};
