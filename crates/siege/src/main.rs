//! Besieges the real daemon from outside: kills it, and looks whether anything was lost, doubled or invented.
//!
//! Everything that a simulation could find is in `sim`; here are real processes, files, sockets and deaths.

mod kill;
mod load;
mod measure;
mod report;
mod tally;
mod upgrade;
mod watch;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

use crate::report::ReportSection;

/// Besieges the real daemon.
#[derive(Debug, Parser)]
struct CrashTestArguments {
    #[command(subcommand)]
    siege: CrashTest,
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
        /// What chance is made of.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// How many homes are besieged at a time.
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
    let done = match CrashTestArguments::parse().siege {
        CrashTest::Kill { program, kills, seed, jobs, at, write } => {
            let tally = kill::run(&kill::KillOptions { program, kills, seed, jobs, at });
            let section = ReportSection { heading: "Kill -9", about: KILLS, figures: counted(&tally) };
            finish(&section, write, &tally.problems)
        }
        CrashTest::Load { program, build, waiting, runs, readers, output, write } => {
            let seen = load::run(&load::LoadOptions { program, waiting, runs, readers, output });
            let mut figures = vec![("build".to_owned(), build)];
            figures.extend(seen.figures);
            let section = ReportSection { heading: "Load", about: LOAD, figures };
            finish(&section, write, &seen.problems)
        }
        CrashTest::Measure { program } => measure::run(&program).map(|()| ExitCode::SUCCESS),
        CrashTest::Upgrade { program, old, write } => {
            let tally = upgrade::run(&old, &program);
            let section = ReportSection { heading: "Upgrade", about: UPGRADE, figures: counted(&tally) };
            finish(&section, write, &tally.problems)
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

const KILLS: &str = "The daemon is killed with SIGKILL before and after every commit of its stories, between every \
order and its report,\nagain while the next daemon takes things up, and at random times while many people use it. At the \
same points and times it\nis killed together with all keepers and children, and keepers or children are killed alone. The \
stories run on both parrots;\ntheir orders append lines to files. After the last restart everything must have come to its \
right end: no line twice, none\nmissing unless a killed process is known to have taken it along, and nothing acknowledged \
is lost.";

const LOAD: &str = "Runs that wait for an answer, of which some are then answered; and runs that work at once on both \
parrots while\nmany readers follow all events, one of whom has a connection and never reads from it. Then one turn prints very much,\nand the daemon is killed after each third of it.";
const UPGRADE: &str = "A daemon with open questions, gates, held processes, idle chats and running turns is replaced by \
another binary,\nonce in order and once by force, with native agents that wait for a person and terminal sessions in the \
same home.\nEverything that the old binary began comes to its right end under the new one.";

fn counted(tally: &tally::CrashCounters) -> Vec<(String, String)> {
    tally.figures().into_iter().map(|(name, count)| (name, count.to_string())).collect()
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
