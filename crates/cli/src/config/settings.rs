//! All settings as plain values: the shape of `config.toml`.
//!
//! A new key is a field here with a doc comment. Its environment variable, its schema, `config show` and suggestions
//! are derived from it. Values are parsed and checked in the sibling modules.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use abide_domain::deadline::RECOVERY_TIMEOUT;
use abide_engines::{
    asking::patch::ARTIFACTS_FOLDER,
    catalogue::{AgentProtocol as Spoken, EngineConfig},
};
use abide_host::{control_groups::GroupOptions, retention::RetentionPeriods};
use abide_observe::logs::{LogLineFormat, LogOptions};
use abide_ports::engine::IsolationMode as Mechanism;
use abide_terminal::TerminalLimits;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tracing::level_filters::LevelFilter;

/// The configuration of Abide: `config.toml` in its home.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Configuration of Abide")]
pub struct CliConfig {
    /// The address and port that the daemon listens on; 127.0.0.1:4870 unless set.
    #[schemars(with = "String")]
    pub listen: SocketAddr,
    /// The URL of the store, such as sqlite:/var/lib/abide/abide.db or postgres://user@host/database; an SQLite
    /// file in the home unless set.
    pub store: String,
    /// The HTTP interface.
    pub http: ListenerSettings,
    /// How much runs at a time.
    pub slots: SlotSettings,
    /// Terminal sessions.
    pub terminal: TerminalSettings,
    /// How agents are kept from Abide's own files.
    pub sandbox: SandboxSettings,
    /// The agent programs, by name.
    pub engines: BTreeMap<String, AgentProgramSettings>,
    /// The log.
    pub log: LogSettings,
    /// After how many seconds of silence a working turn is called stalled; 600 unless set. It is shown and counted,
    /// nothing is done about it.
    #[schemars(range(min = 1))]
    pub stall_after_sec: u32,
    /// Turns whose process cannot be reached.
    pub recovery: RecoverySettings,
    /// Limits on the machine's resources.
    pub limits: LimitSettings,
    /// How long what finished runs leave behind is kept.
    pub retention: RetentionSettings,
    /// Where traces are sent.
    pub otel: OtelSettings,
}

/// Limits on the machine's resources.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitSettings {
    /// How many bytes must be free on the file systems of the home and of a run's workspace; 100 MiB unless set, 0 is
    /// no limit. Below that no run starts, and new runs and messages are refused with RESOURCE_PRESSURE. Answers to
    /// open questions are still taken.
    pub min_free_bytes: u64,
    /// How many bytes of memory the processes of one run, or of one terminal session, may use together; 0 is no limit,
    /// which holds unless set. Beyond it the kernel ends one of them. Needs control groups, see `sandbox.cgroup`.
    pub memory_max_bytes: u64,
    /// How many processes and threads one run, or one terminal session, may have; 0 is no limit, which holds unless
    /// set. Beyond it no process of the run can start another. Needs control groups, see `sandbox.cgroup`.
    pub pids_max: u64,
}

/// Turns whose process cannot be reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecoverySettings {
    /// For how many seconds such a turn is looked for, over all times that contact with its process is lost, before the
    /// person is told that its outcome is unknown; 300 unless set.
    #[schemars(range(min = 1))]
    pub max_sec: u32,
}

/// The HTTP interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListenerSettings {
    /// Whether it may listen on an address that other machines can reach. The token is then all that protects this one,
    /// and it goes over the network unencrypted unless a proxy sees to that.
    pub allow_remote: bool,
    /// Names by which the daemon may be called besides localhost and its own address, such as a proxy's.
    pub allowed_hosts: Vec<String>,
    /// The largest JSON body that is taken, in bytes; 1 MiB unless set.
    #[schemars(range(min = 1024))]
    pub max_body_bytes: usize,
    /// The most connections at a time; 1024 unless set.
    #[schemars(range(min = 1))]
    pub max_connections: usize,
    /// The most event streams and WebSockets at a time; 512 unless set.
    pub max_streams: usize,
    /// How many requests a second one client may make in the long run, with twice as many at once; 1000 unless set, and
    /// 0 is any number.
    pub requests_per_second: u32,
}

