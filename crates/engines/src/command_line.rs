//! The shared frame of engines that are command-line programs.
//!
//! An adapter describes its program as a [`CommandLineEngine`]: names and abilities as data, the launch and the
//! interpreter as functions. The version and the help text of the installed program determine its health. An engine that
//! is probed in another way implements [`Engine`] itself.

use abide_domain::engine::{EngineResumeCapability, EngineSessionHandle, HandleType, ProbeMethod};
use abide_ports::engine::{
    AbilitySet, AdapterBasis, Engine, EngineAbility, EngineHealth, EngineInstallation, IsolationScope,
    LaunchContext, OutputFormat, ProbeCommand, ProbeResult, ProcessInterpreter, ProcessSpec, QuestionStyle,
    UnsupportedOperation,
};

use crate::failure::missing_program_failure;

/// The description of a command-line program.
#[derive(Debug)]
pub(crate) struct CommandLineEngine {
    /// The name in the registry and in settings.
    pub(crate) name: &'static str,
    /// The program and its leading arguments, where no installation is configured.
    pub(crate) command: &'static [&'static str],
    /// See [`EngineInstallation::pass_env`].
    pub(crate) pass_env: &'static [&'static str],
    /// The abilities of the version that the adapter was written for.
    pub(crate) abilities: &'static [EngineAbility],
    pub(crate) probe: HelpProbe,
    /// Derives the id of a new session from a UUID. `None` if the program chooses the id.
    pub(crate) new_session_id: Option<fn(&str) -> String>,
    pub(crate) launch: fn(&LaunchContext<'_>) -> Result<ProcessSpec, UnsupportedOperation>,
    pub(crate) interpreter: fn(&LaunchContext<'_>) -> Box<dyn ProcessInterpreter>,
    /// See [`Engine::skills_folder`].
    pub(crate) skills_folder: &'static str,
    pub(crate) traits: EngineTraits,
}

/// The properties in which few engines differ.
#[derive(Debug)]
pub(crate) struct EngineTraits {
    pub(crate) output_format: OutputFormat,
    pub(crate) question_style: QuestionStyle,
    pub(crate) adapter_basis: AdapterBasis,
    pub(crate) isolation_scope: IsolationScope,
}

impl EngineTraits {
    /// The properties of most engines.
    pub(crate) const COMMON: Self = Self {
        output_format: OutputFormat::Lines,
        question_style: QuestionStyle::InAnswer,
        adapter_basis: AdapterBasis::Recorded,
        isolation_scope: IsolationScope::Process,
    };
}

/// The probe of a program by `--version` and its help text.
#[derive(Debug)]
pub(crate) struct HelpProbe {
    /// The arguments that print the help text.
    pub(crate) help_args: &'static [&'static str],
    pub(crate) help_output: HelpOutput,
    /// The environment of both commands.
    pub(crate) env: fn(&EngineInstallation) -> Vec<(String, String)>,
    /// Abilities that the installed program has only if its help text contains the text, which is mostly an option.
    /// Without an entry for [`EngineAbility::Resume`] the program cannot resume.
    pub(crate) required_texts: &'static [(EngineAbility, &'static str)],
    /// The detail of the resume probe if the text was found.
    pub(crate) resumable: &'static str,
    /// The detail of the resume probe if the text was not found.
    pub(crate) not_resumable: &'static str,
    /// The command that installs the program, for error messages.
    pub(crate) install_command: &'static str,
}

/// The stream on which a program prints its help text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HelpOutput {
    /// Standard output, with exit code 0.
    Stdout,
    /// Either stream, with any exit code.
    EitherStream,
}

impl HelpOutput {
    fn contains(self, help: &ProbeResult, text: &str) -> bool {
        match (self, help) {
            (Self::Stdout, help) => help.success().is_some_and(|stdout| stdout.contains(text)),
            (Self::EitherStream, ProbeResult::Ran { stdout, stderr, .. }) => {
                stdout.contains(text) || stderr.contains(text)
            }
            (
                Self::EitherStream,
                ProbeResult::NotFound { .. } | ProbeResult::TimedOut | ProbeResult::Unavailable { .. },
            ) => false,
        }
    }
}

/// An environment without additions, for [`HelpProbe::env`].
pub(crate) fn no_env(_installation: &EngineInstallation) -> Vec<(String, String)> {
    vec![]
}

/// The environment of the installation.
pub(crate) fn installation_env(installation: &EngineInstallation) -> Vec<(String, String)> {
    installation.env.clone().into_iter().collect()
}

impl Engine for CommandLineEngine {
    fn name(&self) -> &str {
        self.name
    }

    fn abilities(&self) -> AbilitySet {
        AbilitySet::of(self.abilities)
    }

    fn output_format(&self) -> OutputFormat {
        self.traits.output_format
    }

    fn question_style(&self) -> QuestionStyle {
        self.traits.question_style
    }

