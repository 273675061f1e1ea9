//! The contract of an agent program: how it is started, what its bytes mean, how it is answered (E1).
//!
//! An adapter translates and does not run: every method here is a pure function of its arguments or of the bytes that
//! came before. Starting, holding and reading processes is the daemon's trade. What belongs to the engine (its
//! session ids, its request ids, its words) does not leave the adapter except as an opaque handle or gate (E2).
//!
//! | operation that every engine has | here |
//! |---|---|
//! | healthcheck | [`Engine::checks`], [`Engine::judge`] |
//! | start session | [`Engine::launch`] with [`LaunchSession::New`] or [`LaunchSession::Named`] |
//! | run turn | [`Engine::launch`], or [`ProcessInterpreter::say`] to a process that is held |
//! | interrupt turn | [`ProcessInterpreter::interrupt`] |
//! | read session status | [`ProcessInterpreter::status`] |
//! | disconnect | [`ProcessInterpreter::leave`] |
//!
//! What only some engines can do is an [`EngineAbility`], and each ability says what happens without it.
//!
//! [`LaunchSession::New`]: abide_domain::effect::LaunchSession::New
//! [`LaunchSession::Named`]: abide_domain::effect::LaunchSession::Named

mod ability;
mod health;
mod interpreter;
mod launch;
mod said;

use std::fmt::Debug;

use abide_domain::engine::EngineSessionHandle;

pub use ability::{AbilitySet, EngineAbility};
pub use health::{EngineHealth, ProbeCommand, ProbeResult};
pub use interpreter::{
    EngineSessionStatus, GateAnswer, IncompatibleCheckpoint, InterruptMethod, MAX_CHECKPOINT_BYTES,
    ProcessInterpreter, ProcessSignal, ReaderCheckpoint, ShutdownMethod, UnsupportedOperation,
};
pub use launch::{
    EngineInstallation, IsolationMode, IsolationScope, LaunchContext, PrivateFile, ProcessSpec, ProcessStdin,
    PromptSource, SandboxMode,
};
pub use said::{EngineFact, ExitCause, FactKind, ProcessExit};

/// An agent program.
pub trait Engine: Debug + Send + Sync {
    /// Its name in the registry and in settings.
    fn name(&self) -> &str;

    /// What it can do beyond what every engine can, if the program is one that we know. What the program at hand
    /// can really do is found out by [`Engine::judge`].
    fn abilities(&self) -> AbilitySet;

    /// How it speaks when it is given one turn.
    fn speech(&self) -> OutputFormat {
        OutputFormat::Lines
    }

    /// How it asks the person something at the end of a turn.
    fn asking(&self) -> QuestionStyle {
        QuestionStyle::InText
    }

    /// What the adapter was made and tested from.
    fn evidence(&self) -> AdapterBasis {
        AdapterBasis::Recorded
    }

    /// How it is called where nobody configured anything.
    fn installation(&self) -> EngineInstallation;

    /// The commands that tell whether the program is there, which version it is and whether it can resume (A3).
    /// They are cheap, start no model call and change nothing.
    fn checks(&self, installation: &EngineInstallation) -> Vec<ProbeCommand>;

    /// What those commands showed, in the same order.
    fn judge(&self, observed: &[ProbeResult]) -> EngineHealth;

    /// The handle of a session that will be called `fresh` (a new UUID), for engines that let us choose (A6).
    /// Then the handle is durable before the process starts.
    fn name_session(&self, fresh: &str) -> Option<EngineSessionHandle>;

    /// How the process of a turn is started. The same order gives the same launch.
    fn launch(&self, order: &LaunchContext<'_>) -> Result<ProcessSpec, UnsupportedOperation>;

    /// What a process that was started by this order says, and how it is spoken to.
    ///
    /// After a restart a new one is made and fed everything from the first byte.
    fn interpreter(&self, order: &LaunchContext<'_>) -> Box<dyn ProcessInterpreter>;

    /// What of it is isolated from Abide's own files.
    fn isolation_scope(&self) -> IsolationScope {
        IsolationScope::Process
    }

    /// Where in a workspace this engine looks for skills: a relative folder in which each skill is a folder.
    fn skills_folder(&self) -> &str;
}

/// How an engine speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputFormat {
    /// In lines that each mean something: what is no such line is unknown, and kept.
    Lines,
    /// In plain text: whatever it prints is its answer.
    Prose,
}

/// How an engine asks the person something at the end of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuestionStyle {
    /// In its answer, in a form that it has to be told in its prompt.
    InText,
    /// By a way of its own that it knows. What the person says reaches it word for word.
    ByItself,
}

/// What an adapter was made and tested from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterBasis {
    /// The bytes of the real program.
    Recorded,
    /// What is documented of it. No program was at hand, so nothing is known for certain, and people are told.
    Documented,
}