impl ListenerSettings {
    /// Converts to the settings of the HTTP interface.
    pub fn http_config(&self) -> abide_api::http::HttpConfig {
        let Self {
            allow_remote: _,
            allowed_hosts,
            max_body_bytes,
            max_connections,
            max_streams,
            requests_per_second,
        } = self;
        abide_api::http::HttpConfig {
            allowed_hosts: allowed_hosts.clone(),
            max_body_bytes: *max_body_bytes,
            max_connections: *max_connections,
            max_streams: *max_streams,
            requests_per_second: *requests_per_second,
            ..abide_api::http::HttpConfig::with_defaults(ARTIFACTS_FOLDER)
        }
    }
}

/// How much runs at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SlotSettings {
    /// The most turns that work at a time. Unless set, two for each core but no more than one for each 2 GiB of
    /// memory, and at least one.
    #[schemars(range(min = 1, max = 10_000))]
    pub max_running: u32,
}

/// Terminal sessions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TerminalSettings {
    /// The most sessions that live at a time; 1000 unless set.
    pub max_sessions: usize,
    /// The bytes of output that are kept on disk for each session; 32 MiB unless set.
    pub spool_bytes: u64,
    /// After how many milliseconds an idle session is ended; a day unless set, 0 is never. Sessions of `abide sessions new` stay.
    pub idle_ms: u64,
    /// For how many milliseconds an ended session is remembered; ten minutes unless set.
    pub remember_ms: u64,
    /// How often idle, ended and orphaned sessions are looked for, in milliseconds.
    pub housekeeping_ms: u64,
    /// The shell of sessions that name none: a path, or a name that is found by PATH; /bin/sh unless set.
    #[schemars(length(min = 1))]
    pub shell: String,
}

/// How agents are kept from Abide's own files: its token, its database, the keepers of other runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SandboxSettings {
    /// The mechanism, for engines and runs that name none; auto unless set.
    pub isolation: IsolationSetting,
    /// The control group (cgroup v2) below which each run and terminal session gets one of its own: `auto`, `off`, or
    /// the absolute path of a group that this user may write to. With `auto`, which holds unless set, the group that the
    /// service manager delegated is used; where there is none, processes are found by their parents.
    #[schemars(length(min = 1))]
    pub cgroup: String,
}

/// A mechanism that hides the home from agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum IsolationSetting {
    /// A namespace where the machine allows one; otherwise none, with a warning.
    Auto,
    /// A namespace, or no run.
    Namespace,
    /// Landlock, or no run.
    Landlock,
    /// None.
    Off,
}

impl IsolationSetting {
    fn mechanism(self) -> Mechanism {
        match self {
            Self::Auto => Mechanism::Auto,
            Self::Namespace => Mechanism::Namespace,
            Self::Landlock => Mechanism::Landlock,
            Self::Off => Mechanism::Off,
        }
    }
}

/// An agent program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AgentProgramSettings {
    /// The program and the arguments that always come first, in place of the usual ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Vec<String>", length(min = 1))]
    pub command: Option<Vec<String>>,
    /// Arguments for every turn.
    pub args: Vec<String>,
    /// Environment variables on top of those that are passed. Their values are never shown.
    pub env: BTreeMap<String, String>,
    /// Which variables of the daemon's environment it gets besides PATH, HOME, the language, proxies and certificates: names,
    /// or beginnings followed by `*`. Unless set, those with the engine's own keys and settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Vec<String>")]
    pub pass_env: Option<Vec<String>>,
    /// How it is kept from Abide's own files, over `sandbox.isolation`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "IsolationSetting")]
    pub isolation: Option<IsolationSetting>,
    /// Whether it can be used.
    pub enabled: bool,
    /// The protocol of an engine that is not built in, which also needs a command.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ProtocolSetting")]
    pub protocol: Option<ProtocolSetting>,
}