    fn adapter_basis(&self) -> AdapterBasis {
        self.traits.adapter_basis
    }

    fn isolation_scope(&self) -> IsolationScope {
        self.traits.isolation_scope
    }

    fn installation(&self) -> EngineInstallation {
        let command = self.command.iter().map(|&part| part.to_owned()).collect();
        EngineInstallation { command, ..EngineInstallation::default() }.with_pass_env(self.pass_env)
    }

    fn probe_commands(&self, installation: &EngineInstallation) -> Vec<ProbeCommand> {
        let command = |arguments: &[&str]| {
            let arguments = arguments.iter().map(|&argument| argument.to_owned());
            let argv = installation.command.iter().cloned().chain(arguments);
            ProbeCommand { env: (self.probe.env)(installation), ..ProbeCommand::to_exit(argv) }
        };
        vec![command(&["--version"]), command(self.probe.help_args)]
    }

    fn assess_health(&self, results: &[ProbeResult]) -> EngineHealth {
        let [version, help] = results else { return EngineHealth::unchecked() };
        let probe = &self.probe;
        let (mut abilities, mut supported) = (self.abilities(), false);
        for &(ability, text) in probe.required_texts {
            if !probe.help_output.contains(help, text) {
                abilities = abilities.without(ability);
            } else if ability == EngineAbility::Resume {
                supported = true;
            }
        }
        let detail = if supported { probe.resumable } else { probe.not_resumable }.to_owned();
        EngineHealth {
            version: version.version(),
            failure: missing_program_failure(self.name, version, probe.install_command),
            resume: EngineResumeCapability { supported, probe_method: ProbeMethod::Command, detail },
            abilities,
        }
    }

    fn new_session_handle(&self, uuid: &str) -> Option<EngineSessionHandle> {
        Some(EngineSessionHandle {
            engine: self.name.to_owned(),
            handle_type: HandleType::SessionId,
            handle_value: self.new_session_id?(uuid),
            created_at_turn: 1,
        })
    }

    fn launch(&self, context: &LaunchContext<'_>) -> Result<ProcessSpec, UnsupportedOperation> {
        (self.launch)(context)
    }

    fn interpreter(&self, context: &LaunchContext<'_>) -> Box<dyn ProcessInterpreter> {
        (self.interpreter)(context)
    }

    fn skills_folder(&self) -> &str {
        self.skills_folder
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENGINE: CommandLineEngine = CommandLineEngine {
        name: "word",
        command: &["word"],
        pass_env: &[],
        abilities: &[EngineAbility::Resume, EngineAbility::Hold, EngineAbility::Progress],
        probe: HelpProbe {
            help_args: &["run", "--help"],
            help_output: HelpOutput::Stdout,
            env: no_env,
            required_texts: &[(EngineAbility::Resume, "--resume"), (EngineAbility::Hold, "--hold")],
            resumable: "yes",
            not_resumable: "no",
            install_command: "install word",
        },
        new_session_id: None,
        launch: |_| Err(UnsupportedOperation::MissingAbility { ability: EngineAbility::Steer }),
        interpreter: |_| unreachable!("the tests start nothing"),
        skills_folder: "skills",
        traits: EngineTraits::COMMON,
    };

    fn health(engine: &CommandLineEngine, code: i32, stdout: &str, stderr: &str) -> EngineHealth {
        let ran = |code, stdout: &str, stderr: &str| ProbeResult::Ran {
            code: Some(code),
            stdout: stdout.to_owned(),
            stderr: stderr.to_owned(),
        };
        engine.assess_health(&[ran(0, "word 1.2", ""), ran(code, stdout, stderr)])
    }

    #[test]
    fn abilities_without_their_text_in_the_help_are_not_claimed() {
        let resumes = health(&ENGINE, 0, "[--resume ID]", "");
        assert_eq!(resumes.version.as_deref(), Some("1.2"));
        assert_eq!((resumes.resume.supported, resumes.resume.detail.as_str()), (true, "yes"));
        assert_eq!(resumes.abilities, AbilitySet::of(&[EngineAbility::Resume, EngineAbility::Progress]));
        let holds = health(&ENGINE, 0, "[--hold]", "");
        assert_eq!((holds.resume.supported, holds.resume.detail.as_str()), (false, "no"));
        assert_eq!(holds.abilities, AbilitySet::of(&[EngineAbility::Hold, EngineAbility::Progress]));
    }

    #[test]
    fn a_failed_help_command_counts_only_if_the_program_prints_help_that_way() {
        assert!(!health(&ENGINE, 1, "", "[--resume ID]").resume.supported);
        let probe = HelpProbe { help_output: HelpOutput::EitherStream, ..ENGINE.probe };
        let engine = CommandLineEngine { probe, ..ENGINE };
        assert!(health(&engine, 1, "", "[--resume ID]").resume.supported);
    }
}
