//! The command line: which chores there are, their help, and the exit code each ends with.
//!
//! What a chore does is in the file of its name.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::workspace::Workspace;
use crate::{bench, ci, engines, schemathesis, shell, sim, test, tidy, up};

/// The chores of this repository.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", arg_required_else_help = true)]
struct Args {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Build the `abide` binary, start the daemon in the background, and say what to try.
    #[command(after_help = "Examples:\n  cargo xtask up\n  cargo xtask up --release --listen 127.0.0.1:5000")]
    Up {
        /// `--release` for the optimised build; everything else is passed on to `abide up`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Install what the tests need, start a throw-away Postgres, and run every test.
    #[command(after_help = "Examples:\n  cargo xtask test\n  cargo xtask test reply_to_another\n\n\
        With a FILTER only the tests whose name contains it run: no doc tests, no simulator.\n\
        Tests find the database in ABIDE_TEST_POSTGRES_URL, and the list of agent programs in ABIDE_TEST_ENGINES.\n\
        With ABIDE_REQUIRE_ENGINES=1 an agent program that cannot be installed is a failure.")]
    Test {
        /// Parts of test names; without any, everything runs.
        filter: Vec<String>,
    },
    /// Install the agent programs that the tests drive, and show which of them run.
    #[command(after_help = "Examples:\n  cargo xtask engines\n  cargo xtask engines --json\n  \
        cargo xtask engines --write    # docs/engines.md, from what `cargo xtask test` saw\n\n\
        They go to .cache/engines, about 1.5 GB, at the versions in xtask/engines. The table is on standard error.\n\
        With ABIDE_REQUIRE_ENGINES=1 one that is not verified is a failure.")]
    Engines {
        /// Also print what tests are told: each engine's command and environment.
        #[arg(long)]
        json: bool,
        /// Write docs/engines.md from what the tests last saw.
        #[arg(long, conflicts_with = "json")]
        write: bool,
    },
    /// Ask a daemon everything that its OpenAPI document allows and forbids, with schemathesis.
    #[command(
        after_help = "Examples:\n  cargo xtask schemathesis\n  cargo xtask schemathesis --include-path /v1/runs\n\n\
        schemathesis goes to .cache/schemathesis, at the versions in xtask/schemathesis."
    )]
    Schemathesis {
        /// Passed on to schemathesis.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Run the simulator, optimised and with every assertion on.
    #[command(after_help = "Examples:\n  cargo xtask sim --seeds 20000\n  \
        cargo xtask sim --seed 4711     # replay one history and print its story\n  \
        cargo xtask sim --mutants       # show that each deliberate fault is caught")]
    Sim {
        /// Passed on to the simulator.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Measure something by name.
    #[command(
        after_help = "Examples:\n  cargo xtask bench store\n  cargo xtask bench engines --only codex\n  cargo xtask bench terminal\n  \
        cargo xtask bench terminal --no-peers            # only our own figures\n  \
        cargo xtask bench terminal --only-peers --write  # only the comparison, into docs/benchmarks.md\n\n\
        The terminal's peers are installed into .cache/peers and the agent programs into .cache/engines, unless\n\
        ABIDE_TEST_ENGINES names a list of them; they are no part of CI."
    )]
    Bench {
        /// What to measure; an unknown name lists the known ones.
        name: String,
        /// Passed on to the benchmark.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Check what the compiler does not: documents, dependency arrows, headers, links.
    Tidy,
    /// Everything that must be green before a change lands.
    #[command(after_help = "Examples:\n  cargo xtask ci\n  cargo xtask ci --step clippy\n  \
        cargo xtask ci --step deny --step typos")]
    Ci {
        /// Run only this step; may be given several times.
        #[arg(long = "step", value_enum)]
        steps: Vec<ci::Step>,
    },
}

pub(crate) fn main() -> ExitCode {
    let args = Args::parse();
    let done =
        shell::watch_signals().and_then(|()| Workspace::load()).and_then(|workspace| match args.chore {
            Chore::Up { args } => up::run(&workspace, &args),
            Chore::Test { filter } => test::run(&workspace, &filter),
            Chore::Engines { json, write } => {
                let format = match (json, write) {
                    (true, _) => engines::Format::Json,
                    (false, true) => engines::Format::Document,
                    (false, false) => engines::Format::Table,
                };
                engines::run(&workspace, format)
            }
            Chore::Schemathesis { args } => schemathesis::run(&workspace, &args),
            Chore::Sim { args } => sim::run(&workspace, &args),
            Chore::Bench { name, args } => bench::run(&workspace, &name, &args),
            Chore::Tidy => tidy::run(&workspace),
            Chore::Ci { steps } => ci::run(&workspace, &steps),
        });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) if shell::interrupted() => {
            eprintln!("interrupted");
            ExitCode::from(130)
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Args;

    #[test]
    fn the_command_line_is_well_formed() {
        Args::command().debug_assert();
    }
}
