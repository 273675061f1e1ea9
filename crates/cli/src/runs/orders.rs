//! One-shot commands: `abide reply`, `send`, `interrupt` and `cancel`.

use std::{io::Write, process::ExitCode};

use abide_wire::{
    interaction::{ReplyResolution, ReplyResponse},
    message::SendMessageRequest,
    run::AcceptedResponse,
};

use super::{find, given_text, key, print_json, question, status_word};
use crate::{
    args::{ReplyArguments, SendArguments, StopArguments},
    client::DaemonClient,
    config::GivenSetting,
    exit::SUCCEEDED,
    trouble::{CliError, note},
};

pub(crate) fn reply(arguments: &ReplyArguments, given: &[GivenSetting]) -> anyhow::Result<ExitCode> {
    let text = given_text(&arguments.text, "the answer")?;
    let client = DaemonClient::connect(given)?;
    let asked = match find::interaction(&client, &arguments.to)? {
        Some(find::FoundInteraction::Open(question)) => *question,
        // The daemon reports why the question cannot be answered.
        Some(find::FoundInteraction::NotOpen(id)) => {
            return replied(client.reply(&id, &text, &key())?, None, arguments.output.json);
        }
        None => {
            let run = find::run(&client, &arguments.to)?;
            let pending = run.pending_interaction_id.as_ref();
            let found = match pending {
                Some(id) => client.interaction_now(&run.run_id, id)?,
                None => None,
            };
            found.ok_or_else(|| {
                CliError::failure(
                    "NO_OPEN_INTERACTION",
                    format!(
                        "{} asks nothing, it is {}; `abide send {} '…'` says something to it",
                        run.run_id,
                        status_word(run.status),
                        run.run_id
                    ),
                )
            })?
        }
    };
    let text = match question::meant(&asked, &text) {
        question::TypedAnswer::Answer(text) => text,
        question::TypedAnswer::NoOption(number) => {
            return Err(CliError::usage(question::no_option(&asked, number)).into());
        }
        question::TypedAnswer::Nothing => {
            return Err(CliError::usage("the answer is empty; say something").into());
        }
    };
    let done = client.reply(&asked.interaction_id, &text, &key())?;
    replied(done, Some(&asked.run_id), arguments.output.json)
}

fn replied(done: ReplyResponse, run: Option<&str>, json: bool) -> anyhow::Result<ExitCode> {
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
        note(format_args!("abide: follow it with: abide attach {run}"));
    }
    Ok(SUCCEEDED)
}

pub(crate) fn send(arguments: &SendArguments, given: &[GivenSetting]) -> anyhow::Result<ExitCode> {
    let text = given_text(&arguments.text, "the message")?;
    let client = DaemonClient::connect(given)?;
    let run = find::run(&client, &arguments.run)?;
    let message = SendMessageRequest { message_id: Some(key()), text, on_busy: arguments.on_busy };
    let taken = client.message(&run.run_id, &message)?;
    if arguments.output.json {
        print_json(&taken)?;
        return Ok(SUCCEEDED);
    }
    writeln!(std::io::stdout(), "{}", taken.execution_status)?;
    note(format_args!("abide: follow it with: abide attach {}", run.run_id));
    Ok(SUCCEEDED)
}

pub(crate) fn interrupt(arguments: &StopArguments, given: &[GivenSetting]) -> anyhow::Result<ExitCode> {
    let client = DaemonClient::connect(given)?;
    let run = find::run(&client, &arguments.run)?;
    let done = client.interrupt(&run.run_id)?;
    let id = &run.run_id;
    stopped(
        arguments,
        done,
        "stopped",
        &format!("{id} has no turn at work, it is {}", status_word(run.status)),
    )?;
    if done.accepted && !arguments.output.json {
        note(format_args!("abide: it waits for you to say what next: abide reply {id} '…'"));
    }
    Ok(SUCCEEDED)
}

pub(crate) fn cancel(arguments: &StopArguments, given: &[GivenSetting]) -> anyhow::Result<ExitCode> {
    let client = DaemonClient::connect(given)?;
    let run = find::run(&client, &arguments.run)?;
    let done = client.cancel(&run.run_id)?;
    stopped(
        arguments,
        done,
        "canceled",
        &format!("{} is over already: {}", run.run_id, status_word(run.status)),
    )?;
    Ok(SUCCEEDED)
}

fn stopped(
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
        note(format_args!("abide: {nothing}"));
    }
    Ok(())
}
