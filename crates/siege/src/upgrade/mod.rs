//! Replaces the binary in a home with open questions, sticky processes, running turns, waiting native agents and
//! terminal sessions. All of them must continue.
//!
//! Scenarios begun with the old daemon are played to their end with the new one. A repeated creation with the same
//! idempotency key returns the same run.

mod native;
mod terminal;

use std::{path::Path, time::Duration};

use abide_testkit::daemon::{
    EventReader, RetryLimits, ScenarioPlayer, TestDaemon, TestHome, TestHttpClient, TestScenario,
};
use anyhow::{Context, Result, bail};
use serde_json::Value;

use self::native::NativeAgentFixture;

use crate::{
    kill::{audit, scene::nap},
    tally::CrashCounters,
};

const PARROTS: [&str; 2] = ["parrot", "parrot-sticky"];
const PATIENCE: RetryLimits = RetryLimits { tries: 3_000, pause: Duration::from_millis(20) };

/// Replaces `old` by `new`, once with a regular stop and once with SIGKILL.
pub(crate) fn run(old: &Path, new: &Path) -> CrashCounters {
    let mut tally = CrashCounters::default();
    for by_force in [false, true] {
        tally.add(replace(old, new, by_force));
    }
    if let Err(error) = terminal::adopt(old, new) {
        tally.problems.push(format!("a terminal runtime: {error:#}"));
    }
    tally
}

fn replace(old: &Path, new: &Path, by_force: bool) -> CrashCounters {
    let mut tally = CrashCounters { starts: 2, readers: 1, ..CrashCounters::default() };
    let mut home = TestHome::new(old).with("ABIDE_SLOTS_MAX_RUNNING", "12");
    let stories = stories(&home);
    let mut native = match NativeAgentFixture::prepare(&home) {
        Ok(native) => native,
        Err(error) => {
            tally.problems.push(format!("native agents: {error:#}"));
            return tally;
        }
    };
    let daemon = home.start();
    let begun = native.begin(&home).context("native agents, before");
    let begun = begun.and(terminal::begin(&home).context("terminal sessions, before"));
    for story in &stories {
        if let Err(problem) = begin(&home, story) {
            tally.problems.push(problem);
        }
    }
    if by_force {
        daemon.kill();
        *tally.kills.entry("an upgrade by force".to_owned()).or_default() += 1;
    } else {
        daemon.terminate();
    }
    home.replace_program(new);
    let daemon: TestDaemon = home.start();
    let feed = EventReader::open("/v1/events", home.finder());
    let gone_on = begun
        .and_then(|()| native.finish(&home).context("native agents, after"))
        .and_then(|()| terminal::finish(&home).context("terminal sessions, after"));
    if let Err(error) = gone_on {
        tally.problems.push(format!("{error:#}"));
    }
    std::thread::scope(|scope| {
        let lives: Vec<_> = stories
            .iter()
            .map(|story| scope.spawn(|| ScenarioPlayer::new(|| home.client(), PATIENCE).live(story)))
            .collect();
        for (story, life) in stories.iter().zip(lives) {
            match life.join() {
                Ok(account) => tally.lived(story, &account),
                Err(_) => tally.problems.push(format!("{}: nobody tells", story.name)),
            }
        }
    });
    let wrong = audit::look(&home, &feed, daemon, &mut tally);
    tally.problems.extend(wrong);
    tally
}

/// Returns the scenarios: a question, an approval, a running turn and a chat on each parrot.
fn stories(home: &TestHome) -> Vec<TestScenario> {
    PARROTS
        .iter()
        .flat_map(|engine| {
            let story = |kind: &str| {
                let name = format!("{kind}-{engine}");
                TestScenario::new(&name, engine, home.workspace(&name))
            };
            [
                story("asks").appends().asks("q1").appends(),
                story("waits").appends().waits_at_gate("g1").appends(),
                story("works").appends().obeys("sleep 3").obeys("progress on").appends(),
                story("chats").appends().then_hears().appends(),
            ]
        })
        .collect()
}

/// Creates a run and waits until it is in the state that the upgrade must preserve.
fn begin(home: &TestHome, story: &TestScenario) -> std::result::Result<(), String> {
    let client: TestHttpClient = home.client().map_err(|error| error.to_string())?;
    let created = client
        .post_once("/v1/runs", &story.name, &story.request())
        .map_err(|error| format!("{}: {error}", story.name))?;
    let wanted = match (story.questions, story.mode.as_str()) {
        (0, "chat") => "idle",
        (0, _) => "running",
        _ => "waiting_user",
    };
    reaches(home, created.text("/run_id"), wanted)
        .map(drop)
        .map_err(|error| format!("{}: {error:#}", story.name))
}

/// Waits until a run has this status.
fn reaches(home: &TestHome, run: &str, status: &str) -> Result<Value> {
    let client: TestHttpClient = home.client()?;
    let path = format!("/v1/runs/{run}");
    let mut last = Value::Null;
    for _ in 0..1_500 {
        last = client.get(&path)?.body;
        if last["status"] == status {
            return Ok(last);
        }
        nap(Duration::from_millis(20));
    }
    bail!("{run} never comes to {status}: {last}")
}
