//! The adapter for OpenCode (`opencode run`): one process per turn; a new process resumes the session. The held form is
//! `opencode acp`.
//!
//! The session id is printed with the first output of the model. If a turn is killed before that, its session is
//! unknown and the run starts a new one. A turn of `opencode run` cannot wait for a person: permission requests are
//! refused there, and put to a person in the held form.

mod launch;
mod messages;
mod permission;
mod reader;

use abide_domain::engine::ProfileKind;
use abide_ports::engine::{EngineAbility, LaunchContext, ProcessInterpreter};

use crate::{
    acp,
    command_line::{CommandLineEngine, EngineTraits, HelpOutput, HelpProbe},
    one_shot,
};

/// Not [`EngineAbility::Gates`]: only the held form has it, and a program that can resume is not held.
pub(crate) const ENGINE: CommandLineEngine = CommandLineEngine {
    name: "opencode",
    command: &["opencode"],
    pass_env: &["OPENCODE_*", "OPENAI_*", "ANTHROPIC_*", "GEMINI_*", "GOOGLE_*"],
    abilities: &[EngineAbility::Resume, EngineAbility::Hold, EngineAbility::Progress],
    probe: HelpProbe {
        help_args: &["run", "--help"],
        help_output: HelpOutput::EitherStream,
        env: launch::environment,
        required_texts: &[(EngineAbility::Resume, "--session")],
        resumable: "`opencode run` takes --session",
        not_resumable: "`opencode run --help` shows no --session",
        install_command: "npm install -g opencode-ai",
    },
    new_session_id: None,
    launch: launch::launch,
    interpreter,
    skills_folder: ".opencode/skills",
    traits: EngineTraits::COMMON,
};

fn interpreter(context: &LaunchContext<'_>) -> Box<dyn ProcessInterpreter> {
    match context.kind {
        ProfileKind::Resumable => one_shot::interpreter::<reader::OpenCodeReader>(context),
        // The launch has set the sandbox.
        ProfileKind::StickyProcess => acp::interpreter(&LaunchContext { sandbox: None, ..*context }),
    }
}
