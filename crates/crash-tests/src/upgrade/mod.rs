//! Replaces the binary in a home with open questions, sticky processes, running turns, waiting native agents and
//! terminal sessions. All of them must continue.
//!
//! Scenarios begun with the old daemon are played to their end with the new one. A repeated creation with the same
//! idempotency key returns the same run.

mod native;
mod terminal;

use std::{path::Path, time::Duration};

use abide_testkit::{
    daemon::{RetryLimits, ScenarioPlayer, TestDaemon, TestHome, TestHttpClient, TestScenario},
    wait::sleep,
};
use anyhow::{Context, Result, bail};
use serde_json::Value;

use self::native::NativeAgentFixture;

use crate::{counters::CrashCounters, kill::audit};

const PARROTS: [&str; 2] = ["parrot", "parrot-sticky"];
const REQUEST_RETRIES: RetryLimits = RetryLimits { tries: 3_000, pause: Duration::from_millis(20) };

/// Replaces `old` by `new`, once with a regular stop and once with SIGKILL.
pub(crate) fn run(old: &Path, new: &Path) -> CrashCounters {
    let mut counters = CrashCounters::default();
    for by_force in [false, true] {
        counters.add(replace_binary(old, new, by_force));
    }
    if let Err(error) = terminal::check_adoption(old, new) {
        counters.problems.push(format!("a terminal runtime: {error:#}"));
    }
    counters
}

fn replace_binary(old: &Path, new: &Path, kill: bool) -> CrashCounters {
    let mut counters = CrashCounters { starts: 2, readers: 1, ..CrashCounters::default() };
    let mut home = TestHome::new(old).with_env("ABIDE_SLOTS_MAX_RUNNING", "12");
    let stories = scenarios(&home);
    let mut native = match NativeAgentFixture::prepare(&home) {
        Ok(native) => native,
        Err(error) => {
            counters.problems.push(format!("native agents: {error:#}"));
            return counters;
        }
    };
    let daemon = home.start();
    let begun = native.begin(&home).context("native agents, before");
    let begun = begun.and(terminal::begin(&home).context("terminal sessions, before"));
    for scenario in &stories {
        if let Err(problem) = start_run(&home, scenario) {
            counters.problems.push(problem);
        }
    }
    if kill {
        daemon.kill();
        *counters.kills.entry("an upgrade by force".to_owned()).or_default() += 1;
    } else {
        daemon.terminate();
    }
    home.replace_program(new);
    let daemon: TestDaemon = home.start();
    home.events();
    let continued = begun
        .and_then(|()| native.finish(&home).context("native agents, after"))
        .and_then(|()| terminal::finish(&home).context("terminal sessions, after"));
    if let Err(error) = continued {
        counters.problems.push(format!("{error:#}"));
    }
    std::thread::scope(|scope| {
        let lives: Vec<_> = stories
            .iter()
            .map(|scenario| {
                scope
                    .spawn(|| ScenarioPlayer::new(|| home.client(), REQUEST_RETRIES).play_and_check(scenario))
            })
            .collect();
        for (scenario, life) in stories.iter().zip(lives) {
            match life.join() {
                Ok(account) => counters.add_scenario(scenario, &account),
                Err(_) => counters.problems.push(format!("{}: no event arrived", scenario.name)),
            }
        }
    });
    let wrong = audit::check_home(&home, home.events(), daemon, &mut counters);
    counters.problems.extend(wrong);
    counters
}

/// Returns the scenarios: a question, an approval, a running turn and a chat on each parrot.
fn scenarios(home: &TestHome) -> Vec<TestScenario> {
    PARROTS
        .iter()
        .flat_map(|engine| {
            let scenario = |kind: &str| {
                let name = format!("{kind}-{engine}");
                TestScenario::new(&name, engine, home.workspace(&name))
            };
            [
                scenario("asks").append_line().ask("q1").append_line(),
                scenario("waits").append_line().request_approval("g1").append_line(),
                scenario("works").append_line().instruct("sleep 3").instruct("progress on").append_line(),
                scenario("chats").append_line().next_message().append_line(),
            ]
        })
        .collect()
}

/// Creates a run and waits until it is in the state that the upgrade must preserve.
fn start_run(home: &TestHome, scenario: &TestScenario) -> std::result::Result<(), String> {
    let client: TestHttpClient = home.client().map_err(|error| error.to_string())?;
    let created = client
        .post_with_key("/v1/runs", &scenario.name, &scenario.request())
        .map_err(|error| format!("{}: {error}", scenario.name))?;
    let status = match (scenario.expected_questions, scenario.mode.as_str()) {
        (0, "chat") => "idle",
        (0, _) => "running",
        _ => "waiting_user",
    };
    wait_for_status(home, created.str_at("/run_id"), status)
        .map(drop)
        .map_err(|error| format!("{}: {error:#}", scenario.name))
}

/// Waits until a run has this status.
fn wait_for_status(home: &TestHome, run: &str, status: &str) -> Result<Value> {
    let client: TestHttpClient = home.client()?;
    let path = format!("/v1/runs/{run}");
    let mut last = Value::Null;
    for _ in 0..1_500 {
        last = client.get(&path)?.body;
        if last["status"] == status {
            return Ok(last);
        }
        sleep(Duration::from_millis(20));
    }
    bail!("{run} never comes to {status}: {last}")
}
