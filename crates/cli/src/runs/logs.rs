//! `abide logs`: prints the events of a run from the first on; with `--follow` until the run ends.

use std::{
    io::{IsTerminal, Write},
    process::ExitCode,
    time::Duration,
};

use abide_wire::event::EventEnvelope;

use super::{
    console::{ConsoleEvent, InputConsole, InputInterest},
    find, print_json, story, when,
};
use crate::{
    args::LogsArguments,
    client::{DaemonClient, EventFeed, FeedUpdate},
    config::GivenSetting,
    exit::{SUCCEEDED, interrupted},
    table::{ColourMode, TextStyle},
    text,
    trouble::note,
};

/// Delay before a request is retried that the daemon could not serve.
const AGAIN: Duration = Duration::from_millis(200);

pub(crate) fn run(arguments: &LogsArguments, given: &[GivenSetting]) -> anyhow::Result<ExitCode> {
    let json = arguments.output.json;
    let client = DaemonClient::connect(given)?;
    let run = find::run(&client, &arguments.run)?.run_id;
    if arguments.follow {
        return follow(&client, &run, json);
    }
    let events = client.events(&run)?;
    if json {
        print_json(&events)?;
    } else {
        events.iter().try_for_each(print)?;
    }
    Ok(SUCCEEDED)
}

fn follow(client: &DaemonClient, run: &str, json: bool) -> anyhow::Result<ExitCode> {
    let mut console = InputConsole::new()?;
    let feed = EventFeed::follow(client, run, 0)?;
    let (mut seen, mut stale) = (0, true);
    let tell = |event: &EventEnvelope, seen: &mut u64| -> anyhow::Result<()> {
        if event.seq > *seen {
            *seen = event.seq;
            if json { print_json(event)? } else { print(event)? }
        }
        Ok(())
    };
    loop {
        while let Some(news) = feed.take() {
            match news {
                FeedUpdate::Event(event) => {
                    tell(&event, &mut seen)?;
                    stale |= story::changes_the_run(&event);
                }
                FeedUpdate::Lost => note("abide: the daemon is gone; waiting for it to come back"),
                FeedUpdate::Back => {
                    note("abide: the daemon is back");
                    stale = true;
                }
                FeedUpdate::Over(trouble) => return Err(trouble.into()),
            }
        }
        if stale {
            match client.run_now(run) {
                Ok(found) if found.status.is_final() => {
                    // The last events may not have arrived yet.
                    match client.events_now(run, seen) {
                        Ok((events, all)) => {
                            events.iter().try_for_each(|event| tell(event, &mut seen))?;
                            if all {
                                return Ok(SUCCEEDED);
                            }
                        }
                        Err(trouble) if trouble.is_passing() => {}
                        Err(trouble) => return Err(trouble.into()),
                    }
                }
                Ok(_) => stale = false,
                Err(trouble) if trouble.is_passing() => {}
                Err(trouble) => return Err(trouble.into()),
            }
        }
        match console.wait(feed.bell(), InputInterest::No, stale.then_some(AGAIN))? {
            ConsoleEvent::Interrupted => return Ok(interrupted()),
            ConsoleEvent::Bell | ConsoleEvent::Nothing | ConsoleEvent::Typed(_) | ConsoleEvent::Closed => {}
        }
    }
}

fn print(event: &EventEnvelope) -> anyhow::Result<()> {
    let Some(told) = story::tell(event) else { return Ok(()) };
    let colour = ColourMode::of_stdout();
    let mut out = std::io::stdout().lock();
    let time = colour.text(TextStyle::Faint, when::clock(&event.at));
    writeln!(out, "{time} {}", colour.text(told.weight.look(), told.line))?;
    if let Some(words) = told.words {
        let words = if out.is_terminal() { text::tame(&words) } else { words };
        for line in words.lines() {
            writeln!(out, "         {line}")?;
        }
    }
    out.flush()?;
    Ok(())
}
