//! The adapter of the fake engines: one engine for each behaviour, whose output is lines of JSON.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use abide_domain::{
    effect::LaunchSession,
    engine::{EngineResumeCapability, EngineSessionHandle, HandleType, ProbeMethod, ProfileKind},
    event::TurnOutcome,
    failure::{FailureCode, RunFailure},
    process::{ExitStatus, OutputPosition},
};
use abide_ports::{
    catalogue::{EngineLookup, InstalledEngine},
    engine::{
        AbilitySet, Engine, EngineAbility, EngineFact, EngineHealth, EngineInstallation, EngineSessionStatus,
        FactKind, GateAnswer, IncompatibleCheckpoint, InterruptMethod, LaunchContext, ProbeCommand,
        ProbeResult, ProcessExit, ProcessInterpreter, ProcessSpec, ProcessStdin, ReaderCheckpoint,
        ShutdownMethod, UnsupportedOperation,
    },
};
use serde::{Deserialize, Serialize};

use crate::engine::{EnginePlan, SimFact, handle};

/// The engines of a world, by name.
#[derive(Debug, Default)]
pub(crate) struct SimCatalogue(Mutex<BTreeMap<String, EnginePlan>>);

impl SimCatalogue {
    pub(crate) fn plans(&self) -> MutexGuard<'_, BTreeMap<String, EnginePlan>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EngineLookup for SimCatalogue {
    fn engine(&self, name: &str) -> Option<InstalledEngine> {
        let plan = self.plans().get(name)?.clone();
        let engine = Arc::new(SimEngine { name: name.to_owned(), plan });
        Some(InstalledEngine { installation: engine.installation(), engine, binary_placeholder: None })
    }

    fn names(&self) -> Vec<String> {
        self.plans().keys().cloned().collect()
    }
}

/// A line of output.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SimOutputLine {
    /// The number of the prompt within the process.
    pub(crate) turn: u32,
    pub(crate) fact: SimFact,
}

/// A line of input.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum SimInputLine {
    Prompt(String),
    Answer { gate: String, text: String, is_approved: bool },
    Steer(String),
    Interrupt,
}

impl SimInputLine {
    fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("it can be written as JSON")
    }
}

/// A fake engine.
#[derive(Debug)]
struct SimEngine {
    name: String,
    plan: EnginePlan,
}

impl Engine for SimEngine {
    fn name(&self) -> &str {
        &self.name
    }

    fn abilities(&self) -> AbilitySet {
        let mut abilities = vec![EngineAbility::Progress, EngineAbility::Hold, EngineAbility::Gates];
        if self.plan.kind == ProfileKind::Resumable {
            abilities.push(EngineAbility::Resume);
        }
        if self.plan.steers {
            abilities.push(EngineAbility::Steer);
        }
        AbilitySet::of(&abilities)
    }

    fn installation(&self) -> EngineInstallation {
        EngineInstallation::for_program(&self.name)
    }

    fn probe_commands(&self, _: &EngineInstallation) -> Vec<ProbeCommand> {
        vec![]
    }

    fn assess_health(&self, _: &[ProbeResult]) -> EngineHealth {
        let supported = self.plan.kind == ProfileKind::Resumable;
        let detail = "so it is".to_owned();
        let resume = EngineResumeCapability { supported, probe_method: ProbeMethod::Command, detail };
        EngineHealth { version: Some("1".to_owned()), failure: None, resume, abilities: self.abilities() }
    }

    fn new_session_handle(&self, uuid: &str) -> Option<EngineSessionHandle> {
        self.plan.names_ours.then(|| handle(&self.name, &format!("ours-{uuid}")))
    }