/// A protocol that engines which are not built in may speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProtocolSetting {
    /// The Agent Client Protocol.
    Acp,
}

/// The log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogSettings {
    /// The least that is logged; info unless set.
    pub level: LogLevel,
    /// How a line is written; text unless set.
    pub format: LogFormat,
    /// The bytes after which a detached daemon begins a new file in `logs`; 10 MiB unless set.
    #[schemars(range(min = 4_096))]
    pub max_bytes: u64,
    /// How many such files are kept, the newest included; 5 unless set.
    #[schemars(range(min = 1, max = 1_000))]
    pub files: u32,
}

/// How a line of the log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// How long what finished runs leave behind is kept. The journal, and with it every question and answer, is kept for
/// ever; so is everything of a run that works or waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RetentionSettings {
    /// After how many days the private files and the output of a finished run's processes are removed; 7 unless set,
    /// 0 is never.
    pub private_days: u32,
    /// After how many days a finished run's workspace is removed, if it is one that Abide made for it below
    /// `workspaces`; 30 unless set, 0 is never. A directory that its owner named is never removed.
    pub workspace_days: u32,
    /// How often, in seconds, they are looked for; 3600 unless set.
    #[schemars(range(min = 1))]
    pub every_sec: u32,
}

/// Where traces are sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OtelSettings {
    /// The address of an OpenTelemetry collector that takes OTLP as JSON over plain HTTP, such as
    /// http://127.0.0.1:4318; nothing is sent unless set. Spans go to its path /v1/traces.
    pub endpoint: String,
}

/// How much a line of the log matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    /// An operator must act.
    Error,
    /// We coped.
    Warn,
    /// Once in a run's life.
    Info,
    /// Each transition.
    Debug,
    /// Bytes.
    Trace,
}

/// Facts of the machine that the defaults depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineFacts {
    pub home: PathBuf,
    /// Number of cores available to this process.
    pub cores: u32,
    /// Bytes of memory available to this process.
    pub memory: u64,
}

impl CliConfig {
    /// Returns the defaults for this machine.
    pub fn defaults_for(facts: &MachineFacts) -> Self {
        let TerminalLimits {
            max_sessions,
            spool_bytes,
            idle_timeout_ms: idle_ms,
            ended_retention_ms: remember_ms,
            housekeeping_interval_ms: housekeeping_ms,
            ..
        } = TerminalLimits::default();
        let http = abide_api::http::HttpConfig::with_defaults(ARTIFACTS_FOLDER);
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 4870)),
            store: format!("sqlite:{}", facts.home.join("abide.db").display()),
            http: ListenerSettings {
                allow_remote: false,
                allowed_hosts: http.allowed_hosts,
                max_body_bytes: http.max_body_bytes,
                max_connections: http.max_connections,
                max_streams: http.max_streams,
                requests_per_second: http.requests_per_second,
            },
            slots: SlotSettings { max_running: default_slots(facts) },
            terminal: TerminalSettings {
                max_sessions,
                spool_bytes,
                idle_ms,
                remember_ms,
                housekeeping_ms,
                shell: "/bin/sh".to_owned(),
            },
            sandbox: SandboxSettings { isolation: IsolationSetting::Auto, cgroup: "auto".to_owned() },
            engines: BTreeMap::new(),
            log: LogSettings {
                level: LogLevel::Info,
                format: LogFormat::Text,
                max_bytes: 10 << 20,
                files: 5,
            },
            stall_after_sec: 600,
            recovery: RecoverySettings { max_sec: RECOVERY_TIMEOUT.0 },
            limits: LimitSettings { min_free_bytes: 100 << 20, memory_max_bytes: 0, pids_max: 0 },
            retention: RetentionSettings { private_days: 7, workspace_days: 30, every_sec: 3_600 },
            otel: OtelSettings { endpoint: String::new() },
        }
    }

    /// Returns the default isolation of engines.
    pub fn isolation(&self) -> Mechanism {
        self.sandbox.isolation.mechanism()
    }

    /// Converts the settings of control groups.
    pub fn group_options(&self) -> GroupOptions {
        let LimitSettings { min_free_bytes: _, memory_max_bytes, pids_max } = self.limits;
        GroupOptions { cgroup: self.sandbox.cgroup.clone(), memory_max_bytes, pids_max }
    }

    /// Converts the engine settings for the catalogue.
    pub fn engine_configs(&self) -> BTreeMap<String, EngineConfig> {
        let convert = |engine: &AgentProgramSettings| EngineConfig {
            command: engine.command.clone(),
            args: engine.args.clone(),
            env: engine.env.clone(),
            pass_env: engine.pass_env.clone(),
            isolation: engine.isolation.map(IsolationSetting::mechanism),
            disabled: !engine.enabled,
            protocol: engine.protocol.map(|protocol| match protocol {
                ProtocolSetting::Acp => Spoken::Acp,
            }),
        };
        self.engines.iter().map(|(name, engine)| (name.clone(), convert(engine))).collect()
    }
}

