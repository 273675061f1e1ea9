//! Command-line arguments. Usage errors exit with code 2, set by clap.

mod agent;
mod runs;
mod token;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::config::GivenSetting;

pub(crate) use agent::{AgentCommand, AgentInit, AgentPathArguments, AgentRun, AgentShow};
pub(crate) use runs::{
    AttachArguments, InboxArguments, LogsArguments, LsArguments, ReplyArguments, RunArguments, SendArguments,
    ShowArguments, StopArguments,
};
pub(crate) use token::{TokenCommand, TokenLs, TokenNew, TokenRevoke, TokenRotate};

/// A durable runtime for coding agents.
#[derive(Debug, Parser)]
#[command(name = "abide", version, subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct CliArguments {
    /// A setting for this command, which overrides environment and file; `abide config show` lists the keys
    #[arg(long = "set", global = true, value_name = "KEY=VALUE", value_parser = setting)]
    pub(crate) set: Vec<GivenSetting>,
    #[command(subcommand)]
    pub(crate) command: CliCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    /// Run the daemon, and print its address when it is ready
    #[command(
        after_help = "With ctrl-c, SIGTERM or `abide down --keep`, running turns and sessions continue under their keepers, and the next daemon takes them over; `abide down` ends them.\n\nA store that has lost acknowledged input is refused: `abide restore FILE` puts a backup in place, --accept-loss continues without the missing input.\n\nExamples:\n  abide up\n  abide up --detach --open\n  abide up --listen 127.0.0.1:8080 --store postgres://abide@localhost/abide"
    )]
    Up(UpArguments),
    /// Stop the daemon and end turns and sessions; questions stay open unless a process waits for their answer
    #[command(
        after_help = "Without --keep, every process of a run is ended, and the result for each run is printed:\n  a running turn     is interrupted. An interactive run asks whether to continue or stop, a chat becomes\n                     idle, an auto run fails with STOPPED_BY_SHUTDOWN.\n  a waiting process  is ended and its question is void. A run that can be resumed asks whether to continue\n                     or stop, a sticky run fails with STOPPED_BY_SHUTDOWN.\n  everything else    stays: queued runs, turns that had not started, questions without a process.\n\nExamples:\n  abide down\n  abide down --keep && abide up --detach   # replace the version; turns and sessions continue"
    )]
    Down(DownArguments),
    /// Show the daemon, its runs and its open questions
    #[command(
        after_help = "Does not start a daemon; exits with 1 if none is running.\n\nExamples:\n  abide status\n  abide status --json | jq .open_interactions"
    )]
    Status {
        #[command(flatten)]
        output: OutputArguments,
    },
    /// Start a run and follow it; on a terminal, its questions are asked there
    #[command(after_help = runs::RUN_HELP)]
    Run(Box<RunArguments>),
    /// List runs, newest first
    #[command(
        after_help = "Examples:\n  abide ls\n  abide ls --status waiting_user\n  abide ls --json | jq -r '.[].run_id'"
    )]
    Ls(LsArguments),
    /// Show all details of a run: settings, turns, processes, questions and answers
    #[command(after_help = "Examples:\n  abide show last\n  abide show 8x2k --json | jq .turns")]
    Show(ShowArguments),
    /// Show the events of a run
    #[command(
        after_help = "With --follow it continues until the run ends, also across restarts of the daemon.\n\nExamples:\n  abide logs last\n  abide logs last --follow\n  abide logs last --follow --json | jq -r .type"
    )]
    Logs(LogsArguments),
    /// Follow a run, answer its questions and send it messages
    #[command(
        after_help = "Each input is sent as the answer while a question is open, and otherwise as a message. ctrl-d or ctrl-c detaches; the run continues.\n\nExample:\n  abide attach last"
    )]
    Attach(AttachArguments),
    /// List the open questions of all runs, oldest first
    #[command(
        after_help = "Examples:\n  abide inbox\n  abide inbox --json | jq -r '.[] | [.interaction_id, .prompt] | @tsv'"
    )]
    Inbox(InboxArguments),
    /// Answer a question
    #[command(after_help = runs::REPLY_HELP)]
    Reply(ReplyArguments),
    /// Send a message to a run
    #[command(
        after_help = "Examples:\n  abide send last 'and now the tests'\n  abide send last --on-busy supersede 'stop that, do this'\n  git diff | abide send last -"
    )]
    Send(SendArguments),
    /// Stop the running turn; the run then waits for your decision
    #[command(after_help = "Example:\n  abide interrupt last")]
    Interrupt(StopArguments),
    /// End a run
    #[command(after_help = "Example:\n  abide cancel last")]
    Cancel(StopArguments),
    /// The native agent: defined by a folder with tools and a prompt, with its state in the working directory
    #[command(
        after_help = "Examples:\n  abide agent init my-agent\n  abide agent run --agent ./my-agent --message 'make the tests pass'\n  abide agent show"
    )]
    Agent {
        #[command(subcommand)]
        command: AgentCommand,
    },
    /// Serve the terminal runtime as JSON-RPC 2.0 on stdin and stdout, one object per line, without a daemon
    #[command(
        after_help = "Example:\n  echo '{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"session.create\"}' | abide rpc"
    )]
    Rpc,
    /// Serve the terminal runtime as MCP tools on stdin and stdout
    #[command(
        after_help = "Example, in a client's configuration:\n  {\"mcpServers\": {\"abide\": {\"command\": \"abide\", \"args\": [\"mcp\"]}}}"
    )]
    Mcp,
    /// Manage terminal sessions: persistent shells that outlive this command
    #[command(
        after_help = "Examples:\n  abide sessions new --name build --shell bash\n  abide sessions exec s-abc234 'cd /src && make'\n  abide sessions attach s-abc234\n  abide sessions rm s-abc234"
    )]
    Sessions {
        #[command(subcommand)]
        command: SessionsCommand,
    },
    /// Manage tokens with permissions, and browser sign-ins
    #[command(
        after_help = "Works with and without a daemon. Secrets are stored as digests only, except that of `owner`, which is in the file `token` of Abide's home.\n\nExamples:\n  abide token ls\n  abide token new phone --permit read,answer,approve --expires 30d\n  abide token rotate owner\n  abide token revoke phone"
    )]
    Token {
        #[command(subcommand)]
        command: TokenCommand,
    },
    /// Show the effective settings with their sources, or check them
    #[command(
        after_help = "Flags (--set KEY=VALUE) override the environment, which overrides config.toml in $ABIDE_HOME, which overrides the defaults. The variable of slots.max_running is ABIDE_SLOTS_MAX_RUNNING. In a variable, a list is words separated by blanks or a JSON array, and a table is a JSON object.\n\nExamples:\n  abide config show\n  ABIDE_ENGINES_CODEX_COMMAND='npx codex' abide config show --json\n  abide --set slots.max_running=2 config check"
    )]
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Show the usable engines with their abilities, and how to get missing programs
    #[command(
        after_help = "Exits with 0 if at least one engine can be used. Nothing is changed and no model is called.\n\nExamples:\n  abide doctor\n  abide doctor codex --all\n  abide doctor --json | jq '.engines[] | select(.available).name'"
    )]
    Doctor(DoctorArguments),
    /// Print completions for a shell
    #[command(
        after_help = "Examples:\n  abide completions bash > ~/.local/share/bash-completion/completions/abide\n  abide completions zsh > ~/.zfunc/_abide\n  abide completions fish > ~/.config/fish/completions/abide.fish"
    )]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Compare the tables with the journal, and check indexes and witness; exits with 1 if anything differs
    #[command(
        after_help = "Works with and without a daemon, and changes nothing. With --repair, which needs the daemon stopped (`abide down --keep`), the tables of every run are rebuilt from the journal.\n\nExamples:\n  abide verify\n  abide verify --json | jq .findings\n  abide down --keep && abide verify --repair"
    )]
    Verify(VerifyArguments),
    /// Write a consistent copy of the store to a new file, while the daemon runs
    #[command(
        after_help = "The copy is a complete SQLite store: `abide restore` puts it in place. A Postgres store is backed up with pg_dump.\n\nExample:\n  abide backup /mnt/backups/abide-$(date +%F).db"
    )]
    Backup(BackupArguments),
    /// Replace the store by a backup, and keep the previous store under another name
    #[command(
        after_help = "Needs the daemon stopped (`abide down`). The backup is checked first; nothing is changed if it is damaged, or of a newer version. Input that was acknowledged after the backup is not in it. A Postgres store is restored with pg_restore.\n\nExample:\n  abide down && abide restore /mnt/backups/abide-2026-01-31.db && abide up --detach"
    )]
    Restore(RestoreArguments),
}

