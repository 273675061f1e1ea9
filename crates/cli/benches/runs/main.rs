//! What the core itself costs: whole runs a second, and whether anything becomes slower with the number of runs.
//!
//! A cycle is a run that is created, asks, is answered and finishes, on the real desk, performer and SQLite, with an
//! engine inside this process, so that no program's start hides us. It is compared with a bare loop that makes as many
//! synced transactions of as many rows and bytes, group-committed too, in the same process and in turns. No absolute
//! time is judged.

mod bare;
mod counted;
mod cycles;
mod growth;

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use abide::config::{self, CliConfig};
use bare::BareStoreLoop;
use cycles::CycleBenchDaemon;

/// How many runs are at work at once besides as many as a daemon has slots for: what comes of it when somebody raises
/// that, on the same processors.
const MORE: [usize; 2] = [16, 64];
/// How long each side works in a round, and how often they take turns.
const ROUND: Duration = Duration::from_millis(1500);
const ROUNDS: usize = 5;
/// The most commits that a cycle may take.
const COMMITS: f64 = 6.0;
/// What a cycle must be worth beside the bare loop.
const LEAST: f64 = 0.5;

fn main() -> ExitCode {
    let mut wanted = CycleBenchOptions { cycles: true, growth: true, runs: growth::MANY_RUNS };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            // Cargo says so to every benchmark.
            "--bench" => {}
            "--only-cycles" => wanted.growth = false,
            "--only-growth" => wanted.cycles = false,
            "--runs" => match arguments.next().and_then(|runs| runs.parse().ok()) {
                Some(runs) => wanted.runs = runs,
                None => return complain("--runs wants a number"),
            },
            _ => return complain("known are --only-cycles, --only-growth and --runs N"),
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let passed = runtime.block_on(async {
        let cycles = !wanted.cycles || cycles().await;
        let growth = !wanted.growth || growth::bench(wanted.runs).await;
        cycles && growth
    });
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What was asked for.
struct CycleBenchOptions {
    cycles: bool,
    growth: bool,
    runs: usize,
}

fn complain(complaint: &str) -> ExitCode {
    eprintln!("{complaint}");
    ExitCode::FAILURE
}

async fn cycles() -> bool {
    // Next to the build, not in a folder that may be kept in memory.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder on disk");
    let circumstances = config::circumstances().expect("the machine is known");
    let slots = CliConfig::standard(&circumstances).slots.max_running as usize;
    let most = MORE.into_iter().fold(slots, usize::max);
    let house = CycleBenchDaemon::build(folder.path(), most).await;
    let shape = house.shape().await;
    let bare = BareStoreLoop::new(folder.path(), &shape);
    house.store.0.counts.reset();
    let ratio = beside(&house, &bare, slots).await;
    println!(
        "ratio to the bare loop {ratio:.2}, at least {LEAST} wanted: {}; that is with the {slots} slots that a daemon \
         has on this machine by default",
        verdict(ratio >= LEAST)
    );
    for more in MORE {
        let ratio = beside(&house, &bare, more).await;
        println!("ratio {ratio:.2} with {more} runs at once; limited by the processors");
    }
    let counts = house.store.0.counts.read();
    let per_cycle = counts.commits as f64 / counts.finished as f64;
    let rows: usize = shape.iter().map(Vec::len).sum();
    let bytes: usize = shape.iter().flatten().sum();
    println!(
        "a cycle writes {rows} rows and {bytes} bytes and reads {:.1} times",
        counts.reads as f64 / counts.finished as f64
    );
    let fewest = verdict(per_cycle <= COMMITS);
    println!("commits per cycle {per_cycle:.2}, at most {COMMITS} wanted: {fewest}");
    per_cycle <= COMMITS && ratio >= LEAST
}

/// Cycles a second beside the bare loop, with so many at work at once.
async fn beside(house: &CycleBenchDaemon, bare: &BareStoreLoop, at_once: usize) -> f64 {
    let (mut ratios, mut ours, mut theirs) = (vec![], vec![], vec![]);
    for _ in 0..ROUNDS {
        let plain = bare.cycles(at_once, ROUND).await;
        let rate = house.cycles(at_once, ROUND).await;
        ratios.push(rate / plain);
        ours.push(rate);
        theirs.push(plain);
    }
    println!(
        "\n{at_once} runs at once, {ROUNDS} rounds\n{:<42} {:>8.0} cycles a second\n{:<42} {:>8.0} cycles a second",
        "bare group commit",
        median(&mut theirs),
        "create, ask, reply, finish",
        median(&mut ours)
    );
    median(&mut ratios)
}

/// One word for it.
fn verdict(passed: bool) -> &'static str {
    if passed { "PASS" } else { "FAIL" }
}

/// The middle one.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[expect(clippy::disallowed_methods, reason = "a bench measures time")]
fn now() -> Instant {
    Instant::now()
}
