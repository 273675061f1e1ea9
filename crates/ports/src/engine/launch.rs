//! How the process of a turn is started.

use std::{collections::BTreeMap, fmt};

use abide_domain::{
    effect::LaunchSession,
    engine::ProfileKind,
    settings::{ExecutionMode, RunSettings},
    time::Timestamp,
};

use crate::secret::masked;

/// How a program is called on this machine.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct EngineInstallation {
    /// The program and the arguments that always come first.
    pub command: Vec<String>,
    /// Arguments that the owner wants in every turn; they come where the adapter's own options stand.
    pub args: Vec<String>,
    /// Set on top of the environment.
    pub env: BTreeMap<String, String>,
    /// Which variables of the environment it gets besides those that every process gets: names, or beginnings followed by
    /// `*`.
    pub pass_env: Vec<String>,
    /// How it is isolated unless a run says so itself.
    pub isolation: IsolationMode,
}

impl EngineInstallation {
    /// A program that is found by its name.
    pub fn named(program: &str) -> Self {
        Self { command: vec![program.to_owned()], ..Self::default() }
    }

    /// The same program with these variables of the environment.
    #[must_use]
    pub fn passing(mut self, pass_env: &[&str]) -> Self {
        self.pass_env = pass_env.iter().map(|name| (*name).to_owned()).collect();
        self
    }
}

/// Everything on which the start of a process depends. All of it is durable but the values of variables, so that turn 2 is
/// started as turn 1 was (A9) and a restarted daemon can interpret what an earlier one started.
#[derive(Clone, Copy, Debug)]
pub struct LaunchContext<'a> {
    /// How the program is called.
    pub installation: &'a EngineInstallation,
    /// How the run waits.
    pub kind: ProfileKind,
    /// The session that the turn belongs to.
    pub session: &'a LaunchSession,
    /// What the engine is told.
    pub prompt: &'a str,
    /// The directory that every turn of the run works in.
    pub workspace: &'a str,
    /// A directory of this run's own outside the workspace, where [`ProcessSpec::files`] are put.
    pub private: &'a str,
    /// Whether and how the run may ask.
    pub mode: ExecutionMode,
    /// The model, if not the engine's own choice.
    pub model: Option<&'a str>,
    /// What the engine may do to the machine, if not as its own configuration says.
    pub sandbox: Option<SandboxMode>,
    /// How what it starts is isolated, for engines that see to that themselves ([`IsolationScope::Tools`]).
    pub isolation: IsolationMode,
    /// The run's copy of its skill, as a folder from the workspace.
    pub skill: Option<&'a str>,
    /// When the session was begun, if it is not new.
    pub session_since: Option<Timestamp>,
    /// What the probe found out about resuming, in the adapter's own words, as the run's profile keeps it.
    pub resume_detail: &'a str,
    /// How the prompt came about.
    pub prompted: PromptSource,
}

/// How a prompt came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptSource {
    /// Somebody said something.
    ByMessage,
    /// It is the answer to a question: the engine's own, or one of Abide's about how to go on.
    ByReply,
}

/// What an engine may do to the machine. Carried over to every turn, never widened (A4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum SandboxMode {
    /// Look, change nothing.
    ReadOnly,
    /// Change files in the workspace.
    WorkspaceWrite,
    /// Anything.
    FullAccess,
}

impl SandboxMode {
    /// The names of [`RunSettings::sandbox`], as people write them.
    pub const NAMES: [&'static str; 3] = ["read-only", "workspace-write", "danger-full-access"];

    /// The sandbox of that name.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "read-only" => Some(Self::ReadOnly),
            "workspace-write" => Some(Self::WorkspaceWrite),
            "danger-full-access" => Some(Self::FullAccess),
            _ => None,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReadOnly => "read-only",
            Self::WorkspaceWrite => "workspace-write",
            Self::FullAccess => "danger-full-access",
        }
    }

    /// The sandbox of a run; none if its settings leave that to the engine's own configuration. A name that is not
    /// known must be refused when the run is created: here it is the narrowest.
    pub fn of(settings: &RunSettings) -> Option<Self> {
        settings.sandbox.as_deref().map(|name| Self::named(name).unwrap_or(Self::ReadOnly))
    }
}

