//! Many concurrent runs on both parrots with many readers of events, one of which is stalled.

use std::{path::Path, time::Duration};

use abide_testkit::daemon::{EventReader, RetryLimits, ScenarioPlayer, TestHome, TestScenario};

use super::{LoadOptions, LoadResults};
use crate::{counters::CrashCounters, kill::audit, slow_stopwatch::SlowStopwatch};

/// The retry limits of requests. The pause is long, so that polling does not dominate the load.
const REQUEST_RETRIES: RetryLimits = RetryLimits { tries: 2_000, pause: Duration::from_millis(300) };

pub(super) fn run(options: &LoadOptions, seen: &mut LoadResults) {
    let home = new_home(&options.program, options.runs);
    let daemon = home.start();
    let open = || EventReader::open("/v1/events", home.client_factory());
    let feeds: Vec<EventReader> = (1..options.readers).map(|_| open()).collect();
    // This connection stays open and is never read.
    let stalled = home.client().and_then(|client| client.events("/v1/events", 0));
    let watch = SlowStopwatch::start();
    let mut tally = CrashCounters::default();
    let stories: Vec<TestScenario> = (0..options.runs).map(|number| new_scenario(&home, number)).collect();
    std::thread::scope(|scope| {
        let live = |story| {
            let finder = home.client_factory();
            scope.spawn(move || ScenarioPlayer::new(finder, REQUEST_RETRIES).play_and_check(story))
        };
        let lives: Vec<_> = stories.iter().map(live).collect();
        for (story, life) in stories.iter().zip(lives) {
            match life.join() {
                Ok(account) => tally.add_scenario(story, &account),
                Err(_) => seen.problems.push(format!("{}: no event arrived", story.name)),
            }
        }
    });
    let took = watch.elapsed();
    seen.figure("concurrent runs", options.runs);
    seen.figure("event readers, one of them stalled", options.readers);
    seen.figure(
        "seconds until all runs finished, with one question each",
        format!("{:.1}", took.as_secs_f64()),
    );
    seen.memory("with these runs and readers", daemon.pid());
    drop(stalled);
    let last = open();
    let wrong = audit::check_home(&home, &last, daemon, &mut tally);
    let written: Vec<u64> = last.events().iter().map(|seen| seen.id).collect();
    for feed in &feeds {
        let read: Vec<u64> = feed.events().iter().map(|seen| seen.id).collect();
        if read != written {
            seen.problems.push(format!("a reader saw {} events of {}", read.len(), written.len()));
        }
    }
    seen.figure("events, each received exactly once by every active reader", written.len());
    seen.figure("lines written exactly once", tally.lines);
    seen.problems.extend(tally.problems);
    seen.problems.extend(wrong);
}

fn new_home(program: &Path, runs: usize) -> TestHome {
    TestHome::new(program)
        .with_env("ABIDE_SLOTS_MAX_RUNNING", &runs.to_string())
        // All clients share one address.
        .with_env("ABIDE_HTTP_REQUESTS_PER_SECOND", "0")
}

fn new_scenario(home: &TestHome, number: usize) -> TestScenario {
    let name = format!("crowd-{number}");
    let engine = ["parrot", "parrot-sticky"][number % 2];
    TestScenario::new(&name, engine, home.workspace(&name)).append_line().ask("q1").append_line()
}
