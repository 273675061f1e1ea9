//! Adds the instructions of a run to its prompts: the location of files, and whether and how to ask (D3).
//!
//! The text is in `patch`, and the recognition of questions in `recognise`.

use abide_domain::{effect::LaunchSession, engine::EngineSessionHandle, settings::ExecutionMode};
use abide_ports::engine::{
    AbilitySet, AdapterBasis, Engine, EngineFact, EngineHealth, EngineInstallation, EngineSessionStatus,
    GateAnswer, IncompatibleCheckpoint, InterruptMethod, IsolationScope, LaunchContext, OutputFormat,
    ProbeCommand, ProbeResult, ProcessExit, ProcessInterpreter, ProcessSpec, QuestionStyle, ReaderCheckpoint,
    ShutdownMethod, UnsupportedOperation,
};

use super::patch;

/// Wraps an engine so that each prompt contains the instructions for the run's mode.
pub fn instructed(engine: Box<dyn Engine>) -> Box<dyn Engine> {
    Box::new(WithInstructions { engine })
}

#[derive(Debug)]
struct WithInstructions {
    engine: Box<dyn Engine>,
}

/// Wraps the interpreter of a held process in the same way, for its later turns.
#[derive(Debug)]
struct WithReminders {
    interpreter: Box<dyn ProcessInterpreter>,
    mode: ExecutionMode,
    asking: QuestionStyle,
}

/// The first turn of a session gets the complete instructions, and later turns a reminder.
fn told(asking: QuestionStyle, order: &LaunchContext<'_>) -> String {
    let turn_index = match order.session {
        LaunchSession::New | LaunchSession::Named(_) => 1,
        LaunchSession::Resumed(_) => LATER,
    };
    patch::prompt(order.mode, asking, order.prompt, turn_index, order.skill)
}

/// Any turn but the first of its session.
const LATER: u32 = 2;

impl Engine for WithInstructions {
    fn name(&self) -> &str {
        self.engine.name()
    }

    fn abilities(&self) -> AbilitySet {
        self.engine.abilities()
    }

    fn installation(&self) -> EngineInstallation {
        self.engine.installation()
    }

    fn isolation_scope(&self) -> IsolationScope {
        self.engine.isolation_scope()
    }

    fn checks(&self, installation: &EngineInstallation) -> Vec<ProbeCommand> {
        self.engine.checks(installation)
    }

    fn judge(&self, observed: &[ProbeResult]) -> EngineHealth {
        self.engine.judge(observed)
    }

    fn name_session(&self, fresh: &str) -> Option<EngineSessionHandle> {
        self.engine.name_session(fresh)
    }

    fn launch(&self, order: &LaunchContext<'_>) -> Result<ProcessSpec, UnsupportedOperation> {
        self.engine.launch(&LaunchContext { prompt: &told(self.asking(), order), ..*order })
    }

    fn interpreter(&self, order: &LaunchContext<'_>) -> Box<dyn ProcessInterpreter> {
        let interpreter =
            self.engine.interpreter(&LaunchContext { prompt: &told(self.asking(), order), ..*order });
        Box::new(WithReminders { interpreter, mode: order.mode, asking: self.asking() })
    }

    fn skills_folder(&self) -> &str {
        self.engine.skills_folder()
    }

    fn speech(&self) -> OutputFormat {
        self.engine.speech()
    }

    fn asking(&self) -> QuestionStyle {
        self.engine.asking()
    }

    fn evidence(&self) -> AdapterBasis {
        self.engine.evidence()
    }
}

impl ProcessInterpreter for WithReminders {
    fn feed(&mut self, bytes: &[u8]) -> Vec<EngineFact> {
        self.interpreter.feed(bytes)
    }

    fn end(&mut self, departure: &ProcessExit<'_>) -> Vec<EngineFact> {
        self.interpreter.end(departure)
    }

    fn status(&self) -> EngineSessionStatus {
        self.interpreter.status()
    }

    fn say(&mut self, prompt: &str) -> Result<Vec<u8>, UnsupportedOperation> {
        self.interpreter.say(&patch::prompt(self.mode, self.asking, prompt, LATER, None))
    }

    fn answer(&mut self, answer: &GateAnswer<'_>) -> Result<Vec<u8>, UnsupportedOperation> {
        self.interpreter.answer(answer)
    }

    fn steer(&mut self, text: &str) -> Result<Vec<u8>, UnsupportedOperation> {
        self.interpreter.steer(text)
    }

    fn interrupt(&mut self) -> InterruptMethod {
        self.interpreter.interrupt()
    }

    fn leave(&mut self) -> ShutdownMethod {
        self.interpreter.leave()
    }

    fn checkpoint(&self) -> Option<ReaderCheckpoint> {
        self.interpreter.checkpoint()
    }

    fn restore(&mut self, checkpoint: &ReaderCheckpoint) -> Result<(), IncompatibleCheckpoint> {
        self.interpreter.restore(checkpoint)
    }
}
