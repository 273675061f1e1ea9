//! The cost of the core: complete runs per second, and the influence of the number of runs.
//!
//! A cycle is a run that is created, asks, is answered and finishes, on the real daemon and SQLite. The engine
//! is inside this process, so that no program start hides our time. It is compared with a reference loop that makes the
//! same number of synced transactions with the same rows and bytes, also with group commit, in the same process and
//! alternately. There are no absolute limits.

mod bare;
mod counted;
mod cycles;
mod growth;

#[path = "../../tests/support/in_process.rs"]
mod in_process;

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use abide::config::{self, CliConfig};
use bare::BareStoreLoop;
use cycles::CycleBenchDaemon;

/// Further numbers of concurrent runs, besides the default number of slots, for users who raise that limit.
const EXTRA_CONCURRENCY: [usize; 2] = [16, 64];
/// The duration of a round, and the number of rounds of each side.
const ROUND: Duration = Duration::from_millis(1500);
const ROUNDS: usize = 5;
/// The maximum number of commits in a cycle.
const MAX_COMMITS_PER_CYCLE: f64 = 6.0;
/// The minimum ratio of our cycles per second to those of the reference loop.
const MIN_RATIO: f64 = 0.5;

fn main() -> ExitCode {
    let mut options = CycleBenchOptions { cycles: true, growth: true, runs: growth::MANY_RUNS };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            // Cargo passes this argument to each benchmark.
            "--bench" => {}
            "--only-cycles" => options.growth = false,
            "--only-growth" => options.cycles = false,
            "--runs" => match arguments.next().and_then(|runs| runs.parse().ok()) {
                Some(runs) => options.runs = runs,
                None => return usage_error("--runs wants a number"),
            },
            _ => return usage_error("known are --only-cycles, --only-growth and --runs N"),
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let passed = runtime.block_on(async {
        let cycles = !options.cycles || cycles().await;
        let growth = !options.growth || growth::bench(options.runs).await;
        cycles && growth
    });
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

struct CycleBenchOptions {
    cycles: bool,
    growth: bool,
    runs: usize,
}

fn usage_error(complaint: &str) -> ExitCode {
    eprintln!("{complaint}");
    ExitCode::FAILURE
}

async fn cycles() -> bool {
    // Next to the build, because the temporary folder may be a tmpfs.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder on disk");
    let facts = config::machine_facts().expect("the machine is known");
    let slots = CliConfig::defaults_for(&facts).slots.max_running as usize;
    let most = EXTRA_CONCURRENCY.into_iter().fold(slots, usize::max);
    let daemon = CycleBenchDaemon::build(folder.path(), most).await;
    let shape = daemon.shape().await;
    let bare = BareStoreLoop::new(folder.path(), &shape);
    daemon.store.0.counts.reset();
    let ratio = ratio_to_reference(&daemon, &bare, slots).await;
    println!(
        "ratio to the bare loop {ratio:.2}, at least {MIN_RATIO} wanted: {}; that is with the {slots} slots that a daemon \
         has on this machine by default",
        verdict(ratio >= MIN_RATIO)
    );
    for more in EXTRA_CONCURRENCY {
        let ratio = ratio_to_reference(&daemon, &bare, more).await;
        println!("ratio {ratio:.2} with {more} runs at once; limited by the processors");
    }
    let counts = daemon.store.0.counts.read();
    let per_cycle = counts.commits as f64 / counts.finished as f64;
    let rows: usize = shape.iter().map(Vec::len).sum();
    let bytes: usize = shape.iter().flatten().sum();
    println!(
        "a cycle writes {rows} rows and {bytes} bytes and reads {:.1} times",
        counts.reads as f64 / counts.finished as f64
    );
    let fewest = verdict(per_cycle <= MAX_COMMITS_PER_CYCLE);
    println!("commits per cycle {per_cycle:.2}, at most {MAX_COMMITS_PER_CYCLE} wanted: {fewest}");
    per_cycle <= MAX_COMMITS_PER_CYCLE && ratio >= MIN_RATIO
}

/// Returns the ratio of our cycles per second to the reference loop's, with this number of concurrent runs.
async fn ratio_to_reference(daemon: &CycleBenchDaemon, bare: &BareStoreLoop, at_once: usize) -> f64 {
    let (mut ratios, mut ours, mut theirs) = (vec![], vec![], vec![]);
    for _ in 0..ROUNDS {
        let plain = bare.cycles(at_once, ROUND).await;
        let rate = daemon.cycles(at_once, ROUND).await;
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

fn verdict(passed: bool) -> &'static str {
    if passed { "PASS" } else { "FAIL" }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[expect(clippy::disallowed_methods, reason = "a bench measures time")]
fn now() -> Instant {
    Instant::now()
}
