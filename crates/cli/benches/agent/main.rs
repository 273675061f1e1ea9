//! What the native agent itself costs when its journal is long: its own time in an iteration, and how soon it is back
//! after a kill.
//!
//! Both on journals that the agent wrote itself, of 100 and of 10,000 events, with as much of them in the model's window
//! as fits. An iteration is measured where the model is: from the moment in which its answer is sent to that in which
//! the whole next request has been read, less what tools took, with the real client, journal and disk. The restart is
//! the real binary. Iterations are judged as a ratio within one run; the restart has the one absolute budget.

#![expect(clippy::disallowed_methods, reason = "a benchmark starts what it measures and looks at the clock")]
#![expect(clippy::expect_used, reason = "a benchmark that cannot go on stops")]

mod actors;
mod figures;
mod iterations;
mod model;
mod restart;
mod scene;
mod words;

use std::process::ExitCode;

use scene::AgentBenchFixture;

/// How many events are few, and how many are many.
const FEW: u64 = 100;
const MANY: u64 = 10_000;

fn main() -> ExitCode {
    let (mut iterations, mut restart) = (true, true);
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            // Cargo says so to every benchmark.
            "--bench" => {}
            "--only-iterations" => restart = false,
            "--only-restart" => iterations = false,
            _ => {
                eprintln!("known are --only-iterations and --only-restart");
                return ExitCode::FAILURE;
            }
        }
    }
    // Next to the build, not in a folder that may be kept in memory.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder on disk");
    let scene = AgentBenchFixture::build(folder.path());
    println!("{}\n{}", scene.few, scene.many);
    let iterations = !iterations || iterations::bench(&scene);
    let restart = !restart || restart::bench(&scene);
    if iterations && restart { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
