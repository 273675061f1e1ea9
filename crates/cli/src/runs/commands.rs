//! One-shot commands: `abide reply`, `send`, `interrupt` and `cancel`.

use std::{io::Write, process::ExitCode};

use abide_wire::{
    interaction::{ReplyResolution, ReplyResponse},
    message::SendMessageRequest,
    run::AcceptedResponse,
};

use super::{find, new_idempotency_key, print_json, question, read_text_argument, status_name};
use crate::{
    args::{ReplyArguments, SendArguments, StopArguments},
    client::DaemonClient,
    config::GivenSetting,
    error::{CliError, eprint_line},
    exit::SUCCEEDED,
};

pub(crate) fn reply(arguments: &ReplyArguments, overrides: &[GivenSetting]) -> anyhow::Result<ExitCode> {
    let text = read_text_argument(&arguments.text, "the answer")?;
    let client = DaemonClient::connect(overrides)?;
    let interaction = match find::interaction(&client, &arguments.to)? {
        Some(find::FoundInteraction::Open(question)) => *question,
        // The daemon reports why the question cannot be answered.
        Some(find::FoundInteraction::NotOpen(id)) => {
            return print_reply(
                client.reply(&id, &text, &new_idempotency_key())?,
                None,
                arguments.output.json,
            );
        }
        None => {
            let run = find::run(&client, &arguments.to)?;
            let pending = run.pending_interaction_id.as_ref();
            let interaction = match pending {
                Some(id) => client.interaction_now(&run.run_id, id)?,
                None => None,
            };
            interaction.ok_or_else(|| {
                CliError::failure(
                    "NO_OPEN_INTERACTION",
                    format!(
                        "{} has no open question (status {}); send a message with `abide send {} '…'`",
                        run.run_id,
                        status_name(run.status),
                        run.run_id
                    ),
                )
            })?
        }
    };
    let text = match question::parse_answer(&interaction, &text) {
        question::TypedAnswer::Answer(text) => text,
        question::TypedAnswer::NoOption(number) => {
            return Err(CliError::usage(question::no_option_message(&interaction, number)).into());
        }
        question::TypedAnswer::Empty => {
            return Err(CliError::usage("the answer is empty; give some text").into());
        }
    };
    let done = client.reply(&interaction.interaction_id, &text, &new_idempotency_key())?;
    print_reply(done, Some(&interaction.run_id), arguments.output.json)
}

fn print_reply(done: ReplyResponse, run: Option<&str>, json: bool) -> anyhow::Result<ExitCode> {
    if json {
        print_json(&done)?;
        return Ok(SUCCEEDED);
    }
    let word = match done.resolution {
        ReplyResolution::Accepted => "accepted",
        ReplyResolution::Idempotent => "accepted before",
    };
    writeln!(std::io::stdout(), "{word}")?;
    if let Some(run) = run {
        eprint_line(format_args!("abide: follow it with: abide attach {run}"));
    }
    Ok(SUCCEEDED)
}

pub(crate) fn send(arguments: &SendArguments, overrides: &[GivenSetting]) -> anyhow::Result<ExitCode> {
    let text = read_text_argument(&arguments.text, "the message")?;
    let client = DaemonClient::connect(overrides)?;
    let run = find::run(&client, &arguments.run)?;
    let message =
        SendMessageRequest { message_id: Some(new_idempotency_key()), text, on_busy: arguments.on_busy };
    let accepted = client.message(&run.run_id, &message)?;
    if arguments.output.json {
        print_json(&accepted)?;
        return Ok(SUCCEEDED);
    }
    writeln!(std::io::stdout(), "{}", accepted.execution_status)?;
    eprint_line(format_args!("abide: follow it with: abide attach {}", run.run_id));
    Ok(SUCCEEDED)
}

pub(crate) fn interrupt(arguments: &StopArguments, overrides: &[GivenSetting]) -> anyhow::Result<ExitCode> {
    let client = DaemonClient::connect(overrides)?;
    let run = find::run(&client, &arguments.run)?;
    let done = client.interrupt(&run.run_id)?;
    let id = &run.run_id;
    print_stop(
        arguments,
        done,
        "stopped",
        &format!("{id} has no running turn (status {})", status_name(run.status)),
    )?;
    if done.accepted && !arguments.output.json {
        eprint_line(format_args!("abide: it waits for your instruction: abide reply {id} '…'"));
    }
    Ok(SUCCEEDED)
}

pub(crate) fn cancel(arguments: &StopArguments, overrides: &[GivenSetting]) -> anyhow::Result<ExitCode> {
    let client = DaemonClient::connect(overrides)?;
    let run = find::run(&client, &arguments.run)?;
    let done = client.cancel(&run.run_id)?;
    print_stop(
        arguments,
        done,
        "canceled",
        &format!("{} has already ended: {}", run.run_id, status_name(run.status)),
    )?;
    Ok(SUCCEEDED)
}

fn print_stop(
    arguments: &StopArguments,
    done: AcceptedResponse,
    word: &str,
    nothing: &str,
) -> anyhow::Result<()> {
    if arguments.output.json {
        return print_json(&done);
    }
    if done.accepted {
        writeln!(std::io::stdout(), "{word}")?;
    } else {
        eprint_line(format_args!("abide: {nothing}"));
    }
    Ok(())
}
