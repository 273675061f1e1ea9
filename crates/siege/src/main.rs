//! Besieges the real daemon from outside: kills it, and looks whether anything was lost, doubled or invented.
//!
//! Everything that a simulation could find is in `sim`; here are real processes, files, sockets and deaths.

mod kill;
mod report;
mod tally;
mod watch;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

use crate::report::Section;

/// Besieges the real daemon.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    siege: Siege,
}

#[derive(Debug, Subcommand)]
enum Siege {
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
        /// Only these deaths, such as after_commit:7, one daemon after the other.
        #[arg(long)]
        at: Vec<String>,
        /// The document that gets the figures.
        #[arg(long)]
        write: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    let done = match Args::parse().siege {
        Siege::Kill { program, kills, seed, jobs, at, write } => {
            let tally = kill::run(&kill::Wish { program, kills, seed, jobs, at });
            let figures: Vec<(String, String)> =
                tally.figures().into_iter().map(|(name, count)| (name, count.to_string())).collect();
            let section = Section { heading: "Kill -9", about: KILLS, figures };
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
order and its report,\nagain while the next daemon takes things up, and at random times while many people use it. The \
stories run on both\nparrots; their orders append lines to files. After the last restart everything must have come to its \
right end.";

fn finish(section: &Section<'_>, write: Option<PathBuf>, problems: &[String]) -> anyhow::Result<ExitCode> {
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
