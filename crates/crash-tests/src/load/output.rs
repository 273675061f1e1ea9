//! One turn with a very large output and a restart after each third of it. The result must be correct, and memory and
//! disk usage must not grow with the output.

use std::{fs, path::Path, time::Duration};

use abide_testkit::{
    daemon::{TestDaemon, TestHome},
    wait::sleep,
};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{LoadOptions, LoadResults, peak_memory_mib};
use crate::slow_stopwatch::SlowStopwatch;

/// The maximum memory of a daemon or a keeper, in MiB.
const MAX_MEMORY_MIB: u64 = 100;
/// The maximum disk usage, in MiB: the retained output of a process, and some segments.
const MAX_DISK_MIB: u64 = 1024 + 64;
/// The interval between checks of the disk usage.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The number of checks without progress after which the test fails.
const MAX_IDLE_POLLS: u32 = 2_400;

pub(super) fn run(options: &LoadOptions, seen: &mut LoadResults) -> Result<()> {
    let home = TestHome::new(&options.program);
    let mut daemon = home.start();
    let prompt = format!("append log begun\nprint {}\nappend log printed\nsay done", options.output);
    let body = json!({
        "engine": "parrot", "prompt": prompt, "execution_mode": "auto", "workspace": home.workspace("w"),
    });
    let watch = SlowStopwatch::start();
    let created = home.client()?.post("/v1/runs", &body)?;
    let run = created.str_at("/run_id").to_owned();
    let (mut memory, mut keeper_memory, mut disk) = (0, 0, 0);
    let mut restarts = vec![options.output / 3, options.output / 3 * 2];
    restarts.reverse();
    let (mut idle, mut last) = (0, 0);
    let done = loop {
        sleep(POLL_INTERVAL);
        let keeper_dir = home.keeper_dir(&run, 1);
        disk = disk.max(folder_bytes(&keeper_dir));
        memory = memory.max(peak_memory_mib(daemon.pid()));
        if let Some(keeper) = home.keeper_of(&run, 1) {
            keeper_memory = keeper_memory.max(peak_memory_mib(keeper.pid));
        }
        let read = checkpoint_offset(&keeper_dir);
        idle = if read > last { 0 } else { idle + 1 };
        last = last.max(read);
        if restarts.last().is_some_and(|at| read >= *at) {
            restarts.pop();
            daemon = restart_daemon(&home, daemon)?;
        }
        let state = home.client()?.get(&format!("/v1/runs/{run}"))?.body;
        let status = state["status"].as_str().unwrap_or_default();
        if ["succeeded", "failed", "canceled"].contains(&status) {
            break state;
        }
        ensure!(idle < MAX_IDLE_POLLS, "nothing is read any more after byte {last}: {state}");
    };
    let elapsed = watch.elapsed().as_secs_f64();
    memory = memory.max(peak_memory_mib(daemon.pid()));
    ensure!(restarts.is_empty(), "the turn was over before the last restart");
    ensure!(done["result"]["text"] == "done", "the result is wrong: {done}");
    let turns = home.client()?.get(&format!("/v1/runs/{run}/turns"))?.body;
    let attempts = turns.pointer("/items/0/attempts").and_then(Value::as_array).map_or(0, Vec::len);
    ensure!(attempts == 1, "{attempts} processes for one turn: {turns}");
    let log = fs::read_to_string(home.workspace("w").join("log"))?;
    ensure!(log == "begun\nprinted\n", "the turn's orders were not carried out once: {log:?}");
    daemon.terminate();
    seen.figure("bytes printed in one turn, with two restarts of the daemon", options.output);
    seen.figure("seconds for this turn", format!("{elapsed:.1}"));
    seen.figure("the same: peak memory of the daemon, MiB", memory);
    seen.figure("the same: peak memory of the keeper, MiB", keeper_memory);
    seen.figure("the same: peak size of the output on disk, MiB", disk >> 20);
    ensure!(
        memory.max(keeper_memory) <= MAX_MEMORY_MIB,
        "more than {MAX_MEMORY_MIB} MiB of memory were held"
    );
    ensure!(disk >> 20 <= MAX_DISK_MIB, "more than {MAX_DISK_MIB} MiB of output were on disk");
    Ok(())
}

fn restart_daemon(home: &TestHome, daemon: TestDaemon) -> Result<TestDaemon> {
    daemon.kill();
    let next = home.start();
    home.client().context("the next daemon is not found")?;
    Ok(next)
}

/// Returns the output offset of the last checkpoint.
fn checkpoint_offset(keeper_dir: &Path) -> u64 {
    let stored = fs::read(keeper_dir.join("checkpoint")).unwrap_or_default();
    let checkpoint: Value = serde_json::from_slice(&stored).unwrap_or_default();
    checkpoint["stdout"].as_u64().unwrap_or(0)
}

/// Returns the total size of all files in a folder.
fn folder_bytes(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    files.filter_map(|file| Some(file.metadata().ok()?.len())).sum()
}
