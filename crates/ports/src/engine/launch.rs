//! The parameters of a launch: how the process of a turn is started.

use std::{collections::BTreeMap, fmt};

use abide_domain::{
    effect::LaunchSession,
    engine::ProfileKind,
    settings::{ExecutionMode, RunSettings},
    time::Timestamp,
};

use crate::secret::masked;

/// The command, environment and isolation of an engine's program on this machine.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct EngineInstallation {
    /// The program and its leading arguments.
    pub command: Vec<String>,
    /// Arguments that the owner configured for every turn. They are inserted at the place of the adapter's own options.
    pub args: Vec<String>,
    /// Variables that are added to the environment.
    pub env: BTreeMap<String, String>,
    /// Variables that are inherited besides those that every process inherits: names, or prefixes followed by `*`.
    pub pass_env: Vec<String>,
    /// The isolation for runs that do not set their own.
    pub isolation: IsolationMode,
}

impl EngineInstallation {
    /// A program that is looked up in `PATH`.
    pub fn for_program(program: &str) -> Self {
        Self { command: vec![program.to_owned()], ..Self::default() }
    }

    /// The same program with these inherited variables.
    #[must_use]
    pub fn with_pass_env(mut self, pass_env: &[&str]) -> Self {
        self.pass_env = pass_env.iter().map(|name| (*name).to_owned()).collect();
        self
    }
}

/// All parameters of a launch. They are durable, except the values of variables. Turn 2 is therefore started as turn 1
/// was (A9), and a restarted daemon can interpret a process that an earlier one started.
#[derive(Clone, Copy, Debug)]
pub struct LaunchContext<'a> {
    pub installation: &'a EngineInstallation,
    /// The wait mode of the run.
    pub kind: ProfileKind,
    pub session: &'a LaunchSession,
    pub prompt: &'a str,
    /// The working directory of all turns of the run.
    pub workspace: &'a str,
    /// A directory of this run outside the workspace, for [`ProcessSpec::files`].
    pub private_dir: &'a str,
    /// Whether and how the run may ask questions.
    pub mode: ExecutionMode,
    /// None selects the engine's default.
    pub model: Option<&'a str>,
    /// None leaves the sandbox to the engine's own configuration.
    pub sandbox: Option<SandboxMode>,
    /// The isolation of child processes, for engines that isolate them themselves ([`IsolationScope::Tools`]).
    pub isolation: IsolationMode,
    /// The run's copy of its skill: a folder relative to the workspace.
    pub skill: Option<&'a str>,
    /// The time at which the session began. None for a new session.
    pub session_started_at: Option<Timestamp>,
    /// The result of the resume probe, in a format of the adapter, as stored in the run's profile.
    pub resume_detail: &'a str,
    pub prompt_source: PromptSource,
}

/// The origin of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptSource {
    /// A message to the run.
    Message,
    /// The answer to a question, either the engine's or one of Abide's about how to continue.
    Reply,
}

/// The engine's permissions on the machine. They apply to every turn and are never widened (A4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum SandboxMode {
    /// Files can be read; nothing can be written.
    ReadOnly,
    /// Writing files in the workspace.
    WorkspaceWrite,
    /// No restrictions.
    FullAccess,
}

impl SandboxMode {
    /// The values of [`RunSettings::sandbox`].
    pub const NAMES: [&'static str; 3] = ["read-only", "workspace-write", "danger-full-access"];

    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "read-only" => Some(Self::ReadOnly),
            "workspace-write" => Some(Self::WorkspaceWrite),
            "danger-full-access" => Some(Self::FullAccess),
            _ => None,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::ReadOnly => "read-only",
            Self::WorkspaceWrite => "workspace-write",
            Self::FullAccess => "danger-full-access",
        }
    }

    /// The sandbox of a run. None if its settings leave it to the engine's own configuration. Unknown names must be
    /// refused when the run is created; here they select the narrowest sandbox.
    pub fn of(settings: &RunSettings) -> Option<Self> {
        settings.sandbox.as_deref().map(|name| Self::from_name(name).unwrap_or(Self::ReadOnly))
    }
}

/// The isolation of an agent from Abide's own files: its token, its database and the keepers of other runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum IsolationMode {
    /// A namespace if the machine supports one, otherwise no isolation, with a warning.
    #[default]
    Auto,
    /// A mount namespace in which the files do not exist.
    Namespace,
    /// Landlock rules that forbid opening the files.
    Landlock,
    Off,
}

