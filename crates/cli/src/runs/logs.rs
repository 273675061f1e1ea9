//! `abide logs`: prints the events of a run from the first on; with `--follow` until the run ends.

use std::{
    io::{IsTerminal, Write},
    process::ExitCode,
    time::Duration,
};

use abide_wire::event::EventEnvelope;

use super::{
    console::{ConsoleEvent, InputConsole, InputInterest},
    event_text, find, print_json, times,
};
use crate::{
    args::LogsArguments,
    client::{DaemonClient, EventFeed, FeedUpdate},
    config::GivenSetting,
    error::eprint_line,
    exit::{SUCCEEDED, interrupted},
    table::{ColourMode, TextStyle},
    terminal_text,
};

/// Delay before a request is retried that the daemon could not serve.
const RETRY_DELAY: Duration = Duration::from_millis(200);

pub(crate) fn run(arguments: &LogsArguments, overrides: &[GivenSetting]) -> anyhow::Result<ExitCode> {
    let json = arguments.output.json;
    let client = DaemonClient::connect(overrides)?;
    let run = find::run(&client, &arguments.run)?.run_id;
    if arguments.follow {
        return follow(&client, &run, json);
    }
    let events = client.events(&run)?;
    if json {
        print_json(&events)?;
    } else {
        events.iter().try_for_each(print_event)?;
    }
    Ok(SUCCEEDED)
}

fn follow(client: &DaemonClient, run: &str, json: bool) -> anyhow::Result<ExitCode> {
    let mut console = InputConsole::new()?;
    let feed = EventFeed::follow(client, run, 0)?;
    let (mut seen, mut stale) = (0, true);
    let print_new = |event: &EventEnvelope, seen: &mut u64| -> anyhow::Result<()> {
        if event.seq > *seen {
            *seen = event.seq;
            if json { print_json(event)? } else { print_event(event)? }
        }
        Ok(())
    };
    loop {
        while let Some(update) = feed.try_next() {
            match update {
                FeedUpdate::Event(event) => {
                    print_new(&event, &mut seen)?;
                    stale |= event_text::may_change_run(&event);
                }
                FeedUpdate::Disconnected => {
                    eprint_line("abide: the connection to the daemon is lost; waiting for the daemon")
                }
                FeedUpdate::Reconnected => {
                    eprint_line("abide: connected to the daemon again");
                    stale = true;
                }
                FeedUpdate::Failed(error) => return Err(error.into()),
            }
        }
        if stale {
            match client.run_now(run) {
                Ok(view) if view.status.is_final() => {
                    // The last events may not have arrived yet.
                    match client.events_now(run, seen) {
                        Ok((events, all)) => {
                            events.iter().try_for_each(|event| print_new(event, &mut seen))?;
                            if all {
                                return Ok(SUCCEEDED);
                            }
                        }
                        Err(error) if error.is_transient() => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                Ok(_) => stale = false,
                Err(error) if error.is_transient() => {}
                Err(error) => return Err(error.into()),
            }
        }
        match console.wait(feed.wakeup(), InputInterest::Ignore, stale.then_some(RETRY_DELAY))? {
            ConsoleEvent::Interrupted => return Ok(interrupted()),
            ConsoleEvent::Wakeup | ConsoleEvent::TimedOut | ConsoleEvent::Input(_) | ConsoleEvent::Closed => {
            }
        }
    }
}

fn print_event(event: &EventEnvelope) -> anyhow::Result<()> {
    let Some(event_line) = event_text::format_event(event) else { return Ok(()) };
    let colour = ColourMode::of_stdout();
    let mut out = std::io::stdout().lock();
    let time = colour.text(TextStyle::Dim, times::time_of_day(&event.at));
    writeln!(out, "{time} {}", colour.text(event_line.severity.style(), event_line.line))?;
    if let Some(words) = event_line.full_text {
        let words = if out.is_terminal() { terminal_text::escape_control_chars(&words) } else { words };
        for line in words.lines() {
            writeln!(out, "         {line}")?;
        }
    }
    out.flush()?;
    Ok(())
}
