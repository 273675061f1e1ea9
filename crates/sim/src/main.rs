//! Simulates whole histories of the daemon with crashes, duplicates, delays and wrong reports, replayable by seed.
//!
//! [`abide_daemon::Dispatcher`], the domain and the memory store are the real ones. Engines, people, the conversation
//! and the clock are fakes. They misbehave in observed ways and then become reliable, so that every invariant can be
//! checked.

mod adapter;
mod channel;
mod checks;
mod daemon;
mod engine;
mod faults;
mod people;
mod processes;
mod report;
mod world;

use std::process::ExitCode;

use clap::Parser;
use faults::RuleFault;

/// Simulates histories of the daemon and checks its promises after each.
#[derive(Debug, Parser)]
#[command(after_help = "Examples:
  cargo xtask sim                          20,000 histories
  cargo xtask sim --seed 4711              one of them, told as a story
  cargo xtask sim --mutants                every deliberate fault, and the check that notices it
  cargo xtask sim --fault ignore-fence --seed 12")]
struct SimArguments {
    /// How many histories.
    #[arg(long, default_value_t = 20_000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Live through this one only and tell its story.
    #[arg(long, conflicts_with = "mutants")]
    seed: Option<u64>,
    /// Break one rule on purpose.
    #[arg(long, value_enum)]
    fault: Option<RuleFault>,
    /// Break every rule once, and show which check notices.
    #[arg(long)]
    mutants: bool,
}

fn main() -> ExitCode {
    let arguments = SimArguments::parse();
    match (arguments.seed, arguments.mutants) {
        (Some(seed), _) => report::story(seed, arguments.fault),
        (None, true) => report::mutants(arguments.from),
        (None, false) => report::histories(arguments.from, arguments.seeds, arguments.fault),
    }
}
