//! Whether an engine's program can be used, and how that is found out (A3).

use abide_domain::{
    engine::{EngineResumeCapability, ProbeMethod, ProfileKind},
    failure::RunFailure,
};

use super::AbilitySet;

/// How long a command may take that only shows something about the program: a busy machine may need most of it.
pub(super) const CHECK_PATIENCE_MS: u64 = 60_000;

/// A command that shows something about the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeCommand {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Set on top of the environment.
    pub env: Vec<(String, String)>,
    /// What it reads; then its input ends once it has answered.
    pub stdin: Vec<u8>,
    /// It is answered, and ended, as soon as its output contains this; otherwise when it exits.
    pub until: Option<String>,
    /// How long it may take.
    pub patience_ms: u64,
}

impl ProbeCommand {
    /// A command that is run to its end.
    pub fn command(argv: impl IntoIterator<Item = String>) -> Self {
        Self {
            argv: argv.into_iter().collect(),
            env: vec![],
            stdin: vec![],
            until: None,
            patience_ms: CHECK_PATIENCE_MS,
        }
    }
}

/// What a check showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    /// It ran.
    Ran {
        /// Its exit code; none if it was ended after it had answered.
        code: Option<i32>,
        /// What it printed.
        stdout: String,
        /// What it complained about.
        stderr: String,
    },
    /// The program is not there or cannot be executed.
    NotFound {
        /// What the system said.
        reason: String,
    },
    /// It gave no answer in time.
    TimedOut,
    /// The system could not run it at that moment.
    Unavailable {
        /// What the system said.
        reason: String,
    },
}

impl ProbeResult {
    /// The version that it told: the first word that looks like one.
    pub fn version(&self) -> Option<String> {
        let looks_like_one =
            |word: &&str| word.starts_with(|first: char| first.is_ascii_digit()) && word.contains('.');
        self.success()?.split_whitespace().find(looks_like_one).map(str::to_owned)
    }

    /// What it printed, if it ran and did not fail.
    pub fn success(&self) -> Option<&str> {
        match self {
            Self::Ran { code: None | Some(0), stdout, .. } => Some(stdout),
            Self::Ran { .. } | Self::NotFound { .. } | Self::TimedOut | Self::Unavailable { .. } => None,
        }
    }
}

/// Whether a program can be used, and for what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineHealth {
    /// Its version, as it says itself.
    pub version: Option<String>,
    /// Why it cannot be used, with what to do about it.
    pub trouble: Option<RunFailure>,
    /// Whether it can resume, and how that was seen.
    pub resume: EngineResumeCapability,
    /// What this program, as found, can do.
    pub abilities: AbilitySet,
}

impl EngineHealth {
    /// Nothing was seen of it.
    pub fn unseen() -> Self {
        Self {
            version: None,
            trouble: None,
            resume: EngineResumeCapability {
                supported: false,
                probe_method: ProbeMethod::Command,
                detail: "not looked at".to_owned(),
            },
            abilities: AbilitySet::NONE,
        }
    }

    /// The way of waiting that follows (A3). A program that cannot resume is held; it is never a reason to refuse.
    pub fn profile_kind(&self) -> ProfileKind {
        if self.resume.supported { ProfileKind::Resumable } else { ProfileKind::StickyProcess }
    }
}
