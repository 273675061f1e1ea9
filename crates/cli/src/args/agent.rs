//! Arguments of `abide agent`.

use std::path::PathBuf;

use abide_ports::engine::{IsolationMode, SandboxMode};
use clap::{
    Args, Subcommand, ValueHint,
    builder::{PossibleValuesParser, TypedValueParser},
};

use super::OutputArguments;

/// Text after the options in `abide help agent run`.
const RUN_HELP: &str = "\
The same command continues the run: after a crash, after ctrl-c, after a question, and with a fresh budget after \
a failure. A completed run prints its answer again; --again repeats the task. Another --message is sent to the \
same agent, which remembers the conversation.

If a question has options, the number of an option selects it, unless the number is itself the text of an option; `=2` \
is the literal text 2. Any other text, and a number without an option, is the answer itself.

A journal that Abide did not write here, or that was changed since, is refused with exit code 2 and is not changed; \
`abide agent show` displays it, and --adopt uses it as history only.

Exit codes: 0 completed, 1 failed or out of budget, 2 usage, 101 a question waits for an answer, 130 interrupted. The \
answer goes to standard output, everything else to standard error.

Model: model.base_url, model.name and model.api_key_env in config.yaml, or ABIDE_MODEL_BASE_URL, ABIDE_MODEL and \
ABIDE_MODEL_API_KEY.

Examples:
  abide agent run --agent ./my-agent --message 'make the tests pass'
  abide agent run --agent ./my-agent --answer 'the second one'
  git diff | abide agent run --agent ./reviewer --message -
  abide agent run --agent ./my-agent --json | jq -r .type";

#[derive(Debug, Subcommand)]
pub(crate) enum AgentCommand {
    /// Write an example agent to a folder: config.yaml, system_prompt.md and the schema for editors
    #[command(
        after_help = "Nothing is overwritten.\n\nExamples:\n  abide agent init my-agent\n  abide agent init my-agent && abide agent run --agent my-agent --message 'what is here?'"
    )]
    Init(AgentInit),
    /// Run the agent in a working directory, or continue its run
    #[command(after_help = RUN_HELP)]
    Run(AgentRun),
    /// Show the events and the open question of the agent in a working directory
    #[command(
        after_help = "Examples:\n  abide agent show\n  abide agent show --workdir ~/src/it --json | jq -c .payload"
    )]
    Show(AgentShow),
}

impl AgentCommand {
    pub(super) fn output(&self) -> &OutputArguments {
        match self {
            Self::Init(init) => &init.output,
            Self::Run(run) => &run.output,
            Self::Show(show) => &show.output,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct AgentInit {
    /// The folder; it is created if it is missing
    #[arg(value_name = "DIR", default_value = ".", value_hint = ValueHint::DirPath)]
    pub(crate) folder: PathBuf,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct AgentRun {
    /// The folder that defines the agent: config.yaml and system_prompt.md
    #[arg(long, value_name = "DIR", default_value = ".", value_hint = ValueHint::DirPath)]
    pub(crate) agent: PathBuf,
    #[command(flatten)]
    pub(crate) paths: AgentPathArguments,
    /// The task or a further message; `-` reads standard input
    #[arg(long, value_name = "TEXT")]
    pub(crate) message: Option<String>,
    /// The answer to the open question, or the number of one of its options; `-` reads standard input
    #[arg(long, value_name = "TEXT")]
    pub(crate) answer: Option<String>,
    /// The answer to the open question if there is one, otherwise a message; `-` reads standard input
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["message", "answer"])]
    pub(crate) say: Option<String>,
    /// Repeat a completed task
    #[arg(long)]
    pub(crate) again: bool,
    /// Use a journal that Abide did not write here as history: open calls get an unknown result, and its sessions,
    /// secrets and open question are not used
    #[arg(long)]
    pub(crate) adopt: bool,
    /// Maximum number of requests to the model; overrides the definition
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_iterations: Option<u64>,
    /// The model; overrides the definition
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// Never ask a person; the agent decides by itself
    #[arg(long)]
    pub(crate) auto: bool,
    /// Keep the sessions of stateful tools running at the end, for the next message
    #[arg(long)]
    pub(crate) keep_sessions: bool,
    /// Continue an existing run, and fail if there is none
    #[arg(long)]
    pub(crate) resume: bool,
    /// Files that tools may change [default: everything]
    #[arg(long, value_parser = sandbox())]
    pub(crate) sandbox: Option<SandboxMode>,
    /// Isolation of the tools from Abide's own files
    #[arg(long, value_parser = isolation(), default_value = "auto")]
    pub(crate) isolation: IsolationMode,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct AgentShow {
    #[command(flatten)]
    pub(crate) paths: AgentPathArguments,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct AgentPathArguments {
    /// The working directory of the agent and its tools
    #[arg(long, value_name = "DIR", default_value = ".", value_hint = ValueHint::DirPath)]
    pub(crate) workdir: PathBuf,
    /// The state folder; agents with separate ones can share a working directory [default: WORKDIR/.abide]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) state: Option<PathBuf>,
    /// The name of a session, whose state folder is WORKDIR/.abide/native/NAME
    #[arg(long, value_name = "NAME", conflicts_with = "state", value_parser = session_name)]
    pub(crate) session: Option<String>,
}

fn sandbox() -> impl TypedValueParser<Value = SandboxMode> {
    PossibleValuesParser::new(SandboxMode::NAMES)
        .map(|name| SandboxMode::from_name(&name).unwrap_or(SandboxMode::ReadOnly))
}

fn isolation() -> impl TypedValueParser<Value = IsolationMode> {
    let names = PossibleValuesParser::new(IsolationMode::NAMES);
    names.map(|name| IsolationMode::from_name(&name).unwrap_or(IsolationMode::Namespace))
}

/// A session name is used as a folder name.
fn session_name(name: &str) -> Result<String, String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let fits = !name.is_empty() && name.len() <= 64 && name.bytes().all(allowed);
    fits.then(|| name.to_owned()).ok_or_else(|| "expected 1 to 64 letters, digits, - and _".to_owned())
}
