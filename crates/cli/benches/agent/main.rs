//! The cost of the native agent with a long journal: its own time in an iteration, and the time of a restart after a
//! kill.
//!
//! Both are measured on journals that the agent wrote itself, of 100 and of 10,000 events, with as many of them in the
//! model's window as fit. An iteration is measured at the model: from the start of its answer until the whole next
//! request has been read, less the time of tools, with the real client, journal and disk. The restart uses the real
//! binary. The limit of iterations is a ratio within one run; only the restart has an absolute limit.

#![expect(clippy::disallowed_methods, reason = "a benchmark starts what it measures and looks at the clock")]
#![expect(clippy::expect_used, reason = "a benchmark that cannot continue stops")]

mod actors;
mod figures;
mod fixture;
mod iterations;
mod model;
mod restart;
mod words;

use std::process::ExitCode;

use fixture::AgentBenchFixture;

/// The lengths of the short and the long journal, in events.
const SHORT_JOURNAL_EVENTS: u64 = 100;
const LONG_JOURNAL_EVENTS: u64 = 10_000;

fn main() -> ExitCode {
    let (mut iterations, mut restart) = (true, true);
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            // Cargo passes this argument to each benchmark.
            "--bench" => {}
            "--only-iterations" => restart = false,
            "--only-restart" => iterations = false,
            _ => {
                eprintln!("known are --only-iterations and --only-restart");
                return ExitCode::FAILURE;
            }
        }
    }
    // Next to the build, because the temporary folder may be a tmpfs.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder on disk");
    let fixture = AgentBenchFixture::build(folder.path());
    println!("{}\n{}", fixture.short, fixture.long);
    let iterations = !iterations || iterations::bench(&fixture);
    let restart = !restart || restart::bench(&fixture);
    if iterations && restart { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