/// How an agent is kept from Abide's own files: its token, its database, the keepers of other runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum IsolationMode {
    /// A namespace where the machine allows one; otherwise none, with a warning.
    #[default]
    Auto,
    /// A namespace in which they do not exist.
    Namespace,
    /// Landlock, which forbids to open them.
    Landlock,
    /// None.
    Off,
}

impl IsolationMode {
    /// The names of [`RunSettings::isolation`], as people write them.
    pub const NAMES: [&'static str; 4] = ["auto", "namespace", "landlock", "off"];

    /// The isolation of that name.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "auto" => Some(Self::Auto),
            "namespace" => Some(Self::Namespace),
            "landlock" => Some(Self::Landlock),
            "off" => Some(Self::Off),
            _ => None,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Namespace => "namespace",
            Self::Landlock => "landlock",
            Self::Off => "off",
        }
    }

    /// The isolation of a run that is called like this: its own, or that of the configuration when it began. A name that is
    /// not known must be refused when the run is created: here it is the strictest.
    pub fn of(settings: &RunSettings, configured: Self) -> Self {
        settings.isolation.as_deref().map_or(configured, |name| Self::named(name).unwrap_or(Self::Namespace))
    }
}

/// What of an engine is isolated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IsolationScope {
    /// Its process, and with it everything that this starts.
    Process,
    /// What it starts. The process itself is Abide's own code, needs its files, and sees to the rest.
    Tools,
    /// Nothing: it is Abide's own code and starts nothing.
    Nothing,
}

/// A process to be started.
#[derive(Clone, PartialEq, Eq)]
pub struct ProcessSpec {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Set on top of the environment.
    pub env: Vec<(String, String)>,
    /// Taken out of the environment.
    pub without_env: Vec<String>,
    /// Added, after a blank, to what these variables hold by then: for lists of options such as `NODE_OPTIONS`, which may
    /// be the owner's.
    pub appended_env: Vec<(String, String)>,
    /// Written before the start.
    pub files: Vec<PrivateFile>,
    /// What it reads.
    pub stdin: ProcessStdin,
    /// Not to be started before then.
    pub not_before: Option<Timestamp>,
    /// A directory of keepers that the process has of its own, below the home: `agents/ID/sessions`. They outlive it,
    /// because the next turn goes on with them, and are ended with the run, when `agents/ID` is deleted. Everything else
    /// that it started ends with it.
    pub outliving: Option<String>,
}

/// A file in the run's private directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrivateFile {
    /// Its path below [`LaunchContext::private`].
    pub path: String,
    /// What it holds.
    pub contents: String,
}

/// What a process reads on its standard input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessStdin {
    /// This, and then the end of file.
    Whole(Vec<u8>),
    /// This first, and later what the interpreter wants to be written.
    Open(Vec<u8>),
}

// The values of variables are secrets: where these are printed, only the names are shown.

impl fmt::Debug for EngineInstallation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { command, args, env, pass_env, isolation } = self;
        let mut shown = f.debug_struct("EngineInstallation");
        shown.field("command", command).field("args", args).field("env", &masked(env));
        shown.field("pass_env", pass_env).field("isolation", isolation).finish()
    }
}

impl fmt::Debug for ProcessSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { argv, env, without_env, appended_env, files, stdin, not_before, outliving } = self;
        let files: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
        let env = masked(env.iter().map(|(name, value)| (name, value)));
        let mut shown = f.debug_struct("ProcessSpec");
        shown.field("argv", argv).field("env", &env).field("without_env", without_env);
        shown.field("appended_env", appended_env);
        shown.field("files", &files).field("stdin", stdin).field("not_before", not_before);
        shown.field("outliving", outliving).finish()
    }
}
