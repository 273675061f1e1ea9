//! The adapter for the parrot, a scripted engine for demos and tests (E3), in two forms: `parrot` executes one turn per
//! process and can resume; `parrot-sticky` is held and cannot.
//!
//! The program is part of this product (`abide __parrot`) and a child process like other engines. Its commands are
//! documented there.

mod launch;
mod messages;
mod reader;

use abide_domain::engine::{
    EngineResumeCapability, EngineSessionHandle, HandleType, ProbeMethod, ProfileKind,
};
use abide_ports::engine::{
    AbilitySet, Engine, EngineAbility, EngineHealth, EngineInstallation, IsolationScope, LaunchContext,
    ProbeCommand, ProbeResult, ProcessInterpreter, ProcessSpec, UnsupportedOperation,
};

use crate::{failure::missing_program_failure, line_protocol::LineInterpreter};

#[derive(Debug)]
pub(crate) struct ParrotEngine(pub(crate) ParrotForm);

/// The lifetime of a parrot process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum ParrotForm {
    /// One process per turn.
    Resumable,
    /// One process for all turns.
    Sticky,
}

impl ParrotEngine {
    /// The form of a launch: a run that holds its process needs the sticky one.
    fn form(&self, context: &LaunchContext<'_>) -> ParrotForm {
        match context.kind {
            ProfileKind::Resumable => self.0,
            ProfileKind::StickyProcess => ParrotForm::Sticky,
        }
    }
}

impl Engine for ParrotEngine {
    fn name(&self) -> &str {
        match self.0 {
            ParrotForm::Resumable => "parrot",
            ParrotForm::Sticky => "parrot-sticky",
        }
    }

    fn abilities(&self) -> AbilitySet {
        let both = AbilitySet::of(&[EngineAbility::Gates, EngineAbility::Progress, EngineAbility::Steer]);
        match self.0 {
            ParrotForm::Resumable => {
                both.with(EngineAbility::Resume).with(EngineAbility::NamedSessions).with(EngineAbility::Hold)
            }
            ParrotForm::Sticky => both.with(EngineAbility::Hold),
        }
    }

    fn installation(&self) -> EngineInstallation {
        // The path of the running program is not known here. The composition root replaces `abide` by it.
        let command = vec!["abide".to_owned(), "__parrot".to_owned()];
        EngineInstallation { command, ..EngineInstallation::default() }
            .with_pass_env(&["ABIDE_HOME", "PARROT_*"])
    }

    fn isolation_scope(&self) -> IsolationScope {
        IsolationScope::None
    }

    fn probe_commands(&self, installation: &EngineInstallation) -> Vec<ProbeCommand> {
        let call = |argument: &str| {
            ProbeCommand::to_exit(installation.command.iter().cloned().chain([argument.to_owned()]))
        };
        vec![call("--version"), call("--help")]
    }

    fn assess_health(&self, results: &[ProbeResult]) -> EngineHealth {
        let [version, help] = results else { return EngineHealth::unchecked() };
        let offers = help.success().is_some_and(|help| help.contains("--resume"));
        let (supported, detail) = match self.0 {
            ParrotForm::Resumable if offers => (true, "`abide __parrot --help` offers --resume"),
            ParrotForm::Resumable => (false, "`abide __parrot --help` offers no --resume"),
            ParrotForm::Sticky => (false, "this form of the parrot cannot resume, on purpose"),
        };
        EngineHealth {
            version: version.version(),
            failure: missing_program_failure(self.name(), version, "cargo install abide"),
            resume: EngineResumeCapability {
                supported,
                probe_method: ProbeMethod::Command,
                detail: detail.to_owned(),
            },
            abilities: if supported {
                self.abilities()
            } else {
                self.abilities().without(EngineAbility::Resume)
            },
        }
    }

    fn new_session_handle(&self, uuid: &str) -> Option<EngineSessionHandle> {
        match self.0 {
            ParrotForm::Resumable => Some(EngineSessionHandle {
                engine: self.name().to_owned(),
                handle_type: HandleType::SessionId,
                handle_value: uuid.to_owned(),
                created_at_turn: 1,
            }),
            ParrotForm::Sticky => None,
        }
    }

    fn launch(&self, context: &LaunchContext<'_>) -> Result<ProcessSpec, UnsupportedOperation> {
        launch::launch(self.form(context), context)
    }

    fn interpreter(&self, context: &LaunchContext<'_>) -> Box<dyn ProcessInterpreter> {
        Box::new(LineInterpreter::new(reader::ParrotReader::new(self.form(context), context)))
    }

    fn skills_folder(&self) -> &str {
        ".parrot/skills"
    }
}
