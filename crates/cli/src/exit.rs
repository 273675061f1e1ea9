//! From a command line to an exit code. The codes are decided here and nowhere else.

use std::process::ExitCode;

use abide_agent::outcome::AgentOutcome;
use abide_wire::run::RunStatusValue;
use clap::{CommandFactory, Parser, error::ErrorKind};

use crate::{
    agent,
    args::{Abide, Command},
    backup, config, doctor, mcp, parrot, restore, rpc, runs, service, sessions, token,
    trouble::{self, Kind, Trouble, note},
    up, verify,
};

/// Runs the program.
pub fn main() -> ExitCode {
    // A keeper must stay small: it is recognised before anything else of this program is touched.
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
    let Abide { set, command } = match Abide::try_parse() {
        Ok(typed) => typed,
        Err(error) => return not_understood(&error),
    };
    let json = command.json();
    let done = match command {
        Command::Up(arguments) => up::run(&arguments, &set),
        Command::Down(arguments) => service::down(&arguments, &set),
        Command::Token { command } => token::run(&command, &set),
        Command::Status { output } => service::status(&output, &set),
        Command::Run(arguments) => runs::start::run(*arguments, &set),
        Command::Ls(arguments) => runs::list::ls(&arguments, &set),
        Command::Inbox(arguments) => runs::list::inbox(&arguments, &set),
        Command::Show(arguments) => runs::show::run(&arguments, &set),
        Command::Logs(arguments) => runs::logs::run(&arguments, &set),
        Command::Attach(arguments) => runs::start::attach(&arguments, &set),
        Command::Reply(arguments) => runs::orders::reply(&arguments, &set),
        Command::Send(arguments) => runs::orders::send(&arguments, &set),
        Command::Interrupt(arguments) => runs::orders::interrupt(&arguments, &set),
        Command::Cancel(arguments) => runs::orders::cancel(&arguments, &set),
        Command::Agent { command } => agent::main(command),
        Command::Rpc => rpc::serve(&set).map(|()| SUCCEEDED),
        Command::Mcp => mcp::serve(&set).map(|()| SUCCEEDED),
        Command::Sessions { command } => sessions::run(command, &set),
        Command::Config { command } => config::show::run(&command, &set),
        Command::Doctor(arguments) => doctor::run(&arguments, &set),
        Command::Completions { shell } => completions(shell),
        Command::Verify(arguments) => verify::run(&arguments, &set),
        Command::Backup(arguments) => backup::run(&arguments, &set),
        Command::Restore(arguments) => restore::run(&arguments, &set),
    };
    done.unwrap_or_else(|error| {
        // Whoever reads only the head of what we print has what they want.
        if trouble::is_broken_pipe(&error) {
            return SUCCEEDED;
        }
        note(trouble::told(&error, json));
        match error.downcast_ref::<Trouble>().map(|trouble| trouble.kind) {
            Some(Kind::Usage) => usage(),
            Some(Kind::Failure | Kind::Unreachable) | None => FAILED,
        }
    })
}

/// What was typed is no command, or asks for help.
fn not_understood(error: &clap::Error) -> ExitCode {
    let is_help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    if !is_help && std::env::args_os().any(|word| word == "--json") {
        let trouble = Trouble::usage(error.to_string().trim_end());
        note(trouble::told(&trouble.into(), true));
        return usage();
    }
    let _nobody_reads_it = error.print();
    if is_help { SUCCEEDED } else { usage() }
}

fn completions(shell: clap_complete::Shell) -> anyhow::Result<ExitCode> {
    // Into memory first: the generator itself panics when nobody reads on.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Abide::command(), "abide", &mut script);
    std::io::Write::write_all(&mut std::io::stdout(), &script)?;
    Ok(SUCCEEDED)
}

/// It was done.
pub(crate) const SUCCEEDED: ExitCode = ExitCode::SUCCESS;
/// It was not.
pub(crate) const FAILED: ExitCode = ExitCode::FAILURE;
/// Nobody could know what was asked for.
pub(crate) fn usage() -> ExitCode {
    ExitCode::from(2)
}
/// A person is waited for, and there is none to ask.
pub(crate) fn waiting() -> ExitCode {
    ExitCode::from(101)
}
/// A person stopped it.
pub(crate) fn interrupted() -> ExitCode {
    ExitCode::from(130)
}

/// What became of a run that is no longer followed.
pub(crate) fn of_run(status: RunStatusValue) -> ExitCode {
    match status {
        // A chat that is idle has given its answer; a run that is left at work was left on purpose.
        RunStatusValue::Succeeded
        | RunStatusValue::Idle
        | RunStatusValue::Queued
        | RunStatusValue::Running => SUCCEEDED,
        RunStatusValue::WaitingUser => waiting(),
        RunStatusValue::Failed | RunStatusValue::Canceled => FAILED,
    }
}

/// What became of a run of the native agent.
pub(crate) fn of_agent(outcome: &AgentOutcome) -> ExitCode {
    match outcome {
        AgentOutcome::Completed { .. } => SUCCEEDED,
        AgentOutcome::Failed { .. } | AgentOutcome::BudgetExhausted { .. } => FAILED,
        AgentOutcome::Waiting { .. } => waiting(),
        AgentOutcome::Interrupted => interrupted(),
    }
}
