//! Crash, load and upgrade tests of the real daemon: kill it and check that nothing is lost, duplicated or invented.
//!
//! Failures that a simulation can find are tested in `sim`. These tests use real processes, files, sockets and signals.

mod counters;
mod kill;
mod load;
mod measure;
mod report;
mod slow_stopwatch;
mod upgrade;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

use crate::report::ReportSection;

/// Crash, load and upgrade tests of the real daemon.
#[derive(Debug, Parser)]
struct CrashTestArguments {
    #[command(subcommand)]
    test: CrashTest,
}

#[derive(Debug, Subcommand)]
enum CrashTest {
    /// Kill -9 at every commit point of some stories, then at random times under load.
    Kill {
        /// The daemon, built with the feature `failpoints`.
        #[arg(long)]
        program: PathBuf,
        /// How often it dies at least.
        #[arg(long, default_value_t = 100)]
        kills: u64,
        /// The seed of the random choices.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// How many homes are tested at a time.
        #[arg(long, default_value_t = 3)]
        jobs: usize,
        /// Only these deaths, such as after_commit:7 or after_commit:7:keepers, one daemon after the other.
        #[arg(long)]
        at: Vec<String>,
        /// The document that gets the figures.
        #[arg(long)]
        write: Option<PathBuf>,
    },
    /// Many waiting runs, and many at work with many readers.
    Load {
        /// The daemon.
        #[arg(long)]
        program: PathBuf,
        /// How it was built, for the figures.
        #[arg(long, default_value = "debug")]
        build: String,
        /// How many runs wait.
        #[arg(long, default_value_t = 10_000)]
        waiting: usize,
        /// How many work at once.
        #[arg(long, default_value_t = 200)]
        runs: usize,
        /// How many readers of events there are meanwhile.
        #[arg(long, default_value_t = 100)]
        readers: usize,
        /// How many bytes one turn prints, with two restarts in the middle.
        #[arg(long, default_value_t = 10_000_000_000)]
        output: u64,
        /// The document that gets the figures.
        #[arg(long)]
        write: Option<PathBuf>,
    },
    /// One short measurement of runs over HTTP, as lines of the form `figure VALUE UNIT NAME`.
    Measure {
        /// The daemon.
        #[arg(long)]
        program: PathBuf,
    },
    /// Another binary takes over.
    Upgrade {
        /// The new daemon.
        #[arg(long)]
        program: PathBuf,
        /// The old one.
        #[arg(long)]
        old: PathBuf,
        /// The document that gets the figures.
        #[arg(long)]
        write: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    let done = match CrashTestArguments::parse().test {
        CrashTest::Kill { program, kills, seed, jobs, at, write } => {
            let counters = kill::run(&kill::KillOptions { program, kills, seed, jobs, at });
            let section =
                ReportSection { heading: "Kill -9", about: KILLS, figures: counter_figures(&counters) };
            finish(&section, write, &counters.problems)
        }
        CrashTest::Load { program, build, waiting, runs, readers, output, write } => {
            let results = load::run(&load::LoadOptions { program, waiting, runs, readers, output });
            let mut figures = vec![("build".to_owned(), build)];
            figures.extend(results.figures);
            let section = ReportSection { heading: "Load", about: LOAD, figures };
            finish(&section, write, &results.problems)
        }
        CrashTest::Measure { program } => measure::run(&program).map(|()| ExitCode::SUCCESS),
        CrashTest::Upgrade { program, old, write } => {
            let counters = upgrade::run(&old, &program);
            let section =
                ReportSection { heading: "Upgrade", about: UPGRADE, figures: counter_figures(&counters) };
            finish(&section, write, &counters.problems)
        }
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

const KILLS: &str = "\
The crash test kills the real daemon with SIGKILL:

- before and after every commit of its scenarios, and between every effect and the record of its result,
- again while the next daemon recovers,
- at random times under concurrent load.

At the same failpoints and times, the daemon is also killed together with all keepers and children, and keepers or
children are killed alone. The scenarios run on both parrots, and their effects append lines to files. After the last
restart every run must have finished with the expected result. No line may occur twice. A line may be missing only if a
killed process is known to have lost it. No acknowledged input may be lost.";

const LOAD: &str = "\
The load test has three parts:

- Many runs wait for an answer, and some of them are answered.
- Many runs work concurrently on both parrots, while readers follow all events. One reader is connected but never reads.
- One turn prints a large output, and the daemon is killed after one third and after two thirds of it.";

const UPGRADE: &str = "\
Another binary replaces a daemon that has open questions, approvals inside turns, processes that wait for the next turn,
idle chats and running turns. The daemon is stopped once in an orderly way and once with SIGKILL. Native agents that
wait for a person and terminal sessions are in the same home. All work that the old binary began must finish with the
expected result under the new one.";

fn counter_figures(counters: &counters::CrashCounters) -> Vec<(String, String)> {
    counters.figures().into_iter().map(|(name, count)| (name, count.to_string())).collect()
}

fn finish(
    section: &ReportSection<'_>,
    write: Option<PathBuf>,
    problems: &[String],
) -> anyhow::Result<ExitCode> {
    for (name, figure) in &section.figures {
        println!("{name:<64} {figure:>10}");
    }
    for problem in problems.iter().take(20) {
        println!("PROBLEM {problem}");
    }
    if !problems.is_empty() {
        return Ok(ExitCode::FAILURE);
    }
    if let Some(document) = write {
        section.write(&document)?;
    }
    Ok(ExitCode::SUCCESS)
}
