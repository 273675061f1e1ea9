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
    /// The address and port that the daemon listens on; default 127.0.0.1:4870.
    #[schemars(with = "String")]
    pub listen: SocketAddr,
    /// The URL of the store, such as sqlite:/var/lib/abide/abide.db or postgres://user@host/database; default: an
    /// SQLite file in the home.
    pub store: String,
    /// The HTTP interface.
    pub http: ListenerSettings,
    /// Limits on concurrent work.
    pub slots: SlotSettings,
    /// Terminal sessions.
    pub terminal: TerminalSettings,
    /// Isolation of agents from Abide's own files.
    pub sandbox: SandboxSettings,
    /// The agent programs, by name.
    pub engines: BTreeMap<String, AgentProgramSettings>,
    /// The log.
    pub log: LogSettings,
    /// The time without output after which a running turn is shown as stalled, in seconds; default 600. The turn
    /// continues.
    #[schemars(range(min = 1))]
    pub stall_after_sec: u32,
    /// Turns whose process cannot be reached.
    pub recovery: RecoverySettings,
    /// Limits on the machine's resources.
    pub limits: LimitSettings,
    /// Retention of the files of finished runs.
    pub retention: RetentionSettings,
    /// Export of traces.
    pub otel: OtelSettings,
}

/// Limits on the machine's resources.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitSettings {
    /// The free space that is required on the file systems of the home and of a run's workspace, in bytes; default
    /// 100 MiB, 0 is no limit. With less, no run starts, and new runs and messages are refused with RESOURCE_PRESSURE.
    /// Answers to open questions are still accepted.
    pub min_free_bytes: u64,
    /// The memory limit of all processes of a run or of a terminal session together, in bytes; default 0, no limit.
    /// If it is exceeded, the kernel kills one of them. Needs control groups, see `sandbox.cgroup`.
    pub memory_max_bytes: u64,
    /// The maximum number of processes and threads of a run or of a terminal session; default 0, no limit. At the
    /// limit, no process of the run can start another. Needs control groups, see `sandbox.cgroup`.
    pub pids_max: u64,
}

/// Turns whose process cannot be reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecoverySettings {
    /// The total time of the searches for the process of a turn, in seconds; default 300. After it, the outcome of the
    /// turn is recorded as unknown and the person is informed.
    #[schemars(range(min = 1))]
    pub max_sec: u32,
}

/// The HTTP interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListenerSettings {
    /// Whether the daemon may listen on an address that other machines can reach. Only the token then protects this
    /// machine, and it is sent unencrypted unless a proxy encrypts the connection.
    pub allow_remote: bool,
    /// Host names that are accepted besides localhost and the daemon's own address, such as that of a proxy.
    pub allowed_hosts: Vec<String>,
    /// The maximum size of a JSON body in bytes; default 1 MiB.
    #[schemars(range(min = 1024))]
    pub max_body_bytes: usize,
    /// The maximum number of concurrent connections; default 1024.
    #[schemars(range(min = 1))]
    pub max_connections: usize,
    /// The maximum number of concurrent event streams and WebSockets; default 512.
    pub max_streams: usize,
    /// The average rate limit of a client in requests per second, with bursts of twice as many; default 1000, 0 is no
    /// limit.
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

/// Limits on concurrent work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SlotSettings {
    /// The maximum number of concurrent turns; default: two for each core, at most one for each 2 GiB of memory, and at
    /// least one.
    #[schemars(range(min = 1, max = 10_000))]
    pub max_running: u32,
}

/// Terminal sessions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TerminalSettings {
    /// The maximum number of living sessions; default 1000.
    pub max_sessions: usize,
    /// The output that is kept on disk for each session, in bytes; default 32 MiB.
    pub spool_bytes: u64,
    /// The time after which an idle session is ended, in milliseconds; default one day, 0 is never. Sessions of `abide
    /// sessions new` stay.
    pub idle_ms: u64,
    /// The time for which an ended session stays listed, in milliseconds; default ten minutes.
    pub remember_ms: u64,
    /// The interval of the search for idle, ended and orphaned sessions, in milliseconds.
    pub housekeeping_ms: u64,
    /// The shell of sessions that name none: a path, or a name that is searched in PATH; default /bin/sh.
    #[schemars(length(min = 1))]
    pub shell: String,
}

/// Isolation of agents from Abide's own files: its token, its database, the keepers of other runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SandboxSettings {
    /// The mechanism for engines and runs that name none; default auto.
    pub isolation: IsolationSetting,
    /// The control group (cgroup v2) below which each run and terminal session gets one of its own: `auto`, `off`, or
    /// the absolute path of a group that this user may write to. `auto`, the default, uses the group that the service
    /// manager delegated; without one, processes are found through their parents.
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
    /// The program and its leading arguments; default: the program in PATH.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Vec<String>", length(min = 1))]
    pub command: Option<Vec<String>>,
    /// Arguments for every turn.
    pub args: Vec<String>,
    /// Environment variables in addition to those that are passed. Their values are never shown.
    pub env: BTreeMap<String, String>,
    /// The variables that are passed from the daemon's environment, in addition to PATH, HOME, the locale, proxies and
    /// certificates: names, or prefixes followed by `*`; default: those with the engine's own keys and settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Vec<String>")]
    pub pass_env: Option<Vec<String>>,
    /// Its isolation from Abide's own files; overrides `sandbox.isolation`.
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

/// A protocol of engines that are not built in.
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
    /// The least important level that is logged; default info.
    pub level: LogLevel,
    /// The format of a line; default text.
    pub format: LogFormat,
    /// The size in bytes at which a daemon in the background begins a new file in `logs`; default 10 MiB.
    #[schemars(range(min = 4_096))]
    pub max_bytes: u64,
    /// The number of files that are kept, including the newest; default 5.
    #[schemars(range(min = 1, max = 1_000))]
    pub files: u32,
}

/// The format of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Retention of the files of finished runs. The journal, with every question and answer, is kept forever. Files of
/// running and waiting runs are not touched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RetentionSettings {
    /// The time after which the private files and process files of a finished run are deleted, in days; default 7, 0 is
    /// never.
    pub private_days: u32,
    /// The time after which the workspace of a finished run is deleted, if Abide created it below `workspaces`, in
    /// days; default 30, 0 is never. A directory that the owner named is never deleted.
    pub workspace_days: u32,
    /// The interval between two rounds, in seconds; default 3600.
    #[schemars(range(min = 1))]
    pub every_sec: u32,
}

/// Where traces are sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OtelSettings {
    /// The URL of an OpenTelemetry collector that accepts OTLP as JSON over plain HTTP, such as http://127.0.0.1:4318;
    /// default: no export. Spans are posted to its path /v1/traces.
    pub endpoint: String,
}

/// The severity of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    /// An operator must act.
    Error,
    /// A failure that was handled.
    Warn,
    /// A milestone of a run.
    Info,
    /// Each event that changed a run.
    Debug,
    /// Everything, including bytes.
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
