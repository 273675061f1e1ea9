//! Measures whole runs over HTTP, on the real binary with the parrot. One short measurement is a sample for a
//! comparison that alternates between two binaries. No limits are checked here.

use std::{path::Path, time::Duration};

use abide_testkit::daemon::{EventReader, TestHome, TestHttpClient};
use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::slow_stopwatch::SlowStopwatch;

/// The number of sequential runs, after the warm-up.
const SEQUENTIAL_RUNS: usize = 20;
const WARM_UP_RUNS: usize = 3;
/// The number of concurrent clients, and the number of runs of each.
const CLIENTS: usize = 8;
const RUNS_PER_CLIENT: usize = 4;
/// The maximum number of concurrent turns.
const SLOTS: &str = "8";

/// The durations of one run.
#[derive(Clone, Copy, Debug, Default)]
struct CycleTimes {
    create: Duration,
    reply: Duration,
    total: Duration,
}

pub(crate) fn run(program: &Path) -> Result<()> {
    let home = TestHome::new(program)
        .with_env("ABIDE_SLOTS_MAX_RUNNING", SLOTS)
        // All requests come from one address.
        .with_env("ABIDE_HTTP_REQUESTS_PER_SECOND", "0");
    let daemon = home.start();
    let feed = EventReader::open("/v1/events", home.client_factory());
    for number in 0..WARM_UP_RUNS {
        cycle(&home, &feed, &format!("warm-{number}"))?;
    }
    let alone: Vec<CycleTimes> = (0..SEQUENTIAL_RUNS)
        .map(|number| cycle(&home, &feed, &format!("alone-{number}")))
        .collect::<Result<_>>()?;
    let watch = SlowStopwatch::start();
    std::thread::scope(|scope| {
        let people: Vec<_> = (0..CLIENTS)
            .map(|person| {
                let (home, feed) = (&home, &feed);
                scope.spawn(move || -> Result<()> {
                    for number in 0..RUNS_PER_CLIENT {
                        cycle(home, feed, &format!("crowd-{person}-{number}"))?;
                    }
                    Ok(())
                })
            })
            .collect();
        people.into_iter().try_for_each(|person| person.join().ok().context("a person broke off")?)
    })?;
    let together = watch.elapsed() / u32::try_from(CLIENTS * RUNS_PER_CLIENT)?;
    let median = |of: fn(&CycleTimes) -> Duration| {
        let mut times: Vec<Duration> = alone.iter().map(of).collect();
        times.sort();
        times.get(times.len() / 2).copied().unwrap_or_default()
    };
    for (name, time) in [
        ("POST /v1/runs until acknowledged", median(|took| took.create)),
        ("reply until acknowledged", median(|took| took.reply)),
        ("create, ask, reply, finish", median(|took| took.total)),
        ("the same, 8 at a time, per run", together),
    ] {
        println!("figure {:.4} ms {name}", time.as_secs_f64() * 1e3);
    }
    daemon.terminate();
    Ok(())
}

/// Plays a run that asks one question.
fn cycle(home: &TestHome, feed: &EventReader, name: &str) -> Result<CycleTimes> {
    let client = home.client()?;
    let body = json!({
        "engine": "parrot", "prompt": "ask open_text q\nsay done", "workspace": home.workspace(name),
        "execution_mode": "interactive",
    });
    let whole = SlowStopwatch::start();
    let created = client.post("/v1/runs", &body)?;
    let create = whole.elapsed();
    ensure!(created.status == 201, "{}", created.body);
    let path = format!("/v1/runs/{}", created.str_at("/run_id"));
    let question = wait_for_status(&client, feed, &path, "waiting_user")?;
    let watch = SlowStopwatch::start();
    let replied =
        client.post(&format!("/v1/interactions/{question}/reply"), &json!({ "text": "an answer" }))?;
    let reply = watch.elapsed();
    ensure!(replied.status == 200, "{}", replied.body);
    wait_for_status(&client, feed, &path, "succeeded")?;
    Ok(CycleTimes { create, reply, total: whole.elapsed() })
}

/// Waits until the run has this status, and returns its open question.
fn wait_for_status(client: &TestHttpClient, feed: &EventReader, path: &str, status: &str) -> Result<String> {
    loop {
        let seen = feed.events().len();
        let run = client.get(path)?;
        if run.str_at("/status") == status {
            return Ok(run.str_at("/pending_interaction_id").to_owned());
        }
        let over = ["succeeded", "failed", "canceled"].contains(&run.str_at("/status"));
        ensure!(!over && feed.wait_for_more_than(seen), "{path} does not come to {status}: {}", run.body);
    }
}