    fn launch(&self, context: &LaunchContext<'_>) -> Result<ProcessSpec, UnsupportedOperation> {
        let session = serde_json::to_string(context.session).expect("it can be written as JSON");
        Ok(ProcessSpec {
            argv: vec![self.name.clone(), session, context.prompt.to_owned()],
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
        Box::new(SimInterpreter { can_steer: self.plan.steers, ..SimInterpreter::default() })
    }

    fn skills_folder(&self) -> &str {
        "skills"
    }
}

/// The session of a launch, from the arguments of its process.
pub(crate) fn launch_session(argument: &str) -> LaunchSession {
    serde_json::from_str(argument).expect("the adapter wrote it")
}

/// Interprets the output of a fake process.
#[derive(Debug, Default)]
struct SimInterpreter {
    can_steer: bool,
    unfinished: Vec<u8>,
    offset: u64,
    begun: u32,
    ended: u32,
    is_over: bool,
}

impl ProcessInterpreter for SimInterpreter {
    fn feed(&mut self, bytes: &[u8]) -> Vec<EngineFact> {
        self.begun = self.begun.max(1);
        self.unfinished.extend_from_slice(bytes);
        let mut facts = Vec::new();
        while let Some(end) = self.unfinished.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.unfinished.drain(..=end).collect();
            self.offset += line.len() as u64;
            let position = EngineFact::position(self.offset, 0);
            let Ok(SimOutputLine { turn, fact }) = serde_json::from_slice(&line) else {
                facts.push(EngineFact { position, kind: FactKind::UnknownLine(String::new()) });
                continue;
            };
            let kind = match fact {
                SimFact::Session(value) => FactKind::Session { handle_type: HandleType::SessionId, value },
                SimFact::Progress(text) => FactKind::Progress(text),
                SimFact::Gate { gate, purpose, question } => {
                    FactKind::Gate { gate_id: gate, purpose, question }
                }
                SimFact::Withdrawn { gate } => FactKind::GateWithdrawn { gate_id: gate },
                SimFact::End(outcome) => {
                    self.ended = self.ended.max(turn);
                    FactKind::TurnEnded { turn, outcome }
                }
            };
            facts.push(EngineFact { position, kind });
        }
        facts
    }

    fn on_exit(&mut self, exit: &ProcessExit<'_>) -> Vec<EngineFact> {
        self.is_over = true;
        let turn = self.begun.max(1);
        if self.ended >= turn {
            return vec![];
        }
        let outcome = match (exit.cause, exit.status) {
            (abide_ports::engine::ExitCause::Interrupted, _) => TurnOutcome::Interrupted,
            (_, ExitStatus::Code(code)) => TurnOutcome::Failed {
                failure: RunFailure::new(FailureCode::EngineFailed, format!("it exited with {code}")),
            },
            (_, ExitStatus::Unknown) => return vec![],
        };
        let kind = FactKind::TurnEnded { turn, outcome };
        vec![EngineFact { position: OutputPosition(u64::MAX), kind }]
    }

    fn status(&self) -> EngineSessionStatus {
        match (self.is_over, self.ended >= self.begun.max(1)) {
            (true, _) => EngineSessionStatus::Exited,
            (false, true) => EngineSessionStatus::BetweenTurns,
            (false, false) => EngineSessionStatus::Working,
        }
    }

    fn encode_prompt(&mut self, prompt: &str) -> Result<Vec<u8>, UnsupportedOperation> {
        self.begun += 1;
        Ok(SimInputLine::Prompt(prompt.to_owned()).to_bytes())
    }

    fn encode_answer(&mut self, answer: &GateAnswer<'_>) -> Result<Vec<u8>, UnsupportedOperation> {
        let is_approved = answer.verdict == Some(abide_domain::approval::ApprovalVerdict::Approved);
        let (gate, text) = (answer.gate_id.to_owned(), answer.text.to_owned());
        Ok(SimInputLine::Answer { gate, text, is_approved }.to_bytes())
    }

    fn encode_steer(&mut self, text: &str) -> Result<Vec<u8>, UnsupportedOperation> {
        if !self.can_steer || self.ended >= self.begun.max(1) {
            return Err(UnsupportedOperation::MissingAbility { ability: EngineAbility::Steer });
        }
        Ok(SimInputLine::Steer(text.to_owned()).to_bytes())
    }

    fn interrupt_method(&mut self) -> InterruptMethod {
        InterruptMethod::Write(SimInputLine::Interrupt.to_bytes())
    }

    fn shutdown_method(&mut self) -> ShutdownMethod {
        ShutdownMethod::CloseInput
    }

    fn checkpoint(&self) -> Option<ReaderCheckpoint> {
        let state = format!("{} {}", self.begun, self.ended);
        Some(ReaderCheckpoint { version: "sim/1".to_owned(), offset: self.offset, state })
    }

    fn restore(&mut self, checkpoint: &ReaderCheckpoint) -> Result<(), IncompatibleCheckpoint> {
        let (begun, ended) = checkpoint.state.split_once(' ').expect("the interpreter wrote it");
        (self.begun, self.ended) = (begun.parse().unwrap_or(1), ended.parse().unwrap_or(0));
        (self.offset, self.unfinished) = (checkpoint.offset, vec![]);
        Ok(())
    }
}
