//! The overhead of Abide on top of the agent programs, and the speed of the interpreters.
//!
//! Both are ratios to a measurement in the same run: our share of a turn's time, and the speed of each adapter relative
//! to a plain JSON parser. The programs are real and the model is on the loopback interface, so turns are as short and
//! our share is as large as possible. A program that is not installed is reported as not measured. `cargo xtask bench
//! engines` installs them first.

mod bare;
mod corpus;
mod figures;
mod judging;
mod ours;
mod reading;
mod turns;
mod watched;

#[path = "../../tests/engines/dressing.rs"]
mod dressing;
#[path = "../../tests/support/in_process.rs"]
mod in_process;
#[path = "../../tests/support/program_ports.rs"]
mod program_ports;
#[path = "../../tests/engines/programs.rs"]
mod programs;

use std::process::ExitCode;

/// The selected measurements.
struct BenchSelection {
    only: Option<String>,
    rounds: usize,
}

fn main() -> ExitCode {
    let selection = match BenchSelection::from_arguments(std::env::args().skip(1)) {
        Ok(selection) => selection,
        Err(complaint) => {
            eprintln!("{complaint}");
            return ExitCode::FAILURE;
        }
    };
    let chosen = |name: &str| selection.only.as_deref().is_none_or(|only| only == name);
    let reading = reading::bench(chosen);
    let turns = turns::bench(chosen, selection.rounds);
    if reading && turns { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl BenchSelection {
    fn from_arguments(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut selection = Self { only: None, rounds: 9 };
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                // Cargo passes this argument to each benchmark.
                "--bench" => {}
                "--only" => selection.only = Some(arguments.next().ok_or("--only wants an engine's name")?),
                "--rounds" => {
                    let rounds = arguments.next().and_then(|rounds| rounds.parse().ok());
                    selection.rounds =
                        rounds.filter(|rounds| *rounds > 0).ok_or("--rounds wants a number of rounds")?;
                }
                other => return Err(format!("{other} is not known; there are --only NAME and --rounds N")),
            }
        }
        Ok(selection)
    }
}
