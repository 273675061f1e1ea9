//! Runs the command line and maps its result to an exit code. All exit codes are decided here.

use std::process::ExitCode;

use abide_agent::outcome::AgentOutcome;
use abide_wire::run::RunStatusValue;
use clap::{CommandFactory, Parser, error::ErrorKind};

use crate::{
    agent,
    args::{CliArguments, CliCommand},
    backup, config, doctor, mcp, parrot, restore, rpc, runs, service, sessions, token,
    trouble::{self, CliError, CliErrorKind, note},
    up, verify,
};

pub fn main() -> ExitCode {
    // The keeper mode is checked first, because a keeper must stay small.
    let mut words = std::env::args_os().skip(1);
    let first = words.next();
    if first.as_ref().is_some_and(|word| word == crate::home::KEEPER) {
        return if abide_keeper::main().is_ok() { SUCCEEDED } else { FAILED };
    }
    if first.as_ref().is_some_and(|word| word == abide_keeper::confine::SUBCOMMAND) {
        return abide_keeper::confine::main(words);
    }
    if first.as_ref().is_some_and(|word| word == parrot::PARROT) {
        return parrot::main(words);
    }
    let CliArguments { set, command } = match CliArguments::try_parse() {
        Ok(typed) => typed,
        Err(error) => return not_understood(&error),
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
        CliCommand::Reply(arguments) => runs::orders::reply(&arguments, &set),
        CliCommand::Send(arguments) => runs::orders::send(&arguments, &set),
        CliCommand::Interrupt(arguments) => runs::orders::interrupt(&arguments, &set),
        CliCommand::Cancel(arguments) => runs::orders::cancel(&arguments, &set),
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
        if trouble::is_broken_pipe(&error) {
            return SUCCEEDED;
        }
        note(trouble::told(&error, json));
        match error.downcast_ref::<CliError>().map(|trouble| trouble.kind) {
            Some(CliErrorKind::Usage) => usage(),
            Some(CliErrorKind::Failure | CliErrorKind::Unreachable) | None => FAILED,
        }
    })
}

/// Prints a usage error or the help text.
fn not_understood(error: &clap::Error) -> ExitCode {
    let is_help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    if !is_help && std::env::args_os().any(|word| word == "--json") {
        let trouble = CliError::usage(error.to_string().trim_end());
        note(trouble::told(&trouble.into(), true));
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
/// Invalid arguments.
pub(crate) fn usage() -> ExitCode {
    ExitCode::from(2)
}
/// The run waits for an answer, and there is no person to ask.
pub(crate) fn waiting() -> ExitCode {
    ExitCode::from(101)
}
/// Interrupted by the user.
pub(crate) fn interrupted() -> ExitCode {
    ExitCode::from(130)
}

/// Returns the exit code for the status of a run that is no longer followed.
pub(crate) fn of_run(status: RunStatusValue) -> ExitCode {
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
pub(crate) fn of_agent(outcome: &AgentOutcome) -> ExitCode {
    match outcome {
        AgentOutcome::Completed { .. } => SUCCEEDED,
        AgentOutcome::Failed { .. } | AgentOutcome::BudgetExhausted { .. } => FAILED,
        AgentOutcome::Waiting { .. } => waiting(),
        AgentOutcome::Interrupted => interrupted(),
    }
}