impl IsolationMode {
    /// The values of [`RunSettings::isolation`].
    pub const NAMES: [&'static str; 4] = ["auto", "namespace", "landlock", "off"];

    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "auto" => Some(Self::Auto),
            "namespace" => Some(Self::Namespace),
            "landlock" => Some(Self::Landlock),
            "off" => Some(Self::Off),
            _ => None,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Namespace => "namespace",
            Self::Landlock => "landlock",
            Self::Off => "off",
        }
    }

    /// Whether this isolation may protect less than another one. `Auto` may end in no isolation, and `Landlock` protects
    /// less than a namespace, so each of the two may protect less than the other.
    pub fn may_be_weaker_than(self, other: Self) -> bool {
        match (other, self) {
            (Self::Off, Self::Auto | Self::Namespace | Self::Landlock | Self::Off)
            | (Self::Auto | Self::Namespace | Self::Landlock, Self::Namespace)
            | (Self::Auto, Self::Auto)
            | (Self::Landlock, Self::Landlock) => false,
            (Self::Auto, Self::Landlock | Self::Off)
            | (Self::Landlock, Self::Auto | Self::Off)
            | (Self::Namespace, Self::Auto | Self::Landlock | Self::Off) => true,
        }
    }

    /// The isolation of a run: its own setting, or the one configured when it began. Unknown names must be refused when
    /// the run is created; here they select the strictest isolation.
    pub fn of(settings: &RunSettings, configured: Self) -> Self {
        settings
            .isolation
            .as_deref()
            .map_or(configured, |name| Self::from_name(name).unwrap_or(Self::Namespace))
    }
}

/// The part of an engine to which isolation applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IsolationScope {
    /// The engine's process and all its descendants.
    Process,
    /// The processes that the engine starts. The engine itself is part of Abide, needs Abide's files, and isolates its
    /// child processes.
    Tools,
    /// Nothing. The engine is part of Abide and starts no processes.
    None,
}

/// The specification of a process by its engine adapter: program, arguments, environment and input. The daemon adds the
/// surroundings in [`StartRequest`](crate::processes::StartRequest).
#[derive(Clone, PartialEq, Eq)]
pub struct ProcessSpec {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Variables that are added to the environment.
    pub env: Vec<(String, String)>,
    /// Variables that are removed from the environment.
    pub removed_env: Vec<String>,
    /// Appended, after a space, to the final values of these variables. For lists of options such as `NODE_OPTIONS`,
    /// which the owner may have set.
    pub appended_env: Vec<(String, String)>,
    /// Files that are written before the start.
    pub files: Vec<PrivateFile>,
    pub stdin: ProcessStdin,
    /// The earliest start time.
    pub not_before: Option<Timestamp>,
    /// A directory with keepers of the process itself, relative to the home: `agents/ID/sessions`. These keepers
    /// survive the process, because the next turn uses them. They end with the run, when `agents/ID` is deleted. All
    /// other descendants end with the process.
    pub surviving_keepers_dir: Option<String>,
}

/// A file in the run's private directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrivateFile {
    /// Relative to [`LaunchContext::private_dir`].
    pub relative_path: String,
    pub contents: String,
}

/// The standard input of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessStdin {
    /// These bytes, followed by end of file.
    Complete(Vec<u8>),
    /// These bytes. The input stays open for later writes of the interpreter.
    KeptOpen(Vec<u8>),
}

// Values of variables are secrets, so `Debug` shows only their names.

impl fmt::Debug for EngineInstallation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { command, args, env, pass_env, isolation } = self;
        let mut debug = f.debug_struct("EngineInstallation");
        debug.field("command", command).field("args", args).field("env", &masked(env));
        debug.field("pass_env", pass_env).field("isolation", isolation).finish()
    }
}

impl fmt::Debug for ProcessSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            argv,
            env,
            removed_env: without_env,
            appended_env,
            files,
            stdin,
            not_before,
            surviving_keepers_dir: outliving,
        } = self;
        let files: Vec<&str> = files.iter().map(|file| file.relative_path.as_str()).collect();
        let env = masked(env.iter().map(|(name, value)| (name, value)));
        let mut debug = f.debug_struct("ProcessSpec");
        debug.field("argv", argv).field("env", &env).field("without_env", without_env);
        debug.field("appended_env", appended_env);
        debug.field("files", &files).field("stdin", stdin).field("not_before", not_before);
        debug.field("outliving", outliving).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_namespace_is_as_strict_as_every_other_isolation() {
        use IsolationMode::{Auto, Landlock, Namespace, Off};
        let weaker = |other: IsolationMode| -> Vec<IsolationMode> {
            let all = [Auto, Namespace, Landlock, Off].into_iter();
            all.filter(|mode| mode.may_be_weaker_than(other)).collect()
        };
        assert_eq!(weaker(Namespace), [Auto, Landlock, Off]);
        assert_eq!(weaker(Auto), [Landlock, Off]);
        assert_eq!(weaker(Landlock), [Auto, Off]);
        assert_eq!(weaker(Off), []);
    }
}
