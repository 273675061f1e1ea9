//! `abide run` starts and follows a run; `abide attach` follows an existing one.

use std::{collections::BTreeMap, io::IsTerminal, path::Path, process::ExitCode};

use abide_engines::catalogue::EngineCatalogue;
use abide_os::suggestion;
use abide_ports::catalogue::EngineLookup;
use abide_wire::{
    event::{RunEventView, TurnOutcomeValue},
    run::{CreateRunRequest, ExecutionModeValue, RunOptions},
};
use anyhow::Context;

use super::{
    console::InputConsole,
    event_text, find,
    follow::{FollowMode, FollowSession},
    new_idempotency_key, print_json, read_stdin, read_text_argument,
    status_line::StatusLine,
    status_name, times,
};
use crate::{
    args::{AttachArguments, RunArguments},
    client::DaemonClient,
    config::{self, GivenSetting},
    error::{CliError, eprint_line},
    exit::SUCCEEDED,
    terminal_text,
};

pub(crate) fn run(arguments: RunArguments, overrides: &[GivenSetting]) -> anyhow::Result<ExitCode> {
    let (detach, json) = (arguments.detach, arguments.output.json);
    let mode = match arguments.mode {
        Some(ExecutionModeValue::Chat) => FollowMode::Conversation,
        Some(ExecutionModeValue::Auto | ExecutionModeValue::Interactive) | None => FollowMode::Task,
    };
    let new = build_request(arguments)?;
    let client = DaemonClient::connect(overrides)?;
    // From here on ctrl-c leaves the run behind, so its id must be printed.
    let console = if detach { None } else { Some(InputConsole::new()?) };
    let run = client
        .create(&new, &new_idempotency_key())
        .map_err(|error| add_suggestion(error, &new.engine, overrides))?;
    let Some(console) = console else {
        if json {
            print_json(&run)?;
        } else {
            super::print_text(&run.run_id)?;
            eprint_line(format_args!("abide: follow it with: abide attach {}", run.run_id));
        }
        return Ok(SUCCEEDED);
    };
    StatusLine::new(json).line(&format!("{} on {}", run.run_id, terminal_text::one_line(&run.engine)));
    FollowSession::new(&client, console, run, 0, mode, json)?.run()
}

/// Number of past events printed by `abide attach`.
const MAX_PAST_EVENTS: usize = 12;

pub(crate) fn attach(arguments: &AttachArguments, overrides: &[GivenSetting]) -> anyhow::Result<ExitCode> {
    let json = arguments.output.json;
    let client = DaemonClient::connect(overrides)?;
    let run = find::run(&client, &arguments.run)?;
    let events = client.events(&run.run_id)?;
    let mut status_line = StatusLine::new(json);
    status_line.line(&format!(
        "{} on {}: {}",
        run.run_id,
        terminal_text::one_line(&run.engine),
        status_name(run.status)
    ));
    let lines: Vec<_> =
        events.iter().filter_map(|event| Some((event, event_text::format_event(event)?))).collect();
    let earlier = lines.len().saturating_sub(MAX_PAST_EVENTS);
    if earlier > 0 {
        status_line.line(&format!("… {earlier} earlier: abide logs {}", run.run_id));
    }
    for (event, lines) in lines.into_iter().skip(earlier) {
        let line = status_line
            .colour
            .text(lines.severity.style(), format!("{} {}", times::time_of_day(&event.at), lines.line));
        status_line.line(&line);
        // The result of a finished run is printed once, to standard output.
        let is_completion = matches!(
            event.event.known(),
            Some(RunEventView::TurnEnded(end)) if end.outcome == TurnOutcomeValue::Completed
        );
        if let Some(words) = lines.full_text.filter(|_| !(is_completion && run.status.is_final())) {
            status_line.line(&terminal_text::escape_control_chars(&words));
        }
    }
    let seen = events.last().map_or(0, |event| event.seq);
    let mode = match (run.execution_mode, run.status.is_final()) {
        (_, true) | (ExecutionModeValue::Auto, false) => FollowMode::Task,
        (ExecutionModeValue::Interactive | ExecutionModeValue::Chat, false) => FollowMode::Conversation,
    };
    let printed_turn = client.turns(&run.run_id)?;
    let printed_turn = printed_turn
        .iter()
        .filter(|turn| turn.execution_status == "completed")
        .map(|turn| turn.turn_index)
        .max();
    FollowSession::new(&client, InputConsole::new()?, run, seen, mode, json)?
        .with_printed_turns(printed_turn.unwrap_or(0))
        .run()
}

fn build_request(arguments: RunArguments) -> anyhow::Result<CreateRunRequest> {
    let prompt = match &arguments.prompt {
        Some(prompt) => read_text_argument(prompt, "the prompt")?,
        None if !std::io::stdin().is_terminal() => {
            let text = read_stdin()?;
            read_text_argument(if text == "-" { " " } else { &text }, "the prompt on standard input")?
        }
        None => {
            let engine = &arguments.engine;
            let detail = format!(
                "the prompt is missing: abide run {engine} 'make the tests pass', or - for standard input"
            );
            return Err(CliError::usage(detail).into());
        }
    };
    let absolute = |path: &Path| -> anyhow::Result<String> {
        let path = std::path::absolute(path).with_context(|| format!("cannot use {}", path.display()))?;
        if !path.is_dir() {
            return Err(
                CliError::usage(format!("{} does not exist or is not a directory", path.display())).into()
            );
        }
        let text = path.to_str().ok_or_else(|| CliError::usage("a path must be text in UTF-8"))?;
        Ok(text.to_owned())
    };
    Ok(CreateRunRequest {
        engine: arguments.engine,
        prompt,
        workspace: arguments.workspace.as_deref().map(absolute).transpose()?,
        execution_mode: arguments.mode,
        conversation_ref: None,
        skill: arguments.skill.as_deref().map(absolute).transpose()?,
        labels: arguments.label.into_iter().collect::<BTreeMap<_, _>>(),
        options: RunOptions {
            interactive_require_user_reply: arguments.auto_decide.then_some(false),
            session_timeout_sec: arguments.session_timeout,
            turn_timeout_sec: arguments.turn_timeout,
            on_busy: arguments.on_busy,
            model: arguments.model,
            sandbox: arguments.sandbox,
            isolation: arguments.isolation,
        },
    })
}

/// Adds the most similar engine name to the error for an unknown one.
fn add_suggestion(error: anyhow::Error, engine: &str, overrides: &[GivenSetting]) -> anyhow::Error {
    let Some(cli_error) =
        error.downcast_ref::<CliError>().filter(|cli_error| cli_error.code == "UNKNOWN_ENGINE")
    else {
        return error;
    };
    let (Ok(loaded), Ok(program)) = (config::load(overrides), std::env::current_exe()) else { return error };
    let names =
        EngineCatalogue::new(&loaded.config.engine_configs(), &program, loaded.config.isolation()).names();
    let advice = match suggestion::nearest(engine, &names) {
        Some(nearest) => format!("did you mean {nearest}?"),
        None => format!("there are {}", names.join(", ")),
    };
    let detail = format!("there is no engine {engine:?}; {advice} `abide doctor` shows the usable engines");
    CliError { detail, ..cli_error.clone() }.into()
}
