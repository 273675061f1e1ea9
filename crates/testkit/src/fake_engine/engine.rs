//! The adapter of the fake engine: how its processes are started and how their output lines are interpreted.

use abide_domain::{
    effect::LaunchSession,
    engine::{EngineResumeCapability, EngineSessionHandle, HandleType, ProbeMethod},
    event::TurnOutcome,
    failure::{FailureCode, RunFailure},
    interaction::{DecisionPolicy, InteractionKind, Question},
    process::OutputPosition,
};
use abide_ports::engine::{
    AbilitySet, Engine, EngineAbility, EngineFact, EngineHealth, EngineInstallation, EngineSessionStatus,
    FactKind, GateAnswer, IncompatibleCheckpoint, InterruptMethod, LaunchContext, ProbeCommand, ProbeResult,
    ProcessExit, ProcessInterpreter, ProcessSignal, ProcessSpec, ProcessStdin, ReaderCheckpoint,
    ShutdownMethod, UnsupportedOperation,
};

#[derive(Clone, Copy, Debug, Default)]
pub struct FakeEngine;

impl Engine for FakeEngine {
    fn name(&self) -> &str {
        "actor"
    }

    fn abilities(&self) -> AbilitySet {
        AbilitySet::of(&[EngineAbility::Resume, EngineAbility::Progress])
    }

    fn installation(&self) -> EngineInstallation {
        EngineInstallation::for_program("actor")
    }

    fn probe_commands(&self, installation: &EngineInstallation) -> Vec<ProbeCommand> {
        let command = installation.command.iter().cloned();
        vec![ProbeCommand::to_exit(command.chain([super::processes::VERSION_ARGUMENT.to_owned()]))]
    }

    fn assess_health(&self, observed: &[ProbeResult]) -> EngineHealth {
        let version = observed.first().and_then(ProbeResult::version);
        let missing = || RunFailure::new(FailureCode::EngineNotFound, "the fake engine is not installed");
        let failure = if version.is_some() { None } else { Some(missing()) };
        let detail = "a new fake process has its script".to_owned();
        let resume = EngineResumeCapability { supported: true, probe_method: ProbeMethod::Command, detail };
        EngineHealth { version, failure, resume, abilities: self.abilities() }
    }

    fn new_session_handle(&self, _: &str) -> Option<EngineSessionHandle> {
        None
    }

    fn launch(&self, context: &LaunchContext<'_>) -> Result<ProcessSpec, UnsupportedOperation> {
        let session = match context.session {
            LaunchSession::New => String::new(),
            LaunchSession::Named(handle) | LaunchSession::Resumed(handle) => handle.handle_value.clone(),
        };
        let mut argv = context.installation.command.clone();
        argv.extend([session, context.prompt.to_owned()]);
        Ok(ProcessSpec {
            argv,
            env: vec![],
            removed_env: vec![],
            appended_env: vec![],
            files: vec![],
            stdin: ProcessStdin::KeptOpen(vec![]),
            not_before: None,
            surviving_keepers_dir: None,
        })
    }

    fn interpreter(&self, _: &LaunchContext<'_>) -> Box<dyn ProcessInterpreter> {
        Box::new(FakeInterpreter::default())
    }

    fn skills_folder(&self) -> &str {
        ".actor/skills"
    }
}

/// The version of the checkpoint format.
const VERSION: &str = "actor/1";

/// Interprets the output lines of fake processes.
#[derive(Debug, Default)]
struct FakeInterpreter {
    unfinished: Vec<u8>,
    position: u64,
    ended: bool,
    closed: bool,
}

impl FakeInterpreter {
    fn parse_line(&mut self, line: &str) -> FactKind {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let text = rest.to_owned();
        match word {
            "session" => FactKind::Session { handle_type: HandleType::SessionId, value: text },
            "progress" => FactKind::Progress(text),
            "write" => FactKind::WriteStdin(format!("{rest}\n").into_bytes()),
            "ask" => {
                let question = Question {
                    kind: InteractionKind::OpenText,
                    prompt: text,
                    options: vec![],
                    ui_hints: None,
                    default_decision_policy: DecisionPolicy::EngineJudgement,
                    context: None,
                    hidden: None,
                };
                self.end_turn(TurnOutcome::Asked { text: String::new(), question })
            }
            "break" => panic!("a fake process made its interpreter panic, as scripted"),
            "done" => self.end_turn(TurnOutcome::Completed { text }),
            _ => FactKind::UnknownLine(line.to_owned()),
        }
    }

    fn end_turn(&mut self, ending: TurnOutcome) -> FactKind {
        self.ended = true;
        FactKind::TurnEnded { turn: 1, outcome: ending }
    }
}

impl ProcessInterpreter for FakeInterpreter {
    fn feed(&mut self, bytes: &[u8]) -> Vec<EngineFact> {
        self.unfinished.extend_from_slice(bytes);
        let mut facts = Vec::new();
        while let Some(end) = self.unfinished.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.unfinished.drain(..=end).collect();
            self.position += line.len() as u64;
            let kind = self.parse_line(String::from_utf8_lossy(&line).trim_end());
            facts.push(EngineFact { position: EngineFact::position(self.position, 0), kind });
        }
        facts
    }

    fn on_exit(&mut self, exit: &ProcessExit<'_>) -> Vec<EngineFact> {
        self.closed = true;
        if self.ended {
            return vec![];
        }
        let message = format!("the fake process exited: {:?}", exit.status);
        let kind = self
            .end_turn(TurnOutcome::Failed { failure: RunFailure::new(FailureCode::EngineFailed, message) });
        vec![EngineFact { position: OutputPosition(u64::MAX), kind }]
    }

    fn status(&self) -> EngineSessionStatus {
        match (self.closed, self.ended) {
            (true, _) => EngineSessionStatus::Exited,
            (false, true) => EngineSessionStatus::BetweenTurns,
            (false, false) => EngineSessionStatus::Working,
        }
    }

    fn encode_prompt(&mut self, _: &str) -> Result<Vec<u8>, UnsupportedOperation> {
        Err(UnsupportedOperation::MissingAbility { ability: EngineAbility::Hold })
    }

    fn encode_answer(&mut self, _: &GateAnswer<'_>) -> Result<Vec<u8>, UnsupportedOperation> {
        Err(UnsupportedOperation::MissingAbility { ability: EngineAbility::Gates })
    }

    fn encode_steer(&mut self, _: &str) -> Result<Vec<u8>, UnsupportedOperation> {
        Err(UnsupportedOperation::MissingAbility { ability: EngineAbility::Steer })
    }

    fn interrupt_method(&mut self) -> InterruptMethod {
        InterruptMethod::Signal(ProcessSignal::Interrupt)
    }

    fn shutdown_method(&mut self) -> ShutdownMethod {
        ShutdownMethod::Signal(ProcessSignal::Terminate)
    }

    fn checkpoint(&self) -> Option<ReaderCheckpoint> {
        let (version, state) = (VERSION.to_owned(), self.ended.to_string());
        (!self.closed).then_some(ReaderCheckpoint { version, offset: self.position, state })
    }

    fn restore(&mut self, checkpoint: &ReaderCheckpoint) -> Result<(), IncompatibleCheckpoint> {
        let ended = (checkpoint.version == VERSION).then(|| checkpoint.state.parse().ok()).flatten();
        let (found, expected) = (checkpoint.version.clone(), VERSION.to_owned());
        let ended = ended.ok_or(IncompatibleCheckpoint { found, expected })?;
        *self = Self { unfinished: vec![], position: checkpoint.offset, ended, closed: false };
        Ok(())
    }
}
