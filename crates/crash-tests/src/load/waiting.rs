//! Thousands of waiting runs. One real run reaches its question; the others are copies of its history in the store.
//! Each copy has its own ids and its own session of the parrot, so that it can be answered.

use std::{fs, time::Duration};

use abide_domain::{
    event::RunEvent,
    id::{IdSeed, RunId},
    run::{self, Run},
    time::EventStamp,
};
use abide_ports::store::{JournalCommit, JournalEntry, JournalSeq, RunChange, Store};
use abide_store::registry;
use abide_testkit::{
    daemon::{TestHome, TestHttpClient},
    seeded_rng::SeededRng,
    wait,
};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{LoadOptions, LoadResults};
use crate::slow_stopwatch::SlowStopwatch;

/// The number of runs that are answered.
const ANSWERED_RUNS: usize = 40;
/// The number of runs in one commit.
const RUNS_PER_COMMIT: usize = 100;

pub(super) fn run(options: &LoadOptions, seen: &mut LoadResults) -> Result<()> {
    let home = TestHome::new(&options.program);
    let template = create_template(&home)?;
    let runs = copy_runs(&home, &template, options.waiting)?;
    let watch = SlowStopwatch::start();
    let daemon = home.start();
    let ready = watch.elapsed();
    let client = home.client()?;
    ensure!(client.get("/readyz")?.status == 200, "the daemon said that it is ready, and is not");
    seen.figure("waiting runs", runs.len());
    seen.figure("seconds from start to ready", format!("{:.2}", ready.as_secs_f64()));
    seen.memory("with these runs waiting", daemon.pid());
    let mut dice = SeededRng::new(7);
    let mut delays = vec![];
    for number in 0..ANSWERED_RUNS.min(runs.len()) {
        let run = dice.choose_nonempty(&runs);
        if let Some(delay) = answer_run(&client, &run, number)? {
            delays.push(delay);
        }
    }
    delays.sort();
    let milliseconds = |delay: Option<&Duration>| delay.map_or(0.0, |delay| delay.as_secs_f64() * 1000.0);
    let median = milliseconds(delays.get(delays.len() / 2));
    seen.figure("milliseconds from a reply to its running turn, median", format!("{median:.0}"));
    seen.figure("the same, maximum", format!("{:.0}", milliseconds(delays.last())));
    seen.memory("after the answers", daemon.pid());
    daemon.terminate();
    let log = fs::read_to_string(home.workspace("w").join("log"))?;
    let mut answers: Vec<&str> = log.lines().filter(|line| line.starts_with("reply-")).collect();
    answers.sort_unstable();
    answers.dedup();
    let lines = log.lines().filter(|line| line.starts_with("reply-")).count();
    ensure!(
        answers.len() == delays.len() && lines == delays.len(),
        "{lines} lines of {} answers",
        delays.len()
    );
    Ok(())
}

/// Creates a real run and waits until it has asked its question.
fn create_template(home: &TestHome) -> Result<RunId> {
    let daemon = home.start();
    let body = json!({
        "engine": "parrot", "prompt": "ask open_text q\nappend log $reply", "workspace": home.workspace("w"),
    });
    let client = home.client()?;
    let created = client.post("/v1/runs", &body)?;
    let path = format!("/v1/runs/{}", created.str_at("/run_id"));
    wait::until("the run has asked", || {
        client.get(&path).is_ok_and(|run| run.body["status"] == "waiting_user")
    });
    daemon.terminate();
    created.str_at("/run_id").parse().map_err(|_| anyhow::anyhow!("{} is no run", created.body))
}