impl LogSettings {
    /// Converts to the options of the log.
    pub(crate) fn options(&self) -> LogOptions {
        let level = match self.level {
            LogLevel::Error => LevelFilter::ERROR,
            LogLevel::Warn => LevelFilter::WARN,
            LogLevel::Info => LevelFilter::INFO,
            LogLevel::Debug => LevelFilter::DEBUG,
            LogLevel::Trace => LevelFilter::TRACE,
        };
        let format = match self.format {
            LogFormat::Text => LogLineFormat::Text,
            LogFormat::Json => LogLineFormat::Json,
        };
        LogOptions { level, format, max_file_bytes: self.max_bytes, max_files: self.files }
    }
}

impl RetentionSettings {
    /// Converts to the periods of the retention task.
    pub(crate) fn periods(&self) -> RetentionPeriods {
        let Self { private_days, workspace_days, every_sec } = *self;
        RetentionPeriods { private_days, workspace_days, every_sec }
    }
}

impl TerminalSettings {
    /// Returns the limits of the session pool.
    pub fn limits(&self) -> TerminalLimits {
        TerminalLimits {
            max_sessions: self.max_sessions,
            spool_bytes: self.spool_bytes,
            idle_timeout_ms: self.idle_ms,
            ended_retention_ms: self.remember_ms,
            housekeeping_interval_ms: self.housekeeping_ms,
            ..TerminalLimits::default()
        }
    }
}

impl Default for AgentProgramSettings {
    fn default() -> Self {
        Self {
            command: None,
            args: vec![],
            env: BTreeMap::new(),
            pass_env: None,
            isolation: None,
            enabled: true,
            protocol: None,
        }
    }
}

/// Default number of slots. A running agent mostly waits for its model, so a core carries two. Each agent can use 1 to
/// 2 GB of memory, so memory limits the number too.
fn default_slots(facts: &MachineFacts) -> u32 {
    const MEMORY_PER_SLOT_BYTES: u64 = 2 << 30;
    let by_memory = u32::try_from(facts.memory / MEMORY_PER_SLOT_BYTES).unwrap_or(u32::MAX);
    facts.cores.saturating_mul(2).min(by_memory).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(cores: u32, gibibytes: u64) -> u32 {
        default_slots(&MachineFacts { home: PathBuf::new(), cores, memory: gibibytes << 30 })
    }

    #[test]
    fn slots_follow_the_cores_unless_memory_is_short_and_are_never_none() {
        assert_eq!([slots(2, 24), slots(16, 16), slots(1, 1), slots(0, 0)], [4, 8, 1, 1]);
    }
}
