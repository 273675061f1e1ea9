//! Runs the command line and maps its result to an exit code. All exit codes of commands are decided here. The parrot and
//! keepers, which are programs of their own, have theirs.

use std::process::ExitCode;

use abide_agent::outcome::AgentOutcome;
use abide_host::keeper_command;
use abide_os::own_process::withhold_descriptors_from_programs;
use abide_wire::run::RunStatusValue;
use clap::{CommandFactory, Parser, error::ErrorKind};

use crate::{
    agent,
    args::{CliArguments, CliCommand},
    backup, config, doctor,
    error::{self, CliError, CliErrorKind, eprint_line},
    mcp, restore, rpc, runs, service, sessions, token, up, verify,
};

pub fn main() -> ExitCode {
    // Before anything else, while there is one thread. It applies to the daemon, keepers and exec helpers alike.
    if let Err(error) = withhold_descriptors_from_programs() {
        eprint_line(format!("cannot protect the descriptors of the calling program: /proc/self/fd: {error}"));
        return FAILED;
    }
    // Hidden subcommands are checked first, because a keeper must stay small.
    if let Some(code) = keeper_command::run_hidden(std::env::args_os().skip(1)) {
        return code;
    }
    let mut raw_arguments = std::env::args_os().skip(1);
    if raw_arguments.next().is_some_and(|word| word == abide_parrot::PARROT_SUBCOMMAND) {
        return abide_parrot::main(raw_arguments, crate::home::parrot_dirs());
    }
    let CliArguments { set, command } = match CliArguments::try_parse() {
        Ok(typed) => typed,
        Err(error) => return print_usage_error(&error),
    };
    let json = command.json();
    let done = match command {
        CliCommand::Up(arguments) => up::run(&arguments, &set),
        CliCommand::Down(arguments) => service::down(&arguments, &set),
        CliCommand::Token { command } => token::run(&command, &set),
        CliCommand::Status { output } => service::status(&output, &set),
        CliCommand::Run(arguments) => runs::start::run(*arguments, &set),
        CliCommand::Ls(arguments) => runs::list::ls(&arguments, &set),
        CliCommand::Inbox(arguments) => runs::list::inbox(&arguments, &set),
        CliCommand::Show(arguments) => runs::show::run(&arguments, &set),
        CliCommand::Logs(arguments) => runs::logs::run(&arguments, &set),
        CliCommand::Attach(arguments) => runs::start::attach(&arguments, &set),
        CliCommand::Reply(arguments) => runs::commands::reply(&arguments, &set),
        CliCommand::Send(arguments) => runs::commands::send(&arguments, &set),
        CliCommand::Interrupt(arguments) => runs::commands::interrupt(&arguments, &set),
        CliCommand::Cancel(arguments) => runs::commands::cancel(&arguments, &set),
        CliCommand::Agent { command } => agent::main(command),
        CliCommand::Rpc => rpc::serve(&set).map(|()| SUCCEEDED),
        CliCommand::Mcp => mcp::serve(&set).map(|()| SUCCEEDED),
        CliCommand::Sessions { command } => sessions::run(command, &set),
        CliCommand::Config { command } => config::show::run(&command, &set),
        CliCommand::Doctor(arguments) => doctor::run(&arguments, &set),
        CliCommand::Completions { shell } => completions(shell),
        CliCommand::Verify(arguments) => verify::run(&arguments, &set),
        CliCommand::Backup(arguments) => backup::run(&arguments, &set),
        CliCommand::Restore(arguments) => restore::run(&arguments, &set),
    };
    done.unwrap_or_else(|error| {
        // The reader of our output has closed the pipe, such as `head`. This is not an error.
        if error::is_broken_pipe(&error) {
            return SUCCEEDED;
        }
        eprint_line(error::render(&error, json));
        match error.downcast_ref::<CliError>().map(|cli_error| cli_error.kind) {
            Some(CliErrorKind::Usage) => usage(),
            Some(CliErrorKind::Failure | CliErrorKind::Unreachable) | None => FAILED,
        }
    })
}

/// Prints a usage error or the help text.
fn print_usage_error(error: &clap::Error) -> ExitCode {
    let is_help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    if !is_help && std::env::args_os().any(|word| word == "--json") {
        let cli_error = CliError::usage(error.to_string().trim_end());
        eprint_line(error::render(&cli_error.into(), true));
        return usage();
    }
    // A closed stderr does not change the exit code.
    error.print().ok();
    if is_help { SUCCEEDED } else { usage() }
}

fn completions(shell: clap_complete::Shell) -> anyhow::Result<ExitCode> {
    // The script is generated into memory, because the generator panics on a write error.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut CliArguments::command(), "abide", &mut script);
    std::io::Write::write_all(&mut std::io::stdout(), &script)?;
    Ok(SUCCEEDED)
}

pub(crate) const SUCCEEDED: ExitCode = ExitCode::SUCCESS;
pub(crate) const FAILED: ExitCode = ExitCode::FAILURE;
pub(crate) fn usage() -> ExitCode {
    ExitCode::from(2)
}
/// The run waits for an answer, and there is no person to ask.
pub(crate) fn waiting() -> ExitCode {
    ExitCode::from(101)
}
/// Interrupted by the user: 128 + SIGINT, as shells report it.
pub(crate) const INTERRUPTED_CODE: u8 = 130;
pub(crate) fn interrupted() -> ExitCode {
    ExitCode::from(INTERRUPTED_CODE)
}

/// Returns the exit code of a program that a command ran, as the system reports it: its lowest byte.
pub(crate) fn program_exit_code(code: i32) -> ExitCode {
    ExitCode::from(code.to_le_bytes()[0])
}

/// Returns the exit code for the status of a run that is no longer followed.
pub(crate) fn run_exit_code(status: RunStatusValue) -> ExitCode {
    match status {
        // An idle chat has returned its result. A run that is still working was left on purpose.
        RunStatusValue::Succeeded
        | RunStatusValue::Idle
        | RunStatusValue::Queued
        | RunStatusValue::Running => SUCCEEDED,
        RunStatusValue::WaitingUser => waiting(),
        RunStatusValue::Failed | RunStatusValue::Canceled => FAILED,
    }
}

/// Returns the exit code for the outcome of the native agent.
pub(crate) fn agent_exit_code(outcome: &AgentOutcome) -> ExitCode {
    match outcome {
        AgentOutcome::Completed { .. } => SUCCEEDED,
        AgentOutcome::Failed { .. } | AgentOutcome::BudgetExhausted { .. } => FAILED,
        AgentOutcome::Waiting { .. } => waiting(),
        AgentOutcome::Interrupted => interrupted(),
    }
}
