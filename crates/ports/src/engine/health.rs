//! Health checks of an engine's program (A3).

use abide_domain::{
    engine::{EngineResumeCapability, ProbeMethod, ProfileKind},
    failure::RunFailure,
};

use super::AbilitySet;

/// Timeout of a probe command. It is generous because a busy machine can need most of it.
pub(super) const PROBE_TIMEOUT_MS: u64 = 60_000;

/// A command that probes an engine's program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeCommand {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Variables that are added to the environment.
    pub env: Vec<(String, String)>,
    /// Standard input. It is closed when the command has answered.
    pub stdin: Vec<u8>,
    /// The command is finished, and terminated, when its output contains this text. Without a text, it is finished when
    /// it exits.
    pub stop_at_output: Option<String>,
    /// Timeout in milliseconds.
    pub timeout_ms: u64,
}

impl ProbeCommand {
    /// A command that runs until it exits.
    pub fn to_exit(argv: impl IntoIterator<Item = String>) -> Self {
        Self {
            argv: argv.into_iter().collect(),
            env: vec![],
            stdin: vec![],
            stop_at_output: None,
            timeout_ms: PROBE_TIMEOUT_MS,
        }
    }
}

/// The result of a probe command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    /// The program ran.
    Ran {
        /// None if the program was terminated after it had answered.
        code: Option<i32>,
        stdout: String,
        stderr: String,
    },
    /// The program does not exist or cannot be executed.
    NotFound {
        /// The error of the operating system.
        reason: String,
    },
    /// The program did not answer before the timeout.
    TimedOut,
    /// The operating system could not run it; a later try may succeed.
    Unavailable {
        /// The error of the operating system.
        reason: String,
    },
}

impl ProbeResult {
    /// The first word of the output that looks like a version.
    pub fn version(&self) -> Option<String> {
        let is_version =
            |word: &&str| word.starts_with(|first: char| first.is_ascii_digit()) && word.contains('.');
        self.success()?.split_whitespace().find(is_version).map(str::to_owned)
    }

    /// Standard output if the program exited successfully.
    pub fn success(&self) -> Option<&str> {
        match self {
            Self::Ran { code: None | Some(0), stdout, .. } => Some(stdout),
            Self::Ran { .. } | Self::NotFound { .. } | Self::TimedOut | Self::Unavailable { .. } => None,
        }
    }
}

/// The result of all checks of one program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineHealth {
    /// The version that the program reported.
    pub version: Option<String>,
    /// The reason why the program cannot be used, and the remedy. None if it can be used.
    pub failure: Option<RunFailure>,
    /// Whether sessions can be resumed, and how that was determined.
    pub resume: EngineResumeCapability,
    /// The abilities of the installed program.
    pub abilities: AbilitySet,
}

impl EngineHealth {
    /// The result if no check has run.
    pub fn unchecked() -> Self {
        Self {
            version: None,
            failure: None,
            resume: EngineResumeCapability {
                supported: false,
                probe_method: ProbeMethod::Command,
                detail: "not checked".to_owned(),
            },
            abilities: AbilitySet::NONE,
        }
    }

    /// The wait mode that follows (A3). A program that cannot resume is kept running; it is not refused.
    pub fn profile_kind(&self) -> ProfileKind {
        if self.resume.supported { ProfileKind::Resumable } else { ProfileKind::StickyProcess }
    }
}
