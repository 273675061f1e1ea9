//! The adapter for the parrot, a scripted engine for demos and tests (E3), in two forms: `parrot` executes one turn per
//! process and can resume; `parrot-sticky` is held and cannot.
//!
//! The program is part of this product (`abide __parrot`) and a child process like other engines. Its commands are
//! documented there.

mod launch;
mod messages;
mod reader;

use abide_domain::engine::ProfileKind;
use abide_ports::engine::{EngineAbility, IsolationScope, LaunchContext, ProcessInterpreter};

use crate::{
    command_line::{CommandLineEngine, EngineTraits, HelpOutput, HelpProbe, no_env},
    line_protocol::LineInterpreter,
};

/// The form that executes one turn per process and can also be held.
pub(crate) const RESUMABLE_ENGINE: CommandLineEngine = CommandLineEngine {
    name: "parrot",
    abilities: &[
        EngineAbility::Gates,
        EngineAbility::Progress,
        EngineAbility::Steer,
        EngineAbility::Resume,
        EngineAbility::NamedSessions,
        EngineAbility::Hold,
    ],
    probe: HelpProbe {
        required_texts: &[(EngineAbility::Resume, "--resume")],
        not_resumable: "`abide __parrot --help` offers no --resume",
        ..STICKY_ENGINE.probe
    },
    new_session_id: Some(str::to_owned),
    launch: |context| launch::launch(ParrotForm::of(context), context),
    interpreter: |context| interpreter(ParrotForm::of(context), context),
    ..STICKY_ENGINE
};

/// The form that is held and cannot resume.
pub(crate) const STICKY_ENGINE: CommandLineEngine = CommandLineEngine {
    name: "parrot-sticky",
    // The path of the running program is not known here. The composition root replaces `abide` by it.
    command: &["abide", "__parrot"],
    pass_env: &["ABIDE_HOME", "PARROT_*"],
    abilities: &[EngineAbility::Gates, EngineAbility::Progress, EngineAbility::Steer, EngineAbility::Hold],
    probe: HelpProbe {
        help_args: &["--help"],
        help_output: HelpOutput::Stdout,
        env: no_env,
        required_texts: &[],
        resumable: "`abide __parrot --help` offers --resume",
        not_resumable: "this form of the parrot cannot resume, on purpose",
        install_command: "cargo install abide",
    },
    new_session_id: None,
    launch: |context| launch::launch(ParrotForm::Sticky, context),
    interpreter: |context| interpreter(ParrotForm::Sticky, context),
    skills_folder: ".parrot/skills",
    traits: EngineTraits { isolation_scope: IsolationScope::None, ..EngineTraits::COMMON },
};

/// The lifetime of a parrot process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
enum ParrotForm {
    /// One process per turn.
    Resumable,
    /// One process for all turns.
    Sticky,
}

impl ParrotForm {
    /// The form of a launch: a run that holds its process needs the sticky one.
    fn of(context: &LaunchContext<'_>) -> Self {
        match context.kind {
            ProfileKind::Resumable => Self::Resumable,
            ProfileKind::StickyProcess => Self::Sticky,
        }
    }
}

fn interpreter(form: ParrotForm, context: &LaunchContext<'_>) -> Box<dyn ProcessInterpreter> {
    Box::new(LineInterpreter::new(reader::ParrotReader::new(form, context)))
}
