//! The contract of an agent program: how it is started, what its output means, and how it is answered (E1).
//!
//! An adapter translates and performs no IO. Every method is a pure function of its arguments or of the bytes fed so
//! far. The daemon starts, supervises and reads processes. Engine-specific values (session ids, request ids, wording)
//! leave the adapter only as opaque handles and gates (E2).
//!
//! | operation that every engine has | method |
//! |---|---|
//! | healthcheck | [`Engine::probe_commands`], [`Engine::assess_health`] |
//! | start session | [`Engine::launch`] with [`LaunchSession::New`] or [`LaunchSession::Named`] |
//! | run turn | [`Engine::launch`], or [`ProcessInterpreter::encode_prompt`] to a process that is held |
//! | interrupt turn | [`ProcessInterpreter::interrupt_method`] |
//! | read session status | [`ProcessInterpreter::status`] |
//! | disconnect | [`ProcessInterpreter::shutdown_method`] |
//!
//! Optional operations are described by [`EngineAbility`], which also defines the behaviour without them.
//!
//! [`LaunchSession::New`]: abide_domain::effect::LaunchSession::New
//! [`LaunchSession::Named`]: abide_domain::effect::LaunchSession::Named

mod ability;
mod fact;
mod health;
mod interpreter;
mod launch;

use std::fmt::Debug;

use abide_domain::engine::EngineSessionHandle;

pub use ability::{AbilitySet, EngineAbility};
pub use fact::{EngineFact, ExitCause, FactKind, ProcessExit};
pub use health::{EngineHealth, ProbeCommand, ProbeResult};
pub use interpreter::{
    EngineSessionStatus, GateAnswer, IncompatibleCheckpoint, InterruptMethod, MAX_CHECKPOINT_BYTES,
    ProcessInterpreter, ProcessSignal, ReaderCheckpoint, ShutdownMethod, UnsupportedOperation,
};
pub use launch::{
    EngineInstallation, IsolationMode, IsolationScope, LaunchContext, PrivateFile, ProcessSpec, ProcessStdin,
    PromptSource, SandboxMode,
};

/// Translates between Abide and one agent program.
pub trait Engine: Debug + Send + Sync {
    /// The name in the registry and in settings.
    fn name(&self) -> &str;

    /// The optional abilities of the program version that the adapter was written for. [`Engine::assess_health`] determines the
    /// abilities of the installed program.
    fn abilities(&self) -> AbilitySet;

    /// The format of the output of one turn.
    fn output_format(&self) -> OutputFormat {
        OutputFormat::Lines
    }

    /// The way in which the engine asks a question at the end of a turn.
    fn question_style(&self) -> QuestionStyle {
        QuestionStyle::InAnswer
    }

    /// The evidence that the adapter was written and tested with.
    fn adapter_basis(&self) -> AdapterBasis {
        AdapterBasis::Recorded
    }

    /// The default installation, used where none is configured.
    fn installation(&self) -> EngineInstallation;

    /// The commands that determine presence, version and resume support of the program (A3). They are cheap, call no
    /// model and change nothing.
    fn probe_commands(&self, installation: &EngineInstallation) -> Vec<ProbeCommand>;

    /// Evaluates the results of those commands, in the same order.
    fn assess_health(&self, results: &[ProbeResult]) -> EngineHealth;

    /// The handle of a new session that gets its id from this new UUID, for engines that accept a chosen id (A6). The
    /// handle is then durable before the process starts.
    fn new_session_handle(&self, uuid: &str) -> Option<EngineSessionHandle>;

    /// The process that runs a turn. The same context gives the same process.
    fn launch(&self, context: &LaunchContext<'_>) -> Result<ProcessSpec, UnsupportedOperation>;

    /// Creates the interpreter of a process that was started with this context.
    ///
    /// After a restart a new interpreter is created and fed all output from the first byte.
    fn interpreter(&self, context: &LaunchContext<'_>) -> Box<dyn ProcessInterpreter>;

    /// The part of the engine that is isolated from Abide's own files.
    fn isolation_scope(&self) -> IsolationScope {
        IsolationScope::Process
    }

    /// The folder of the workspace, as a relative path, in which the engine looks for skills. Each skill is a folder.
    fn skills_folder(&self) -> &str;
}

/// The format of an engine's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputFormat {
    /// Structured lines. Lines that cannot be parsed are kept as unknown.
    Lines,
    /// Plain text. The whole output is the answer.
    PlainText,
}

/// The way in which an engine asks a question at the end of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuestionStyle {
    /// In its answer, in a format that its prompt has to describe.
    InAnswer,
    /// By a mechanism of its own. The person's answer is passed to it verbatim.
    OwnMechanism,
}

/// The evidence that an adapter was written and tested with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterBasis {
    /// Recorded output of the real program.
    Recorded,
    /// The program's documentation only. The program was not available, so users are warned that the adapter is
    /// untested.
    Documented,
}
