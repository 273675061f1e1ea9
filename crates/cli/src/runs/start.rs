//! `abide run` starts and follows a run; `abide attach` follows an existing one.

use std::{collections::BTreeMap, io::IsTerminal, path::Path, process::ExitCode};

use abide_ports::catalogue::EngineLookup;
use abide_wire::run::{CreateRunRequest, ExecutionModeValue, RunOptions};
use anyhow::Context;

use super::{
    console::InputConsole,
    find,
    follow::{FollowMode, FollowSession},
    given_text, key, print_json, standard_input, status_word, story,
    voice::StatusLine,
    when,
};
use crate::{
    args::{AttachArguments, RunArguments},
    catalogue::EngineCatalogue,
    client::DaemonClient,
    config::{self, GivenSetting},
    exit::SUCCEEDED,
    text,
    trouble::{CliError, note},
};

pub(crate) fn run(arguments: RunArguments, given: &[GivenSetting]) -> anyhow::Result<ExitCode> {
    let (detach, json) = (arguments.detach, arguments.output.json);
    let manner = match arguments.mode {
        Some(ExecutionModeValue::Chat) => FollowMode::Talk,
        Some(ExecutionModeValue::Auto | ExecutionModeValue::Interactive) | None => FollowMode::Task,
    };
    let new = wanted(arguments)?;
    let client = DaemonClient::connect(given)?;
    // From here on ctrl-c leaves the run behind, so its id must be printed.
    let console = if detach { None } else { Some(InputConsole::new()?) };
    let run = client.create(&new, &key()).map_err(|error| suggested(error, &new.engine, given))?;
    let Some(console) = console else {
        if json {
            print_json(&run)?;
        } else {
            super::print_words(&run.run_id)?;
            note(format_args!("abide: follow it with: abide attach {}", run.run_id));
        }
        return Ok(SUCCEEDED);
    };
    StatusLine::new(json).line(&format!("{} on {}", run.run_id, text::one_line(&run.engine)));
    FollowSession::new(&client, console, run, 0, manner, json)?.until_it_ends()
}

/// Number of past events printed by `abide attach`.
const SHOWN: usize = 12;

pub(crate) fn attach(arguments: &AttachArguments, given: &[GivenSetting]) -> anyhow::Result<ExitCode> {
    let json = arguments.output.json;
    let client = DaemonClient::connect(given)?;
    let run = find::run(&client, &arguments.run)?;
    let events = client.events(&run.run_id)?;
    let mut voice = StatusLine::new(json);
    voice.line(&format!("{} on {}: {}", run.run_id, text::one_line(&run.engine), status_word(run.status)));
    let told: Vec<_> = events.iter().filter_map(|event| Some((event, story::tell(event)?))).collect();
    let earlier = told.len().saturating_sub(SHOWN);
    if earlier > 0 {
        voice.line(&format!("… {earlier} earlier: abide logs {}", run.run_id));
    }
    for (event, told) in told.into_iter().skip(earlier) {
        let line = voice.colour.text(told.weight.look(), format!("{} {}", when::clock(&event.at), told.line));
        voice.line(&line);
        // The result of a finished run is printed once, to standard output.
        let is_result =
            run.status.is_final() && event.data.get("outcome").is_some_and(|it| it == "completed");
        if let Some(words) = told.words.filter(|_| !is_result) {
            voice.line(&text::tame(&words));
        }
    }
    let seen = events.last().map_or(0, |event| event.seq);
    let manner = match (run.execution_mode, run.status.is_final()) {
        (_, true) | (ExecutionModeValue::Auto, false) => FollowMode::Task,
        (ExecutionModeValue::Interactive | ExecutionModeValue::Chat, false) => FollowMode::Talk,
    };
    let known = client.turns(&run.run_id)?;
    let known =
        known.iter().filter(|turn| turn.execution_status == "completed").map(|turn| turn.turn_index).max();
    FollowSession::new(&client, InputConsole::new()?, run, seen, manner, json)?
        .knowing(known.unwrap_or(0))
        .until_it_ends()
}

fn wanted(arguments: RunArguments) -> anyhow::Result<CreateRunRequest> {
    let prompt = match &arguments.prompt {
        Some(prompt) => given_text(prompt, "the prompt")?,
        None if !std::io::stdin().is_terminal() => {
            let text = standard_input()?;
            given_text(if text == "-" { " " } else { &text }, "the prompt on standard input")?
        }
        None => {
            let engine = &arguments.engine;
            let detail = format!(
                "what should it do? abide run {engine} 'make the tests pass', or - for standard input"
            );
            return Err(CliError::usage(detail).into());
        }
    };
    let absolute = |path: &Path| -> anyhow::Result<String> {
        let path = std::path::absolute(path).with_context(|| format!("cannot use {}", path.display()))?;
        if !path.is_dir() {
            return Err(
                CliError::usage(format!("{} is not a directory that is there", path.display())).into()
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
fn suggested(error: anyhow::Error, engine: &str, given: &[GivenSetting]) -> anyhow::Error {
    let Some(trouble) = error.downcast_ref::<CliError>().filter(|trouble| trouble.code == "UNKNOWN_ENGINE")
    else {
        return error;
    };
    let (Ok(loaded), Ok(own)) = (config::load(given), std::env::current_exe()) else { return error };
    let names = EngineCatalogue::new(&loaded.config.engines(), &own, loaded.config.isolation()).names();
    let near = |name: &String| (strsim::damerau_levenshtein(engine, name), name.clone());
    let nearest = names.iter().map(near).min().filter(|(distance, name)| *distance <= name.len().div_ceil(2));
    let advice = match nearest {
        Some((_, nearest)) => format!("did you mean {nearest}?"),
        None => format!("there are {}", names.join(", ")),
    };
    let detail = format!("there is no engine {engine:?}; {advice} `abide doctor` says which can be used");
    CliError { detail, ..trouble.clone() }.into()
}
