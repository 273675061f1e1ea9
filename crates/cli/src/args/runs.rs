//! Arguments of the commands for runs and questions.

use std::path::PathBuf;

use abide_wire::run::{ExecutionModeValue, IsolationValue, OnBusyValue, RunStatusValue, SandboxValue};
use clap::{Args, ValueHint, builder::PossibleValuesParser, builder::TypedValueParser};

use super::OutputArguments;

/// Text after the options in `abide help run`.
pub(super) const RUN_HELP: &str = "\
On a terminal, questions are asked there: type a number or any text. ctrl-c detaches; the run continues, and \
`abide attach` follows it again. Without a terminal, a run that waits for a person ends this command with exit code 101, \
and the output says how to answer.

Exit codes: 0 succeeded, 1 failed or canceled, 2 usage, 101 waiting for a person, 130 interrupted. The result goes to \
standard output, everything else to standard error.

Examples:
  abide run codex 'make the tests pass' --workspace .
  abide run parrot 'ask choose_one Tea or coffee? | tea | coffee'
  abide run claude --mode chat 'what is this repository?' --workspace ~/src/it
  abide run gemini --auto-decide --session-timeout 600 --detach - < task.md";

/// Text after the options in `abide help reply`.
pub(super) const REPLY_HELP: &str = "\
Any text is an answer. If the question has options, the number of an option selects it. `=2` sends the \
literal text 2.

Examples:
  abide reply last yes
  abide reply last 2
  abide reply int_01kaxm3s3fe6bbd6gkzpfh2v1t 'use the second account'
  abide reply last - < answer.md";

/// Help text of the RUN argument.
const RUN_ARGUMENT_HELP: &str = "The run: its id, a unique beginning or end of the id, or `last`";

#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    /// The engine; `abide doctor` lists them
    pub(crate) engine: String,
    /// The task; `-`, or nothing with a pipe, reads standard input
    pub(crate) prompt: Option<String>,
    /// The working directory [default: a new directory of the run]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) workspace: Option<PathBuf>,
    /// auto never asks, interactive may ask, chat continues after each answer [default: interactive]
    #[arg(long, value_parser = mode())]
    pub(crate) mode: Option<ExecutionModeValue>,
    /// Let the policy of a question answer if no person answers in time
    #[arg(long)]
    pub(crate) auto_decide: bool,
    /// Time in seconds that a process is kept for an answer, and after which policy answers [default: 1200]
    #[arg(long, value_name = "SEC", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) session_timeout: Option<u32>,
    /// Time limit of one turn in seconds [default: no limit]
    #[arg(long, value_name = "SEC", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) turn_timeout: Option<u32>,
    /// The model [default: the choice of the engine]
    #[arg(long)]
    pub(crate) model: Option<String>,
    /// Files that the engine may change
    #[arg(long, value_parser = sandbox())]
    pub(crate) sandbox: Option<SandboxValue>,
    /// Isolation of the engine from Abide's own files [default: as configured]
    #[arg(long, value_parser = isolation())]
    pub(crate) isolation: Option<IsolationValue>,
    /// A folder with a skill (SKILL.md), which is copied to the engine's skill folder
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) skill: Option<PathBuf>,
    /// A label of your own; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = super::variable)]
    pub(crate) label: Vec<(String, String)>,
    /// Effect of a message while a turn runs [default: queue]
    #[arg(long, value_parser = on_busy())]
    pub(crate) on_busy: Option<OnBusyValue>,
    /// Print the run's id and do not follow the run
    #[arg(long)]
    pub(crate) detach: bool,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct LsArguments {
    /// Only runs with this status
    #[arg(long, value_parser = status())]
    pub(crate) status: Option<RunStatusValue>,
    /// Maximum number of items
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArguments {
    #[arg(help = RUN_ARGUMENT_HELP)]
    pub(crate) run: String,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct LogsArguments {
    #[arg(help = RUN_ARGUMENT_HELP)]
    pub(crate) run: String,
    /// Continue until the run ends
    #[arg(long, short)]
    pub(crate) follow: bool,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct AttachArguments {
    #[arg(help = RUN_ARGUMENT_HELP)]
    pub(crate) run: String,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct InboxArguments {
    /// Maximum number of items
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
    /// Show the whole content of each question, and the command that answers it
    #[arg(long, conflicts_with = "json")]
    pub(crate) full: bool,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct ReplyArguments {
    /// The id of the question, or the run that asks it
    #[arg(value_name = "RUN|INTERACTION")]
    pub(crate) to: String,
    /// The answer; `-` reads standard input
    #[arg(allow_hyphen_values = true)]
    pub(crate) text: String,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct SendArguments {
    #[arg(help = RUN_ARGUMENT_HELP)]
    pub(crate) run: String,
    /// The text; `-` reads standard input
    #[arg(allow_hyphen_values = true)]
    pub(crate) text: String,
    /// Effect while a turn runs: wait for its own turn, join the running turn, or end it
    #[arg(long, value_parser = on_busy())]
    pub(crate) on_busy: Option<OnBusyValue>,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

/// A run to be stopped, one way or the other.
#[derive(Debug, Args)]
pub(crate) struct StopArguments {
    #[arg(help = RUN_ARGUMENT_HELP)]
    pub(crate) run: String,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

fn mode() -> impl TypedValueParser<Value = ExecutionModeValue> {
    let names = PossibleValuesParser::new(["auto", "interactive", "chat"]);
    names.map(|name| match name.as_str() {
        "auto" => ExecutionModeValue::Auto,
        "chat" => ExecutionModeValue::Chat,
        _ => ExecutionModeValue::Interactive,
    })
}

fn on_busy() -> impl TypedValueParser<Value = OnBusyValue> {
    let names = PossibleValuesParser::new(["queue", "steer", "supersede"]);
    names.map(|name| match name.as_str() {
        "steer" => OnBusyValue::Steer,
        "supersede" => OnBusyValue::Supersede,
        _ => OnBusyValue::Queue,
    })
}

fn sandbox() -> impl TypedValueParser<Value = SandboxValue> {
    let names = PossibleValuesParser::new(["read-only", "workspace-write", "danger-full-access"]);
    names.map(|name| match name.as_str() {
        "workspace-write" => SandboxValue::WorkspaceWrite,
        "danger-full-access" => SandboxValue::DangerFullAccess,
        _ => SandboxValue::ReadOnly,
    })
}

fn isolation() -> impl TypedValueParser<Value = IsolationValue> {
    let names = PossibleValuesParser::new(["auto", "namespace", "landlock", "off"]);
    names.map(|name| match name.as_str() {
        "namespace" => IsolationValue::Namespace,
        "landlock" => IsolationValue::Landlock,
        "off" => IsolationValue::Off,
        _ => IsolationValue::Auto,
    })
}

fn status() -> impl TypedValueParser<Value = RunStatusValue> {
    let names = PossibleValuesParser::new([
        "queued",
        "running",
        "waiting_user",
        "idle",
        "succeeded",
        "failed",
        "canceled",
    ]);
    names.map(|name| match name.as_str() {
        "queued" => RunStatusValue::Queued,
        "running" => RunStatusValue::Running,
        "waiting_user" => RunStatusValue::WaitingUser,
        "idle" => RunStatusValue::Idle,
        "succeeded" => RunStatusValue::Succeeded,
        "failed" => RunStatusValue::Failed,
        _ => RunStatusValue::Canceled,
    })
}
