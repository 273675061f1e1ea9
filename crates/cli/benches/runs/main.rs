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

use bare::Bare;
use cycles::House;

/// How many runs are at work at once.
const MANY: usize = 64;
/// How long each side works in a round, and how often they take turns.
const ROUND: Duration = Duration::from_millis(1500);
const ROUNDS: usize = 5;
/// The most commits that a cycle may take.
const COMMITS: f64 = 6.0;
/// What a cycle must be worth beside the bare loop.
const LEAST: f64 = 0.5;

fn main() -> ExitCode {
    let mut wanted = Wanted { cycles: true, growth: true, runs: growth::MANY_RUNS };
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
struct Wanted {
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
    let house = House::build(folder.path()).await;
    let shape = house.shape().await;
    let bare = Bare::new(folder.path(), &shape);
    let (mut ratios, mut ours, mut theirs) = (vec![], vec![], vec![]);
    house.store.0.counts.reset();
    for _ in 0..ROUNDS {
        let plain = bare.cycles(MANY, ROUND).await;
        let rate = house.cycles(MANY, ROUND).await;
        ratios.push(rate / plain);
        ours.push(rate);
        theirs.push(plain);
    }
    let counts = house.store.0.counts.read();
    let per_cycle = counts.commits as f64 / counts.finished as f64;
    let rows: usize = shape.iter().map(Vec::len).sum();
    let bytes: usize = shape.iter().flatten().sum();
    println!(
        "{MANY} runs at once, {ROUNDS} rounds; a cycle writes {rows} rows and {bytes} bytes and reads {:.1} times",
        counts.reads as f64 / counts.finished as f64
    );
    println!("{:<42} {:>8.0} cycles a second", "bare group commit", median(&mut theirs));
    println!("{:<42} {:>8.0} cycles a second", "create, ask, reply, finish", median(&mut ours));
    let fewest = verdict(per_cycle <= COMMITS);
    println!("commits per cycle {per_cycle:.2}, at most {COMMITS} wanted: {fewest}");
    let ratio = median(&mut ratios);
    println!("ratio to the bare loop {ratio:.2}, at least {LEAST} wanted: {}", verdict(ratio >= LEAST));
    per_cycle <= COMMITS && ratio >= LEAST
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