fn copy_runs(home: &TestHome, template: &RunId, count: usize) -> Result<Vec<String>> {
    let url = format!("sqlite:{}", home.path().join("abide.db").display());
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(async {
        let store = registry::open(&url).await?;
        let entries = store.entries_of(*template, JournalSeq(0), 1_000).await?;
        let session = session_of(&*store, template).await?;
        let folder = home.path().join("parrot");
        let memory = fs::read_to_string(folder.join(format!("{session}.json")))?;
        let (mut runs, mut changes) = (vec![], vec![]);
        for number in 1..=count {
            let copy = CopiedRun { number: number as u128, session: format!("copy-{number}") };
            fs::write(folder.join(format!("{}.json", copy.session)), &memory)?;
            let run = copy.replay(&entries, &mut changes)?;
            runs.push(run.run_id.to_string());
            if number % RUNS_PER_COMMIT == 0 || number == count {
                store.commit(JournalCommit { changes: std::mem::take(&mut changes) }).await?;
            }
        }
        Ok(runs)
    })
}

async fn session_of(store: &dyn Store, run: &RunId) -> Result<String> {
    let run = store.run(*run).await?.context("the first run is there")?;
    Ok(run.handle.context("it has a session")?.handle_value)
}

/// A copy of the first run's history.
struct CopiedRun {
    number: u128,
    session: String,
}

impl CopiedRun {
    fn replay(&self, entries: &[JournalEntry], changes: &mut Vec<RunChange>) -> Result<Run> {
        let mut run: Option<Run> = None;
        for (step, entry) in entries.iter().enumerate() {
            let fresh = self.new_id(entry.stamp.id_seed, step);
            let stamp = EventStamp { at: entry.stamp.at, id_seed: fresh };
            let event = self.adapt(entry.event.clone(), run.as_ref(), fresh);
            let step =
                run::apply(run.as_ref(), &stamp, &event).map_err(|refused| anyhow::anyhow!("{refused}"))?;
            let change = RunChange::new(run.as_ref(), stamp, event, step);
            run = Some(Run::clone(&change.run));
            changes.push(change);
        }
        run.context("the first run has a story")
    }

    /// Returns an id with the same time and a number that is unique to this copy.
    fn new_id(&self, of: IdSeed, step: usize) -> IdSeed {
        IdSeed((of.0 >> 64 << 64) | (self.number << 24) | ((step as u128) << 8))
    }

    fn adapt(&self, mut event: RunEvent, run: Option<&Run>, fresh: IdSeed) -> RunEvent {
        let own_turn = run.and_then(|run| run.turns.last()).map(|turn| turn.turn_id);
        if let RunEvent::RunCreated(new) = &mut event {
            new.run_id = RunId(fresh);
            new.message.key.message_id = self.session.clone();
        } else if let RunEvent::ProfileResolved { handle: Some(handle), .. }
        | RunEvent::HandleAnnounced { handle, .. } = &mut event
        {
            handle.handle_value.clone_from(&self.session);
        } else if let (RunEvent::TurnEnded { turn_id, .. }, Some(own)) = (&mut event, own_turn) {
            *turn_id = own;
        }
        event
    }
}

/// Answers a run and returns the time until its turn started; `None` if it was answered before.
fn answer_run(client: &TestHttpClient, run: &str, number: usize) -> Result<Option<Duration>> {
    let path = format!("/v1/runs/{run}");
    let state = client.get(&path)?.body;
    let Some(question) = state["pending_interaction_id"].as_str() else { return Ok(None) };
    let watch = SlowStopwatch::start();
    let body = json!({ "text": format!("reply-{number}") });
    let replied = client.post(&format!("/v1/interactions/{question}/reply"), &body)?;
    ensure!(replied.status == 200, "{}", replied.body);
    let mut started_after = None;
    loop {
        let state = client.get(&path)?.body;
        let status = state["status"].as_str().unwrap_or_default();
        if !["waiting_user", "queued"].contains(&status) {
            started_after.get_or_insert_with(|| watch.elapsed());
        }
        match status {
            "succeeded" => return Ok(started_after),
            "failed" | "canceled" => anyhow::bail!("{run} failed: {}", Value::to_string(&state)),
            _ => wait::sleep(Duration::from_millis(2)),
        }
    }
}