impl CliCommand {
    /// Returns whether output and errors are printed as JSON.
    pub(crate) fn json(&self) -> bool {
        let output = match self {
            Self::Up(up) => &up.output,
            Self::Down(down) => &down.output,
            Self::Status { output } => output,
            Self::Run(run) => &run.output,
            Self::Ls(ls) => &ls.output,
            Self::Show(show) => &show.output,
            Self::Logs(logs) => &logs.output,
            Self::Attach(attach) => &attach.output,
            Self::Inbox(inbox) => &inbox.output,
            Self::Reply(reply) => &reply.output,
            Self::Send(send) => &send.output,
            Self::Interrupt(order) | Self::Cancel(order) => &order.output,
            Self::Doctor(doctor) => &doctor.output,
            Self::Verify(verify) => &verify.output,
            Self::Backup(backup) => &backup.output,
            Self::Restore(restore) => &restore.output,
            Self::Agent { command } => command.output(),
            Self::Token { command } => command.output(),
            Self::Rpc
            | Self::Mcp
            | Self::Sessions { .. }
            | Self::Config { .. }
            | Self::Completions { .. } => {
                return false;
            }
        };
        output.json
    }
}

#[derive(Debug, Args)]
pub(crate) struct UpArguments {
    /// The address and port to listen on
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<String>,
    /// The store, such as sqlite:/var/lib/abide/abide.db or postgres://user@host/database
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Start the daemon in the background, wait until it is ready, and print its address
    #[arg(long)]
    pub(crate) detach: bool,
    /// Open the daemon's page in a browser
    #[arg(long)]
    pub(crate) open: bool,
    /// Start although acknowledged input is missing from the store, and continue without it
    #[arg(long)]
    pub(crate) accept_loss: bool,
    /// Marks a daemon that was started in the background
    #[arg(long, hide = true, conflicts_with_all = ["detach", "open"])]
    pub(crate) background: bool,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct DownArguments {
    /// Sessions and running turns continue under their keepers, for the next daemon
    #[arg(long)]
    pub(crate) keep: bool,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

impl UpArguments {
    /// Returns the settings of the command line. Flags of this command take precedence over `--set`.
    pub(crate) fn settings(&self, overrides: &[GivenSetting]) -> Vec<GivenSetting> {
        let flag = |name: &str, value: &Option<String>| {
            let flag = format!("--{name}");
            value.clone().map(|text| GivenSetting { name: name.to_owned(), text, flag })
        };
        let flags = [flag("listen", &self.listen), flag("store", &self.store)];
        overrides.iter().cloned().chain(flags.into_iter().flatten()).collect()
    }
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    /// Only these engines
    #[arg(value_name = "ENGINE")]
    pub(crate) engines: Vec<String>,
    /// Show every ability, and the behaviour without each missing one
    #[arg(long)]
    pub(crate) all: bool,
    /// Timeout of each check of a program in seconds, if it is shorter than the default
    #[arg(long, value_name = "SEC", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) timeout: Option<u64>,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArguments {
    /// Rebuild the tables from the journal if they differ
    #[arg(long)]
    pub(crate) repair: bool,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct BackupArguments {
    /// The file to create; it must not exist
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct RestoreArguments {
    /// The backup, as `abide backup` wrote it
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print every value and its source; secrets are masked
    Show {
        #[command(flatten)]
        output: OutputArguments,
    },
    /// Print ok or all errors; exits with 1 if there is an error
    Check {
        #[command(flatten)]
        output: OutputArguments,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum SessionsCommand {
    /// List the sessions of this home
    Ls {
        #[command(flatten)]
        output: OutputArguments,
    },
    /// Start a session
    New {
        /// Name of the session, for people
        #[arg(long)]
        name: Option<String>,
        /// Path or name of the shell
        #[arg(long)]
        shell: Option<String>,
        /// Working directory
        #[arg(long, value_name = "DIR")]
        cwd: Option<PathBuf>,
        /// An environment variable; may be given several times
        #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
        env: Vec<(String, String)>,
        /// Use a terminal instead of pipes, so that `abide sessions attach` works
        #[arg(long)]
        pty: bool,
        #[command(flatten)]
        output: OutputArguments,
    },
    /// Run a command in a session and print its output; exits with its exit code
    Exec {
        /// The session
        session: String,
        /// The command, as typed in the shell
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
        /// Timeout in seconds, after which the command is stopped
        #[arg(long, value_name = "SEC")]
        timeout: Option<f64>,
        #[command(flatten)]
        output: OutputArguments,
    },
    /// Connect this terminal to a session; ctrl-] leaves it running
    Attach {
        /// The session
        session: String,
    },
    /// End a session and everything that it started
    Rm {
        /// The sessions
        #[arg(required = true)]
        sessions: Vec<String>,
        /// Kill the processes at once, without SIGTERM and a grace period
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        output: OutputArguments,
    },
}

#[derive(Debug, Args)]
pub(crate) struct OutputArguments {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn setting(text: &str) -> Result<GivenSetting, String> {
    let (name, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    Ok(GivenSetting { name: name.to_owned(), text: value.to_owned(), flag: format!("--set {name}") })
}
