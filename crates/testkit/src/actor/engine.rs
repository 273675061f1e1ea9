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
        EngineInstallation::named("actor")
    }

    fn checks(&self, installation: &EngineInstallation) -> Vec<ProbeCommand> {
        let command = installation.command.iter().cloned();
        vec![ProbeCommand::command(command.chain([super::processes::CHECK.to_owned()]))]
    }

    fn judge(&self, observed: &[ProbeResult]) -> EngineHealth {
        let version = observed.first().and_then(ProbeResult::version);
        let missing = || RunFailure::new(FailureCode::EngineNotFound, "no actor has come");
        let trouble = if version.is_some() { None } else { Some(missing()) };
        let detail = "a new actor knows the play".to_owned();
        let resume = EngineResumeCapability { supported: true, probe_method: ProbeMethod::Command, detail };
        EngineHealth { version, trouble, resume, abilities: self.abilities() }
    }

    fn name_session(&self, _: &str) -> Option<EngineSessionHandle> {
        None
    }

    fn launch(&self, order: &LaunchContext<'_>) -> Result<ProcessSpec, UnsupportedOperation> {
        let session = match order.session {
            LaunchSession::New => String::new(),
            LaunchSession::Named(handle) | LaunchSession::Resumed(handle) => handle.handle_value.clone(),
        };
        let mut argv = order.installation.command.clone();
        argv.extend([session, order.prompt.to_owned()]);
        Ok(ProcessSpec {
            argv,
            env: vec![],
            without_env: vec![],
            appended_env: vec![],
            files: vec![],
            stdin: ProcessStdin::Open(vec![]),
            not_before: None,
            outliving: None,
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
    heard: u64,
    ended: bool,
    over: bool,
}

impl FakeInterpreter {
    fn what(&mut self, line: &str) -> FactKind {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let text = rest.to_owned();
        match word {
            "session" => FactKind::Session { handle_type: HandleType::SessionId, value: text },
            "progress" => FactKind::Progress(text),
            "write" => FactKind::Write(format!("{rest}\n").into_bytes()),
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
                self.ends(TurnOutcome::Asked { text: String::new(), question })
            }
            "break" => panic!("an actor broke its interpreter, as the test wants"),
            "done" => self.ends(TurnOutcome::Completed { text }),
            _ => FactKind::Unknown(line.to_owned()),
        }
    }

    fn ends(&mut self, ending: TurnOutcome) -> FactKind {
        self.ended = true;
        FactKind::Ended { turn: 1, ending }
    }
}

impl ProcessInterpreter for FakeInterpreter {
    fn feed(&mut self, bytes: &[u8]) -> Vec<EngineFact> {
        self.unfinished.extend_from_slice(bytes);
        let mut said = Vec::new();
        while let Some(end) = self.unfinished.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.unfinished.drain(..=end).collect();
            self.heard += line.len() as u64;
            let what = self.what(String::from_utf8_lossy(&line).trim_end());
            said.push(EngineFact { at: EngineFact::position(self.heard, 0), what });
        }
        said
    }

    fn end(&mut self, departure: &ProcessExit<'_>) -> Vec<EngineFact> {
        self.over = true;
        if self.ended {
            return vec![];
        }
        let message = format!("the actor left the stage: {:?}", departure.exit);
        let what =
            self.ends(TurnOutcome::Failed { failure: RunFailure::new(FailureCode::EngineFailed, message) });
        vec![EngineFact { at: OutputPosition(u64::MAX), what }]
    }

    fn status(&self) -> EngineSessionStatus {
        match (self.over, self.ended) {
            (true, _) => EngineSessionStatus::Over,
            (false, true) => EngineSessionStatus::BetweenTurns,
            (false, false) => EngineSessionStatus::Working,
        }
    }

    fn say(&mut self, _: &str) -> Result<Vec<u8>, UnsupportedOperation> {
        Err(UnsupportedOperation::Lacks { ability: EngineAbility::Hold })
    }

    fn answer(&mut self, _: &GateAnswer<'_>) -> Result<Vec<u8>, UnsupportedOperation> {
        Err(UnsupportedOperation::Lacks { ability: EngineAbility::Gates })
    }

    fn steer(&mut self, _: &str) -> Result<Vec<u8>, UnsupportedOperation> {
        Err(UnsupportedOperation::Lacks { ability: EngineAbility::Steer })
    }

    fn interrupt(&mut self) -> InterruptMethod {
        InterruptMethod::Signal(ProcessSignal::Interrupt)
    }

    fn leave(&mut self) -> ShutdownMethod {
        ShutdownMethod::Signal(ProcessSignal::Terminate)
    }

    fn checkpoint(&self) -> Option<ReaderCheckpoint> {
        let (version, state) = (VERSION.to_owned(), self.ended.to_string());
        (!self.over).then_some(ReaderCheckpoint { version, offset: self.heard, state })
    }

    fn restore(&mut self, checkpoint: &ReaderCheckpoint) -> Result<(), IncompatibleCheckpoint> {
        let ended = (checkpoint.version == VERSION).then(|| checkpoint.state.parse().ok()).flatten();
        let (found, expected) = (checkpoint.version.clone(), VERSION.to_owned());
        let ended = ended.ok_or(IncompatibleCheckpoint { found, expected })?;
        *self = Self { unfinished: vec![], heard: checkpoint.offset, ended, over: false };
        Ok(())
    }
}
