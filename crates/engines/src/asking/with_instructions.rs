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
pub fn with_instructions(engine: Box<dyn Engine>) -> Box<dyn Engine> {
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
    question_style: QuestionStyle,
}

/// The first turn of a session gets the complete instructions, and later turns a reminder.
fn instructed_prompt(question_style: QuestionStyle, context: &LaunchContext<'_>) -> String {
    let turn_index = match context.session {
        LaunchSession::New | LaunchSession::Named(_) => 1,
        LaunchSession::Resumed(_) => LATER_TURN_INDEX,
    };
    patch::build_prompt(context.mode, question_style, context.prompt, turn_index, context.skill)
}

/// Any turn but the first of its session.
const LATER_TURN_INDEX: u32 = 2;

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

    fn probe_commands(&self, installation: &EngineInstallation) -> Vec<ProbeCommand> {
        self.engine.probe_commands(installation)
    }

    fn assess_health(&self, results: &[ProbeResult]) -> EngineHealth {
        self.engine.assess_health(results)
    }

    fn new_session_handle(&self, uuid: &str) -> Option<EngineSessionHandle> {
        self.engine.new_session_handle(uuid)
    }

    fn launch(&self, context: &LaunchContext<'_>) -> Result<ProcessSpec, UnsupportedOperation> {
        self.engine
            .launch(&LaunchContext { prompt: &instructed_prompt(self.question_style(), context), ..*context })
    }

    fn interpreter(&self, context: &LaunchContext<'_>) -> Box<dyn ProcessInterpreter> {
        let interpreter = self.engine.interpreter(&LaunchContext {
            prompt: &instructed_prompt(self.question_style(), context),
            ..*context
        });
        Box::new(WithReminders { interpreter, mode: context.mode, question_style: self.question_style() })
    }

    fn skills_folder(&self) -> &str {
        self.engine.skills_folder()
    }

    fn output_format(&self) -> OutputFormat {
        self.engine.output_format()
    }

    fn question_style(&self) -> QuestionStyle {
        self.engine.question_style()
    }

    fn adapter_basis(&self) -> AdapterBasis {
        self.engine.adapter_basis()
    }
}

impl ProcessInterpreter for WithReminders {
    fn feed(&mut self, bytes: &[u8]) -> Vec<EngineFact> {
        self.interpreter.feed(bytes)
    }

    fn on_exit(&mut self, exit: &ProcessExit<'_>) -> Vec<EngineFact> {
        self.interpreter.on_exit(exit)
    }

    fn status(&self) -> EngineSessionStatus {
        self.interpreter.status()
    }

    fn encode_prompt(&mut self, prompt: &str) -> Result<Vec<u8>, UnsupportedOperation> {
        self.interpreter.encode_prompt(&patch::build_prompt(
            self.mode,
            self.question_style,
            prompt,
            LATER_TURN_INDEX,
            None,
        ))
    }

    fn encode_answer(&mut self, answer: &GateAnswer<'_>) -> Result<Vec<u8>, UnsupportedOperation> {
        self.interpreter.encode_answer(answer)
    }

    fn encode_steer(&mut self, text: &str) -> Result<Vec<u8>, UnsupportedOperation> {
        self.interpreter.encode_steer(text)
    }

    fn interrupt_method(&mut self) -> InterruptMethod {
        self.interpreter.interrupt_method()
    }

    fn shutdown_method(&mut self) -> ShutdownMethod {
        self.interpreter.shutdown_method()
    }

    fn checkpoint(&self) -> Option<ReaderCheckpoint> {
        self.interpreter.checkpoint()
    }

    fn restore(&mut self, checkpoint: &ReaderCheckpoint) -> Result<(), IncompatibleCheckpoint> {
        self.interpreter.restore(checkpoint)
    }
}
